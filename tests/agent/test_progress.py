"""Progress as the heartbeat reports it."""

from __future__ import annotations

import pytest

from airflow_spot.agent.progress import Pace, Progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_claimed_before_the_first_step():
    """Before anything was reported every field but the time is open."""
    assert Progress(Clock()).pace() == Pace()


def test_rate_and_gaps_come_from_the_steps():
    """Rate over the window, longest gap between two steps; the start-up counts in neither."""
    clock = Clock()
    progress = Progress(clock)
    progress.begin(100)
    for step, wait in ((101, 60.0), (102, 1.0), (103, 5.0), (104, 1.0)):
        clock.now += wait
        progress.note(step, 1000)
    clock.now += 2
    pace = progress.pace()
    assert (pace.step, pace.total_steps, pace.longest_step_seconds, pace.seconds_since_step) == (104, 1000, 5.0, 2.0)
    assert pace.steps_per_second == pytest.approx(3 / 7)


def test_the_rate_forgets_what_is_long_past():
    """A slow hour does not weigh on the rate of the last minutes."""
    clock = Clock()
    progress = Progress(clock)
    progress.begin(0)
    for step in range(1, 10):
        clock.now += 600
        progress.note(step)
    for step in range(10, 2010):
        clock.now += 1
        progress.note(step)
    assert progress.pace().steps_per_second == pytest.approx(1.0, rel=0.05)


def test_a_trainer_that_starts_over_is_no_negative_rate():
    """Steps that go back begin a new window."""
    clock = Clock()
    progress = Progress(clock)
    for step in (50, 51, 1, 2):
        clock.now += 1
        progress.note(step)
    assert progress.pace().steps_per_second == pytest.approx(1.0)
