"""How a trainer is brought to its end: told, asked, killed, each at its time. Pure.

A trainer that listens is told first (``run.stopping``); SIGTERM follows when it does not leave by itself. One that
handles SIGTERM, or does not listen at all, gets SIGTERM at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

UNKNOWN_SAVE_SECONDS = 15.0
"""What a save is taken to need before one was made."""
MARGIN_SECONDS = 10.0
LEAST_MARGIN_SECONDS = 2.0
"""A trainer learns up to a quarter of a second later that it is told, and ends its step before it saves."""
SOFT_SHARE = 0.4
"""Of the time there is: how long a trainer that was told may take before SIGTERM."""
KILL_SHARE = 0.65
"""Of the time there is: when it is killed, so that its last save still gets into the store."""
FENCED_SECONDS = 10.0


class Step(StrEnum):
    """One measure, mildest first."""

    TELL = "tell"
    TERM = "term"
    KILL = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPlan:
    """When each measure is due; those that were taken are gone from it."""

    at: Mapping[Step, float] = field(default_factory=dict)

    def merged(self, other: StopPlan, taken: frozenset[Step]) -> StopPlan:
        """Return the earlier of two plans, measure by measure, without those already taken."""
        steps = (self.at.keys() | other.at.keys()) - taken
        return StopPlan(
            at={step: min(self.at.get(step, math.inf), other.at.get(step, math.inf)) for step in Step if step in steps}
        )

    def due(self, now: float) -> list[Step]:
        """Return the measures whose time has come, mildest first."""
        return [step for step in Step if self.at.get(step, math.inf) <= now]

    @property
    def next_at(self) -> float:
        """When the next measure is due; infinity: never."""
        return min(self.at.values(), default=math.inf)


def plan(*, begin: float, end: float, gently: bool) -> StopPlan:
    """Return a plan for a trainer that has to be gone, and its last save committed, between two instants.

    :param gently: it listens and would die of SIGTERM.
    """
    span = max(0.0, end - begin)
    term = begin + SOFT_SHARE * span if gently else begin
    return StopPlan(at={Step.TELL: begin, Step.TERM: term, Step.KILL: begin + KILL_SHARE * span})


def seconds_needed(save_seconds: float | None, left: float) -> float:
    """Return how much of a notice the last save needs: twice what saves take, and a margin.

    Before the first save nobody knows; half of the notice is kept at most.
    """
    if save_seconds is None:
        return min(2 * UNKNOWN_SAVE_SECONDS + MARGIN_SECONDS, left / 2)
    # The margin shrinks with the notice: there are shorter ones than two minutes.
    return min(2 * save_seconds + max(LEAST_MARGIN_SECONDS, min(MARGIN_SECONDS, left / 6)), left)
