"""How a trainer is brought to its end."""

from __future__ import annotations

import pytest

from airflow_spot.agent.stopping import Step, StopPlan, plan, seconds_needed


def test_a_trainer_that_does_not_listen_gets_sigterm_at_once():
    """Nothing gentler would reach it."""
    found = plan(begin=10, end=40, gently=False)
    assert found.due(10) == [Step.TELL, Step.TERM]
    assert found.at[Step.KILL] == pytest.approx(29.5)


def test_a_trainer_that_listens_is_told_first():
    """SIGTERM follows later, SIGKILL last."""
    found = plan(begin=0, end=100, gently=True)
    assert [found.at[step] for step in Step] == [0, 40, 65]


def test_plans_are_only_brought_forward():
    """A later plan never gives more time; what was done is not done again."""
    early, late = plan(begin=0, end=10, gently=False), plan(begin=50, end=100, gently=False)
    merged = late.merged(early, frozenset({Step.TELL}))
    assert merged == StopPlan(at={Step.TERM: 0, Step.KILL: 6.5})


@pytest.mark.parametrize(
    ("save", "left", "needed"),
    [(None, 120, 40), (None, 12, 6), (5, 120, 20), (100, 120, 120), (0.5, 12, 3), (0.05, 3, 2.1)],
    ids=["unknown", "unknown and short", "learnt", "too long a save", "short notice", "shortest notice"],
)
def test_a_notice_keeps_what_the_save_needs(save, left, needed):
    """Twice the learnt time and a margin that shrinks with the notice; half of it while nothing is learnt."""
    assert seconds_needed(save, left) == needed
