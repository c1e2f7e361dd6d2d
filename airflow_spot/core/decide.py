"""From a snapshot to a decision. Pure: no clock, no network, no randomness.

A policy says whether training belongs on dependable capacity; what that means for attempts that are
live, queued or not there yet is the same for every policy and is decided here.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from airflow_spot.core.model import Tier
from airflow_spot.core.outcomes import TABLE, Then
from airflow_spot.core.snapshot import Action, Choice, Decision, Policy, Queued, Snapshot
from airflow_spot.durations import words

BACKOFF_SECONDS = 15.0
BACKOFF_CAP_SECONDS = 600.0
FREE_FAILURES = 2
"""So many attempts in a row may end without a new checkpoint before the next one waits."""


def decide(policy: Policy, snapshot: Snapshot) -> Decision:
    """Return what to do now.

    :param policy: the rule for the time between the extremes.
    :param snapshot: all that is known.
    """
    if not snapshot.usable and snapshot.live is None:
        return Decision(action=Action.GIVE_UP, reason="no tier is usable: each one proved impossible")
    if (late := infeasible(snapshot)) and snapshot.on_infeasible == "fail" and not snapshot.attempts:
        return Decision(action=Action.GIVE_UP, reason=late)
    choice = _choice(policy, snapshot)
    if snapshot.live is not None:
        return _with_live(snapshot, choice)
    return _start(snapshot, choice) if not snapshot.queued else _queue(snapshot, choice)


def infeasible(snapshot: Snapshot) -> str | None:
    """Return the sentence that says why the deadline cannot be kept, or None."""
    if snapshot.left_seconds is None or snapshot.work_left_seconds is None:
        return None
    need = snapshot.work_left_seconds + (0.0 if snapshot.live else snapshot.changeover_seconds)
    if snapshot.left_seconds >= need:
        return None
    finish = snapshot.now + timedelta(seconds=need)
    return (
        f"the deadline cannot be kept: {words(snapshot.left_seconds)} are left and {words(need)} are needed on the "
        f"dependable tier; the earliest finish is {finish:%Y-%m-%d %H:%M:%S} UTC"
    )


def _choice(policy: Policy, snapshot: Snapshot) -> Choice:
    """Requests come first, then a count of reclaims, then the policy."""
    if snapshot.first_dependable is None:
        impossible = any(tier.dependable for tier in snapshot.tiers)
        reason = "every dependable tier has proved impossible" if impossible else "tiers in order of preference"
        return Choice(dependable=False, reason=reason)
    if snapshot.promotion_why is not None:
        return Choice(dependable=True, reason=f"promotion asked for: {snapshot.promotion_why}", at=snapshot.now)
    limit = snapshot.promote_after_reclaims
    if limit is not None and snapshot.reclaims >= limit:
        reason = f"{snapshot.reclaims} reclaims reached promote_after_reclaims={limit}"
        return Choice(dependable=True, reason=reason, at=snapshot.now)
    if snapshot.deadline is None:
        return Choice(dependable=False, reason="no deadline: tiers in order of preference")
    choice = policy.choose(snapshot)
    if choice.dependable and (late := infeasible(snapshot)):
        choice = Choice(dependable=True, reason=late, at=choice.at)
    if choice.dependable and snapshot.stay_until and snapshot.now < snapshot.stay_until:
        reason = f"held back by a person until {snapshot.stay_until:%H:%M:%S} UTC; otherwise: {choice.reason}"
        return Choice(dependable=False, reason=reason, at=snapshot.stay_until)
    return choice


def _target(snapshot: Snapshot, choice: Choice) -> Tier:
    """The tier to start on."""
    if choice.dependable and (tier := _promoted_to(snapshot)):
        return tier
    row = TABLE[snapshot.last_outcome] if snapshot.last_outcome else None
    if row and row.then is Then.NEXT_TIER and (following := _following(snapshot, snapshot.last_tier)):
        return following
    return snapshot.usable[0]


def _promoted_to(snapshot: Snapshot) -> Tier | None:
    """The tier that a promotion named, else the first dependable one; never one that has proved impossible."""
    named = snapshot.tier(snapshot.promotion_tier)
    return named if named in snapshot.usable else snapshot.first_dependable


def _following(snapshot: Snapshot, name: str | None) -> Tier | None:
    names = [tier.name for tier in snapshot.usable]
    index = names.index(name) + 1 if name in names else 0
    return snapshot.usable[index] if index < len(names) else None


def _with_live(snapshot: Snapshot, choice: Choice) -> Decision:
    """Something is live: leave it, or bring its successor to a machine and only then ask it to leave."""
    live = snapshot.tier(snapshot.live)
    settled = live is not None and live.dependable and snapshot.promotion_tier in (None, live.name)
    at = None if settled else choice.at
    if settled or not choice.dependable:
        return Decision(action=Action.KEEP, reason=choice.reason, tier=snapshot.live, promote_at=at, alone=True)
    standby = _queued_dependable(snapshot)
    if any(queued.runs for queued in standby):
        return Decision(action=Action.MOVE, reason=choice.reason, tier=standby[-1].tier, promote_at=at)
    if not standby:
        return Decision(action=Action.START, reason=choice.reason, tier=_target(snapshot, choice).name, promote_at=at)
    return _impatient(snapshot, choice, standby[-1], Action.KEEP)


def _queued_dependable(snapshot: Snapshot) -> list[Queued]:
    """What is queued and would keep the promise, by rank; a promotion that names a tier wants that one."""
    named = snapshot.promotion_tier
    good = [queued for queued in snapshot.queued if _dependable(snapshot, queued) and named in (None, queued.tier)]
    return sorted(good, key=lambda queued: _rank(snapshot, queued.tier))


def _start(snapshot: Snapshot, choice: Choice) -> Decision:
    """Nothing is live or queued."""
    ready = _not_before(snapshot)
    if ready and snapshot.now < ready and not choice.dependable:
        reason = f"{snapshot.barren} attempts in a row brought no new checkpoint: waiting until {ready:%H:%M:%S} UTC"
        return Decision(action=Action.WAIT, reason=reason, look_again=ready, promote_at=choice.at)
    tier = _target(snapshot, choice)
    return Decision(action=Action.START, tier=tier.name, reason=choice.reason, promote_at=choice.at)


def _not_before(snapshot: Snapshot) -> datetime | None:
    """A storm of reclaims or failed starts must not use up a budget in a minute."""
    extra = snapshot.barren - FREE_FAILURES
    if extra < 0 or snapshot.last_ended_at is None:
        return None
    return snapshot.last_ended_at + timedelta(seconds=min(BACKOFF_SECONDS * 2.0**extra, BACKOFF_CAP_SECONDS))


def _queue(snapshot: Snapshot, choice: Choice) -> Decision:
    """Nothing is live, something is queued: wait for it, or ask the next tier as well."""
    if choice.dependable and not _queued_dependable(snapshot):
        return Decision(
            action=Action.START, tier=_target(snapshot, choice).name, reason=choice.reason, promote_at=choice.at
        )
    last = max(snapshot.queued, key=lambda queued: _rank(snapshot, queued.tier))
    return _impatient(snapshot, choice, last, Action.WAIT)


def _impatient(snapshot: Snapshot, choice: Choice, last: Queued, otherwise: Action) -> Decision:
    """Ask the next tier as well once the last one has been waited for long enough."""
    following, patience = _following(snapshot, last.tier), _patience(snapshot, last, choice)
    stay = Decision(action=otherwise, reason=choice.reason, tier=snapshot.live, promote_at=choice.at)
    if following is None or last.runs or patience is None:
        return stay
    waited = last.waited_seconds or 0.0
    if waited >= patience:
        reason = f"{last.tier} gave no machine for {words(waited)}"
        return Decision(action=Action.START, tier=following.name, reason=reason, promote_at=choice.at)
    return replace(stay, look_again=snapshot.now + timedelta(seconds=patience - waited))


def _patience(snapshot: Snapshot, queued: Queued, choice: Choice) -> float | None:
    """Seconds in RUNNABLE before the next tier is asked as well; a promotion waits no longer than slack allows."""
    tier = snapshot.tier(queued.tier)
    patience = tier.max_wait_seconds if tier else None
    if choice.dependable and snapshot.slack_seconds is not None and tier and tier.dependable:
        spare = max(snapshot.slack_seconds, 0.0) + (queued.waited_seconds or 0.0)
        patience = spare if patience is None else min(patience, spare)
    return patience


def _dependable(snapshot: Snapshot, queued: Queued) -> bool:
    tier = snapshot.tier(queued.tier)
    return tier is not None and tier.dependable


def _rank(snapshot: Snapshot, name: str) -> int:
    names = [tier.name for tier in snapshot.tiers]
    return names.index(name) if name in names else -1
