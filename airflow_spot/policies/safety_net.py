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
    and another is needed then (Wu et al., NSDI 2024). A spot attempt that trains is left alone: it was entered with
    two changeovers to spare, and while it trains the slack does not shrink. Should it stand still, its last safe moment
    is one changeover before the work no longer fits.

    :param inner: the policy for the time before.
    """

    inner: Policy
    name: ClassVar[str] = "safety_net"

    def choose(self, snapshot: Snapshot) -> Choice:
        """Return the earlier of the two rules."""
        choice = self.inner.choose(snapshot)
        if snapshot.left_seconds is None or snapshot.work_left_seconds is None:
            return choice
        changeovers = 1.0 if snapshot.live is not None else 2.0
        need = snapshot.work_left_seconds + changeovers * snapshot.changeover_seconds
        net = snapshot.before_deadline(need)
        at = net if snapshot.live is not None or choice.at is None else min(net, choice.at)
        if choice.dependable or snapshot.live is not None or snapshot.now < net:
            return Choice(dependable=choice.dependable, reason=choice.reason, at=at)
        left, work = words(snapshot.left_seconds), words(snapshot.work_left_seconds)
        reason = f"last safe moment: {left} are left for {work} of work and two changeovers of "
        reason += words(snapshot.changeover_seconds)
        return Choice(dependable=True, reason=reason, at=at)

    def params(self) -> dict[str, float | str | bool]:
        """Return nothing: the net is always on and never named."""
        return {}
