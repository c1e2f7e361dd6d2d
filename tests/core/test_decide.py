"""From snapshots to decisions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_spot.core.decide import decide, infeasible
from airflow_spot.core.model import Tier
from airflow_spot.core.outcomes import Outcome
from airflow_spot.core.snapshot import Action, Queued, Snapshot
from airflow_spot.policies import from_json

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
TIERS = (
    Tier.spot("spot-queue", price=0.97),
    Tier.reserved("reserved-queue", price=0.0, max_wait=timedelta(minutes=20)),
    Tier.on_demand("on-demand-queue", price=3.06),
)
POLICY = from_json({})


def shot(*, left_hours: float | None = 60, work_hours: float | None = 48, **changes: object) -> Snapshot:
    """A snapshot in the middle of the default example: 48 h of work, 60 h of time, 15 min changeover."""
    base = Snapshot(
        now=NOW,
        tiers=TIERS,
        deadline=None if left_hours is None else NOW + timedelta(hours=left_hours),
        window_seconds=60 * 3600,
        expected_seconds=48 * 3600,
        work_left_seconds=None if work_hours is None else work_hours * 3600,
    )
    return replace(base, **changes)


def test_starts_on_the_most_preferred_tier() -> None:
    """With time to spare the first attempt goes to the first tier."""
    decision = decide(POLICY, shot())
    assert (Action.START, "spot") == (decision.action, decision.tier)


def test_waits_for_spot_while_there_is_time() -> None:
    """A queued spot attempt is left queued while time left is above the ratio."""
    decision = decide(POLICY, shot(queued=(Queued(tier="spot", waited_seconds=3600),)))
    assert decision.action is Action.WAIT
    assert decision.promote_at == NOW + timedelta(hours=60 - 1.2 * 48)


def test_promotes_at_the_ratio() -> None:
    """Below 1.2 times the work left the dependable tier is asked beside the queued spot attempt."""
    decision = decide(POLICY, shot(left_hours=57.5, queued=(Queued(tier="spot", waited_seconds=9000),)))
    assert (Action.START, "reserved") == (decision.action, decision.tier)
    assert "below 1.20 to 1" in decision.reason


def test_the_net_is_two_changeovers_before_the_work_no_longer_fits() -> None:
    """Near the end the net acts before the ratio does: two changeovers count more than a fifth of little work."""
    before = decide(POLICY, shot(left_hours=1.51, work_hours=1, queued=(Queued(tier="spot"),)))
    after = decide(POLICY, shot(left_hours=1.5, work_hours=1, queued=(Queued(tier="spot"),)))
    assert [Action.WAIT, Action.START] == [before.action, after.action]
    assert "last safe moment" in after.reason


def test_a_training_spot_attempt_is_left_alone() -> None:
    """On spot and training: stay, whatever the ratio says."""
    decision = decide(POLICY, shot(left_hours=49, live="spot", live_runs=True))
    assert (Action.KEEP, "spot") == (decision.action, decision.tier)
    assert decision.promote_at == NOW + timedelta(hours=49 - 48) - timedelta(minutes=15)


def test_a_promotion_brings_its_standby_to_a_machine_first() -> None:
    """A promotion of a running attempt: the next one is started, and only when it runs is the first asked to leave."""
    asked = shot(live="spot", live_runs=True, promotion_why="deadline sensor")
    waiting = replace(asked, queued=(Queued(tier="reserved", waited_seconds=60),))
    standing_by = replace(asked, queued=(Queued(tier="reserved", runs=True),))
    decisions = [decide(POLICY, shot_) for shot_ in (asked, waiting, standing_by)]
    assert [Action.START, Action.KEEP, Action.MOVE] == [decision.action for decision in decisions]
    assert "reserved" == decisions[0].tier


def test_a_standby_that_gets_no_machine_is_joined_by_the_next_tier() -> None:
    """A reservation that gives nothing for max_wait: on-demand is asked as well, and spot trains on."""
    asked = shot(live="spot", live_runs=True, promotion_why="x", queued=(Queued(tier="reserved", waited_seconds=1200),))
    assert (Action.START, "on_demand") == (decide(POLICY, asked).action, decide(POLICY, asked).tier)


def test_a_withdrawn_promotion_leaves_the_live_attempt_alone() -> None:
    """What was queued for a promotion that nobody wants any more is not wanted beside a live attempt."""
    assert decide(POLICY, shot(live="spot", live_runs=True, queued=(Queued(tier="reserved"),))).alone


def test_on_dependable_capacity_nothing_is_promoted() -> None:
    """Once live on a dependable tier there is nothing to promote and no instant for it."""
    decision = decide(POLICY, shot(left_hours=49, live="on_demand", promotion_why="x"))
    assert (Action.KEEP, None) == (decision.action, decision.promote_at)


def test_a_promotion_that_names_a_tier_stands_until_that_one_is_live() -> None:
    """On the reservation, a promotion to on-demand is still to be made."""
    asked = shot(live="reserved", live_runs=True, promotion_why="x", promotion_tier="on_demand")
    assert (Action.START, "on_demand") == (decide(POLICY, asked).action, decide(POLICY, asked).tier)


def test_a_promotion_never_goes_to_an_impossible_tier() -> None:
    """Batch refused the named tier: another dependable one is taken, and with none left spot goes on."""
    asked = shot(live="spot", promotion_why="x", promotion_tier="on_demand", unusable=frozenset({"on_demand"}))
    assert "reserved" == decide(POLICY, asked).tier
    none = replace(asked, unusable=frozenset({"on_demand", "reserved"}))
    assert Action.KEEP is decide(POLICY, none).action
    assert Action.KEEP is decide(POLICY, replace(none, unusable=frozenset({"spot", "on_demand", "reserved"}))).action


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("starting", {"live_runs": False}),
        ("slow", {"live_runs": True, "live_left_seconds": 60 * 3600}),
        ("nothing committed", {"live_runs": True, "live_uncommitted_seconds": 901}),
    ],
)
def test_a_live_spot_attempt_that_endangers_the_deadline_is_moved(case: str, changes: dict[str, object]) -> None:
    """One changeover before the work no longer fits, an attempt that does not train well is moved (design 6)."""
    at_last = shot(left_hours=48.25, live="spot", **changes)
    assert (case, Action.START) == (case, decide(POLICY, at_last).action)
    assert "one changeover" in decide(POLICY, at_last).reason
    assert Action.KEEP is decide(POLICY, shot(left_hours=48.3, live="spot", **changes)).action


def test_max_wait_asks_the_next_tier_as_well() -> None:
    """A tier that gave no machine for max_wait is joined by the next one (I25, I26)."""
    tiers = (Tier.spot("s", max_wait="10m"), Tier.on_demand("o"))
    patient = shot(tiers=tiers, left_hours=None, queued=(Queued(tier="spot", waited_seconds=599),))
    assert decide(POLICY, patient).action is Action.WAIT
    assert decide(POLICY, patient).look_again == NOW + timedelta(seconds=1)
    decision = decide(POLICY, replace(patient, queued=(Queued(tier="spot", waited_seconds=600),)))
    assert (Action.START, "on_demand") == (decision.action, decision.tier)


def test_max_wait_none_waits_for_ever() -> None:
    """Without max_wait and deadline a queued attempt is never joined (I26)."""
    tiers = (Tier.spot("s"), Tier.on_demand("o"))
    queued = (Queued(tier="spot", waited_seconds=1e7),)
    assert decide(POLICY, shot(tiers=tiers, left_hours=None, queued=queued)).action is Action.WAIT


def test_a_promotion_waits_for_a_reservation_no_longer_than_slack_allows() -> None:
    """With less slack than max_wait the next dependable tier is asked as soon as the slack is gone."""
    queued = (Queued(tier="spot", waited_seconds=9000), Queued(tier="reserved", waited_seconds=60))
    tight = shot(left_hours=48.25, queued=queued)
    roomy = shot(left_hours=49.25, queued=queued)
    assert (Action.START, "on_demand") == (decide(POLICY, tight).action, decide(POLICY, tight).tier)
    assert decide(POLICY, roomy).action is Action.WAIT


def test_reclaims_promote_where_asked() -> None:
    """promote_after_reclaims=2: the attempt after the second reclaim runs on the fallback tier (I41, I61)."""
    once = shot(reclaims=1, promote_after_reclaims=2, last_tier="spot", last_outcome=Outcome.RECLAIMED)
    twice = replace(once, reclaims=2)
    assert ["spot", "reserved"] == [decide(POLICY, once).tier, decide(POLICY, twice).tier]


def test_no_capacity_goes_to_the_next_tier() -> None:
    """A queue that cancelled the job for lack of capacity is followed by the next tier (I80)."""
    decision = decide(POLICY, shot(left_hours=None, last_tier="spot", last_outcome=Outcome.NO_CAPACITY))
    assert decision.tier == "reserved"


def test_a_user_error_on_spot_does_not_promote() -> None:
    """An application's failure says nothing of the market (B4)."""
    decision = decide(POLICY, shot(last_tier="spot", last_outcome=Outcome.USER_ERROR))
    assert decision.tier == "spot"


def test_a_storm_of_reclaims_backs_off() -> None:
    """Two barren attempts in a row are free, the next one waits, and a promotion does not (I81)."""
    storm = shot(barren=2, last_ended_at=NOW, last_tier="spot", last_outcome=Outcome.RECLAIMED)
    assert (Action.WAIT, NOW + timedelta(seconds=15)) == (
        decide(POLICY, storm).action,
        decide(POLICY, storm).look_again,
    )
    assert decide(POLICY, replace(storm, barren=1)).action is Action.START
    assert decide(POLICY, replace(storm, barren=12)).look_again == NOW + timedelta(seconds=600)
    assert decide(POLICY, replace(storm, promotion_why="x")).action is Action.START


def test_a_person_can_hold_back_a_promotion() -> None:
    """stay: no promotion before its instant, although the rule wants one."""
    held = shot(left_hours=50, stay_until=NOW + timedelta(hours=1))
    assert (Action.START, "spot") == (decide(POLICY, held).action, decide(POLICY, held).tier)
    assert "held back by a person" in decide(POLICY, held).reason


@pytest.mark.parametrize(("given", "action"), [("promote", Action.START), ("fail", Action.GIVE_UP)])
def test_an_infeasible_deadline_is_said_at_once(given: str, action: Action) -> None:
    """on_infeasible decides, and both ways the earliest finish is named."""
    late = shot(left_hours=40, on_infeasible=given)
    assert decide(POLICY, late).action is action
    assert "earliest finish is 2026-12-03 12:15:00" in decide(POLICY, late).reason
    assert "cannot be kept" in str(infeasible(late))


def test_tiers_that_proved_impossible_are_left_out() -> None:
    """A tier whose queue can never hold the job is not tried again; with none left we give up."""
    assert decide(POLICY, shot(unusable=frozenset({"spot"}))).tier == "reserved"
    assert decide(POLICY, shot(unusable=frozenset({"spot", "reserved", "on_demand"}))).action is Action.GIVE_UP


@given(
    left=st.floats(0.0, 200.0),
    work=st.floats(0.01, 100.0),
    changeover=st.floats(0.0, 3600.0),
    waited=st.floats(0.0, 1e6),
)
def test_idle_is_never_later_than_the_last_safe_moment(
    left: float, work: float, changeover: float, waited: float
) -> None:
    """Whatever the numbers: nothing live and work that hardly fits beside two changeovers means dependable now."""
    queued = (Queued(tier="spot", waited_seconds=waited),)
    decision = decide(POLICY, shot(left_hours=left, work_hours=work, changeover_seconds=changeover, queued=queued))
    safe = left * 3600 > work * 3600 + 2 * changeover
    assert safe or decision.action is Action.START
