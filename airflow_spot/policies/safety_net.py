"""The net under every policy: dependable capacity at the last safe moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from airflow_spot.core.snapshot import Choice, Policy, Snapshot
from airflow_spot.durations import words


@dataclass(frozen=True, slots=True)
class SafetyNet:
    """Let the inner policy choose until waiting any longer could miss the deadline.

    Idle, that moment is when time left ≤ work left + 2 changeovers: a spot start may use up one changeover and be lost,
    and another is needed then (Wu et al., NSDI 2024). On spot it is when time left ≤ work left + 1 changeover, but only
    for an attempt that is still starting, cannot finish in time at its own rate, or has committed nothing for longer
    than a changeover; one that trains well is left alone, for while it does the slack does not shrink.

    :param inner: the policy for the time before.
    """

    inner: Policy
    name: ClassVar[str] = "safety_net"

    def choose(self, snapshot: Snapshot) -> Choice:
        """Return the earlier of the two rules."""
        choice = self.inner.choose(snapshot)
        if snapshot.left_seconds is None or snapshot.work_left_seconds is None:
            return choice
        changeovers = 1 if snapshot.live is not None else 2
        net = snapshot.before_deadline(snapshot.work_left_seconds + changeovers * snapshot.changeover_seconds)
        at = net if snapshot.live is not None or choice.at is None else min(net, choice.at)
        if choice.dependable or snapshot.now < net or (snapshot.live is not None and _trains_well(snapshot)):
            return Choice(dependable=choice.dependable, reason=choice.reason, at=at)
        return Choice(dependable=True, reason=_reason(snapshot, changeovers), at=at)

    def params(self) -> dict[str, float | str | bool]:
        """Return nothing: the net is always on and never named."""
        return {}


def _trains_well(snapshot: Snapshot) -> bool:
    left = snapshot.left_seconds or 0.0
    in_time = snapshot.live_left_seconds is None or snapshot.live_left_seconds <= left
    commits = snapshot.live_uncommitted_seconds <= snapshot.changeover_seconds
    return snapshot.live_runs and in_time and commits


def _reason(snapshot: Snapshot, changeovers: int) -> str:
    left, work = words(snapshot.left_seconds or 0.0), words(snapshot.work_left_seconds or 0.0)
    count = "one changeover" if changeovers == 1 else "two changeovers"
    return f"last safe moment: {left} are left for {work} of work and {count} of {words(snapshot.changeover_seconds)}"
