"""What an agent may do, from every thing that the run directory can show."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from airflow_spot.agent.fence import Identity, Order, Sight, rule
from airflow_spot.rundir.values import Attempt, AttemptState, Claim, Desired, Owner, Record

ME = Identity(attempt=3, job="job-3", incarnation=1, orphan_after_seconds=21600, record_patience_seconds=300)
OWNER = Owner(deployment="d", dag_id="d", run_id="r", task_id="t")
LIVE_AT = datetime(2026, 1, 1, tzinfo=UTC)


def sight(state: AttemptState | None = AttemptState.LIVE, *, live: bool = True, **fields) -> Sight:
    entries = ()
    if state is not None:
        entries = (
            Attempt(
                number=3,
                generation=1,
                tier="spot",
                market="spot",
                state=state,
                live_at=LIVE_AT if live else None,
                pin="p",
            ),
        )
    record = Record(run_key="k", owner=OWNER, spec={}, attempts=entries)
    return replace(Sight(record=record, readable=True), **fields)


@pytest.mark.parametrize(
    ("state", "live", "order", "may_commit"),
    [
        (AttemptState.INTENDED, False, Order.HOLD, False),
        (AttemptState.SUBMITTED, False, Order.HOLD, False),
        (AttemptState.REFUSED, False, Order.HOLD, False),
        (AttemptState.STANDBY, False, Order.HOLD, False),
        (AttemptState.LIVE, True, Order.TRAIN, True),
        (AttemptState.CLOSING, True, Order.SAVE_AND_LEAVE, True),
        (AttemptState.CLOSING, False, Order.LEAVE, False),
        (AttemptState.ENDED, True, Order.LEAVE, False),
        (AttemptState.UNRESOLVED, False, Order.LEAVE, False),
        (None, False, Order.LEAVE, False),
    ],
)
def test_it_obeys_its_own_entry(state, live, order, may_commit):
    """Each state of the own entry has one order."""
    ruling = rule(sight(state, live=live), ME)
    assert (ruling.order, ruling.may_commit) == (order, may_commit)


def test_every_state_has_an_order():
    """No state is forgotten."""
    assert all(rule(sight(state), ME).order in Order for state in AttemptState)


def test_live_carries_the_pin():
    """The pin comes with the order to train."""
    assert rule(sight(), ME).pin == "p"


@pytest.mark.parametrize(("state", "commits"), [(AttemptState.LIVE, True), (AttemptState.STANDBY, False)])
def test_a_stop_saves_what_counts(state, commits):
    """Desired stopped: leave; what a live attempt has is saved first."""
    seen = sight(state, live=commits)
    stopped = replace(seen, record=replace(seen.record, desired=Desired(state="stopped", who="Ada", why="enough")))
    ruling = rule(stopped, ME)
    assert (ruling.order, ruling.reason, ruling.may_commit) == (Order.SAVE_AND_LEAVE, "stopped", commits)


def test_an_ended_attempt_of_a_stopped_training_run_commits_nothing():
    """The fence comes before the wish."""
    seen = sight(AttemptState.ENDED)
    stopped = replace(seen, record=replace(seen.record, desired=Desired(state="stopped")))
    assert rule(stopped, ME).order is Order.LEAVE


@pytest.mark.parametrize(
    "claim",
    [Claim(attempt=3, job="job-9", incarnation=1), Claim(attempt=3, job="job-3", incarnation=2)],
    ids=["another job", "a newer incarnation"],
)
def test_another_claim_fences(claim):
    """Another job's claim, or a newer incarnation of the same job: leave."""
    ruling = rule(sight(claims=(claim,)), ME)
    assert (ruling.order, ruling.reason) == (Order.LEAVE, "fenced")


def test_an_older_incarnation_is_no_reason():
    """The claim that this agent replaced does not fence it."""
    newer = replace(ME, incarnation=2)
    claims = (Claim(attempt=3, job="job-3", incarnation=1), Claim(attempt=3, job="job-3", incarnation=2))
    assert rule(sight(claims=claims), newer).order is Order.TRAIN


@pytest.mark.parametrize(
    ("ever", "seconds", "order"),
    [
        (False, 299, Order.GO_ON),
        (False, 300, Order.LEAVE),
        (True, 3000, Order.GO_ON),
    ],
)
def test_an_unreadable_record_closes_only_the_start(ever, seconds, order):
    """Unread for five minutes at the start: leave. Later: as before."""
    ruling = rule(Sight(record=None, readable=False, ever_read=ever, unread_seconds=seconds), ME)
    assert (ruling.order, ruling.may_commit) == (order, False)


def test_no_record_is_not_an_unreadable_one():
    """A run directory without a record has no entry either."""
    assert rule(Sight(record=None, readable=True), ME).order is Order.LEAVE


@pytest.mark.parametrize("readable", [True, False])
def test_the_lease_expires_by_age_or_by_silence(readable):
    """A lease that is too old, or that nobody could read for so long: save and leave."""
    seen = replace(sight(), readable=readable, lease_seconds=21600)
    ruling = rule(seen, ME)
    assert (ruling.order, ruling.reason) == (Order.SAVE_AND_LEAVE, "lease")
