"""What a decision is made from, and the decision. Values only; spans in seconds, instants in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from airflow_spot.core.model import Market, Tier
from airflow_spot.core.outcomes import Outcome


class Action(StrEnum):
    """What to do now."""

    KEEP = "keep"
    """An attempt is live where it should be."""
    WAIT = "wait"
    """Nothing is live; what is queued stays queued."""
    START = "start"
    """Submit one more attempt."""
    MOVE = "move"
    """An attempt is live, and the training belongs elsewhere."""
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, where, why in plain words, and when to look again.

    :param promote_at: the instant at which the rule would go to dependable capacity if nothing changed before.
    :param alone: beside the live attempt nothing queued is wanted.
    """

    action: Action
    reason: str
    tier: str | None = None
    look_again: datetime | None = None
    promote_at: datetime | None = None
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """An attempt that is open and not live.

    :param waited_seconds: its time in RUNNABLE so far; None while it is not there.
    :param runs: its container has begun.
    """

    tier: str
    waited_seconds: float | None = None
    runs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a policy may look at.

    :param deadline: when training has to be done: the user's deadline minus the time of what follows.
    :param window_seconds: from the start of this generation to the deadline (R0).
    :param expected_seconds: uninterrupted on the dependable tier (C0).
    :param work_left_seconds: on the dependable tier, from the last committed checkpoint (C).
    :param changeover_seconds: what a move costs in time at worst (d).
    :param live_runs: the live attempt has reported a step, so its start-up is over.
    :param live_left_seconds: work left at the rate of the live attempt's own tier.
    :param live_uncommitted_seconds: since its last commit, or since its trainer began.
    :param promotion_why: a promotion stands that was asked for, and why; None: none was.
    :param promotion_tier: the tier it named, if it named one.
    :param barren: attempts in a row that ended without a new checkpoint.
    """

    now: datetime
    tiers: tuple[Tier, ...]
    deadline: datetime | None = None
    window_seconds: float | None = None
    expected_seconds: float | None = None
    work_left_seconds: float | None = None
    changeover_seconds: float = 900.0
    on_infeasible: str = "promote"
    live: str | None = None
    live_runs: bool = False
    live_left_seconds: float | None = None
    live_uncommitted_seconds: float = 0.0
    queued: tuple[Queued, ...] = ()
    unusable: frozenset[str] = frozenset()
    last_tier: str | None = None
    last_outcome: Outcome | None = None
    last_ended_at: datetime | None = None
    barren: int = 0
    attempts: int = 0
    reclaims: int = 0
    promote_after_reclaims: int | None = None
    promotion_why: str | None = None
    promotion_tier: str | None = None
    stay_until: datetime | None = None

    @property
    def left_seconds(self) -> float | None:
        """Time to the deadline (R)."""
        return None if self.deadline is None else (self.deadline - self.now).total_seconds()

    @property
    def slack_seconds(self) -> float | None:
        """Time to the deadline minus work left minus one changeover."""
        if self.left_seconds is None or self.work_left_seconds is None:
            return None
        return self.left_seconds - self.work_left_seconds - self.changeover_seconds

    @property
    def usable(self) -> tuple[Tier, ...]:
        """The tiers that have not proved impossible."""
        return tuple(tier for tier in self.tiers if tier.name not in self.unusable)

    @property
    def first_dependable(self) -> Tier | None:
        """Where a promotion goes first: the most preferred usable tier whose market is not spot."""
        return next((tier for tier in self.usable if tier.dependable), None)

    def tier(self, name: str | None) -> Tier | None:
        """Return the tier of that name."""
        return next((tier for tier in self.tiers if tier.name == name), None)

    def on(self, name: str | None) -> Market | None:
        """Return the market of the tier of that name."""
        tier = self.tier(name)
        return tier.market if tier else None

    def before_deadline(self, seconds: float) -> datetime:
        """Return the instant that many seconds before the deadline; only where there is one."""
        if self.deadline is None:
            raise ValueError("there is no deadline to count from")
        return self.deadline - timedelta(seconds=max(seconds, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a policy wants: dependable capacity now, or not yet.

    :param at: when it would want dependable capacity if nothing changed before.
    """

    dependable: bool
    reason: str
    at: datetime | None = None


class Policy(Protocol):
    """A pure rule from a snapshot to a choice; it explains itself, and knows its JSON form."""

    @property
    def name(self) -> str:
        """Return the name that a record keeps."""
        ...

    def choose(self, snapshot: Snapshot) -> Choice:
        """Return whether training belongs on dependable capacity now, and why."""
        ...

    def params(self) -> dict[str, float | str | bool]:
        """Return what :func:`airflow_spot.policies.from_json` needs to build it again."""
        ...
