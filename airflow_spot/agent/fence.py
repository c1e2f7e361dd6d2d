"""What the agent may do, from what the run directory shows. Pure.

The agent obeys its own entry in the record, never a comparison of attempt numbers. Reading the record and finding
nothing are different things: an unreadable one changes nothing at first, a missing entry ends the attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_spot.durations import words
from airflow_spot.rundir.values import Attempt, AttemptState, Claim, Record


class Order(StrEnum):
    """What to do now."""

    GO_ON = "go_on"
    """As before: nothing is known that changes anything."""
    HOLD = "hold"
    TRAIN = "train"
    SAVE_AND_LEAVE = "save_and_leave"
    LEAVE = "leave"
    """Without a commit: another attempt may be live already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """An order and its grounds.

    :param reason: what the end file will say, where the order is to leave.
    :param may_commit: whether a checkpoint of this agent counts at this moment.
    """

    order: Order
    reason: str = ""
    message: str = ""
    may_commit: bool = False
    pin: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one look at the run directory showed.

    :param record: None with ``readable``: there is none.
    :param claims: all that lie under this attempt.
    :param unread_seconds: since the record was last read, or since the agent began.
    :param ever_read: whether it has been read at all.
    :param lease_seconds: age of ``owner.json`` by the store's clock, or how long it could not be read.
    """

    record: Record | None
    readable: bool
    claims: tuple[Claim, ...] = ()
    unread_seconds: float = 0.0
    ever_read: bool = True
    lease_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who asks: attempt, job, incarnation, and the two limits that apply to it."""

    attempt: int
    job: str
    incarnation: int
    orphan_after_seconds: float
    record_patience_seconds: float


_HOLDING = frozenset({AttemptState.INTENDED, AttemptState.SUBMITTED, AttemptState.REFUSED, AttemptState.STANDBY})


def rule(sight: Sight, me: Identity) -> Ruling:
    """Return what an agent is to do."""
    ruling = _by_claims(sight, me) or _by_reading(sight, me)
    if ruling is not None:
        return ruling
    entry = own_entry(sight.record, me.attempt)
    if sight.record is None:
        return _fenced("there is no run.json in the run directory")
    if entry is None:
        return _fenced(f"the record has no attempt {me.attempt}")
    if entry.state in (AttemptState.ENDED, AttemptState.UNRESOLVED):
        return _fenced(f"the record says that attempt {me.attempt} is {entry.state}")
    return _by_wish(sight, sight.record, entry, me) or _by_state(entry)


def own_entry(record: Record | None, number: int) -> Attempt | None:
    """Return an attempt's entry in the record."""
    return next((attempt for attempt in record.attempts if attempt.number == number), None) if record else None


def _fenced(message: str) -> Ruling:
    return Ruling(order=Order.LEAVE, reason="fenced", message=message)


def _by_claims(sight: Sight, me: Identity) -> Ruling | None:
    other = next((claim.job for claim in sight.claims if claim.job != me.job), None)
    if other is not None:
        return _fenced(f"job {other} has claimed attempt {me.attempt}")
    newest = max((claim.incarnation for claim in sight.claims), default=0)
    if newest > me.incarnation:
        return _fenced(f"incarnation {newest} of this job has begun; this is {me.incarnation}")
    return None


def _by_reading(sight: Sight, me: Identity) -> Ruling | None:
    if sight.readable:
        return None
    waited = words(sight.unread_seconds)
    if not sight.ever_read and sight.unread_seconds >= me.record_patience_seconds:
        return _fenced(f"the record could not be read for {waited} since the start; an unfenced trainer must not begin")
    return _by_lease(sight, me, may_commit=False) or Ruling(
        order=Order.GO_ON, message=f"the record could not be read for {waited}"
    )


def _by_lease(sight: Sight, me: Identity, *, may_commit: bool) -> Ruling | None:
    if sight.lease_seconds < me.orphan_after_seconds:
        return None
    message = f"nobody in Airflow has renewed the lease for {words(sight.lease_seconds)}"
    return Ruling(order=Order.SAVE_AND_LEAVE, reason="lease", message=message, may_commit=may_commit)


def _by_wish(sight: Sight, record: Record, entry: Attempt, me: Identity) -> Ruling | None:
    counts = entry.live_at is not None
    if record.desired.state == "stopped":
        message = f"stopped by {record.desired.who or 'Airflow'}: {record.desired.why or 'no reason given'}"
        return Ruling(order=Order.SAVE_AND_LEAVE, reason="stopped", message=message, may_commit=counts)
    if entry.state is AttemptState.CLOSING:
        order = Order.SAVE_AND_LEAVE if counts else Order.LEAVE
        message = entry.closing_why or "the record asks this attempt to close"
        return Ruling(order=order, reason="closing", message=message, may_commit=counts)
    return _by_lease(sight, me, may_commit=counts)


def _by_state(entry: Attempt) -> Ruling:
    if entry.state in _HOLDING:
        return Ruling(order=Order.HOLD, message=f"attempt {entry.number} is {entry.state}")
    return Ruling(order=Order.TRAIN, may_commit=True, pin=entry.pin)
