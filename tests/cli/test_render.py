"""Pictures of training runs."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from airflow_spot.cli import render
from airflow_spot.rundir.values import AttemptState, Desired, Phase, Promotion, Result, Verdict

from .conftest import A_NOTICE, NOW, a_beat, a_record, ago, reclaimed, training

if TYPE_CHECKING:
    from rich.console import RenderableType


def text(what: RenderableType, width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(what)
    lines = (re.sub("─+", "───", line).rstrip() for line in out.getvalue().splitlines())
    return "\n".join(lines).strip()


def test_a_training_run_on_spot() -> None:
    """A training run that trains shows its attempts, slack, the coming promotion and the cost so far."""
    beats = {2: (a_beat(notice=A_NOTICE), NOW - timedelta(seconds=12))}
    expected = """\
final · manual__1 · train
memory://x/final/manual__1/train/-1
now       training on spot, attempt 2
progress  step 1700 of 5000 (34%) · checkpoint at 1650 · 3.2 steps/s · heartbeat 12 s ago
deadline  15:00:00 (in 1 h) · slack 12 min · promotes at 14:12:00
so far    2 attempts · 1 reclaim · 20 steps lost · 0 promotions
cost      $0.40 for 0.42 h of job time so far
because   spot again: there is slack

 #   tier   state       lasted   step   saved   lost    cost   why
 ───
 1   spot   reclaimed   10 min   1200    1180     20   $0.16   AWS took the spot machine back
 2   spot   training    15 min   1700    1650          $0.24   notice (spot): 1 min 50 s to act when it came"""
    picture = render.training_run(a_record(), beats, NOW, uri="memory://x/final/manual__1/train/-1")
    assert expected == text(picture)


def test_a_training_run_that_succeeded() -> None:
    """An ended training run says so, and sums itself up in one line."""
    last = training(
        tier="on_demand",
        market="on_demand",
        state=AttemptState.ENDED,
        terminal=True,
        stopped_at=NOW,
        steps=5000,
        total_steps=5000,
        committed_step=5000,
        cost_usd=0.77,
        verdict=Verdict(outcome="SUCCEEDED", sentence="the training completed"),
    )
    ended = a_record(
        attempts=(reclaimed(), last),
        result=Result(
            outcome="SUCCEEDED",
            message="the training completed",
            generation=1,
            at=NOW,
            summary={"cost": {"usd": 0.93, "on_demand_usd": 2.04, "estimated": True}, "slack_seconds": 3600},
        ),
    )
    expected = """\
final · manual__1 · train
now       ended SUCCEEDED: the training completed
progress  step 5000 of 5000 (100%) · checkpoint at 5000
deadline  15:00:00
so far    2 attempts · 1 reclaim · 20 steps lost · 0 promotions
cost      $0.16 for 0.17 h of job time

 #   tier        state       lasted   step   saved   lost    cost   why
 ───
 1   spot        reclaimed   10 min   1200    1180     20   $0.16   AWS took the spot machine back
 2   on_demand   succeeded   15 min   5000    5000          $0.77   the training completed

1 reclaim · 20 steps lost · promoted 13:44 · done 1 h early · $0.93 instead of $2.04"""
    assert expected == text(render.training_run(ended, {}, NOW))


def test_what_did_not_succeed_is_not_called_early() -> None:
    """A training run that was stopped before its deadline has kept nothing."""
    result = Result(outcome="STOPPED_BY_US", message="stopped by ada@host", generation=1, at=NOW)
    assert render.closing_line(a_record(result=result)) == "1 reclaim · 20 steps lost"


def test_the_closing_line_takes_what_a_demo_has_to_add() -> None:
    """What a caller adds stands before the cost; a late end is called late."""
    result = Result(
        outcome="SUCCEEDED",
        message="",
        generation=1,
        at=NOW + timedelta(hours=1, minutes=3),
        summary={"cost": {"usd": 4}},
    )
    line = render.closing_line(a_record(result=result), also=["weights equal"])
    assert line == "1 reclaim · 20 steps lost · done 3 min late · weights equal · $4.00"


def test_times_are_those_of_the_zone() -> None:
    """Times of day follow the zone; another day's carry their date."""
    zone = timezone(timedelta(hours=2))
    assert render.clock(NOW, NOW, zone) == "16:00:00"
    assert render.clock(NOW + timedelta(days=1), NOW, zone) == "2026-12-02 16:00"


@pytest.mark.parametrize(
    ("attempt", "state", "why"),
    [
        pytest.param(
            training(state=AttemptState.INTENDED, started_at=None), "being submitted", "spot again: there is slack"
        ),
        pytest.param(training(state=AttemptState.SUBMITTED, started_at=None), "queued", "spot again: there is slack"),
        pytest.param(training(state=AttemptState.SUBMITTED), "started", "spot again: there is slack"),
        pytest.param(training(state=AttemptState.REFUSED), "throttled by AWS", "spot again: there is slack"),
        pytest.param(
            training(state=AttemptState.UNRESOLVED),
            "unresolved",
            "nobody knows whether its job exists; it is looked up and ended",
        ),
        pytest.param(training(state=AttemptState.STANDBY), "standby", "spot again: there is slack"),
        pytest.param(training(state=AttemptState.CLOSING, closing_why="promoted"), "closing", "promoted"),
        pytest.param(training(state=AttemptState.ENDED, verdict=None), "ended", "spot again: there is slack"),
        pytest.param(
            training(state=AttemptState.ENDED, verdict=Verdict(outcome="OUT_OF_MEMORY", confidence="low")),
            "out of memory",
            "the container ran out of memory (not certain)",
        ),
        pytest.param(
            training(state=AttemptState.ENDED, verdict=Verdict(outcome="SOMETHING_NEW")),
            "something new",
            "something new",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_state_has_its_words(attempt, state: str, why: str) -> None:
    """Each state of an attempt is said in words, an outcome of a newer version too."""
    row = render._attempt_row(attempt, a_record(attempts=(attempt,)), {}, NOW)
    assert (state, why) == (row[2].plain, row[-1].plain)


def test_the_phase_of_a_live_attempt_is_its_state() -> None:
    """A live attempt is shown by what its agent does."""
    beats = {2: (a_beat(phase=Phase.RESTORING), NOW)}
    assert "restoring" in text(render.attempts_table(a_record(), beats, NOW))


def test_waiting_stopped_and_promoted_are_said() -> None:
    """A queue, a person's stop and a standing promotion each have their line."""
    queued = a_record(
        attempts=(training(1, state=AttemptState.SUBMITTED, started_at=None, live_at=None),),
        promotion=Promotion(who="ada@host", why="demo tomorrow", at=ago(1), tier="on_demand"),
    )
    assert "attempt 1 on spot queued" in text(render.facts_table(queued, {}, NOW))
    assert "promotion to on_demand by ada@host at 13:59:00: demo tomorrow" in text(render.facts_table(queued, {}, NOW))
    stopped = replace(queued, desired=Desired(state="stopped", who="ada@host", why="wrong data"))
    assert "stopped by ada@host: wrong data" in text(render.facts_table(stopped, {}, NOW))


def test_what_a_container_wrote_cannot_drive_the_terminal() -> None:
    """Escape sequences and markup from a heartbeat are shown as text."""
    beats = {2: (a_beat(last_error="\x1b[2J[bold]no space[/bold]\nleft"), NOW)}
    shown = text(render.attempts_table(a_record(), beats, NOW))
    assert "[2J[bold]no space[/bold] left" in shown
    assert "\x1b" not in shown


def test_slack_on_dependable_capacity_counts_the_work_left() -> None:
    """After the promotion the slack is the time to spare: deadline less work left at the rate seen."""
    promoted = a_record(attempts=(reclaimed(), training(tier="on_demand", market="on_demand")))
    beats = {2: (a_beat(step=1700, total_steps=5000, steps_per_second=1.0), NOW)}
    assert "slack 5 min" in text(render.facts_table(promoted, beats, NOW))
    assert "promotes at" not in text(render.facts_table(promoted, beats, NOW))


def test_hours_are_shown_where_a_tier_has_no_price() -> None:
    """Without a price, time is reported and no dollars."""
    spec = {**a_record().spec, "tiers": [{**tier, "price": None} for tier in a_record().spec["tiers"]]}
    assert "cost      0.42 h of job time so far" in text(render.facts_table(a_record(spec=spec), {}, NOW))


def test_a_cleared_training_run_says_so() -> None:
    """Generations beyond the first are told as Clears."""
    assert "(cleared once)" in text(render.facts_table(a_record(generation=2), {}, NOW))
