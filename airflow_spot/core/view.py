"""One look at a training run: the record, what is seen of the world, and the policy. What the rules work on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from airflow_spot.core.seen import AttemptSeen, Seen
from airflow_spot.core.snapshot import Decision, Snapshot
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.rundir.values import OPEN, Attempt, AttemptState, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the rules look at.

    :param uri: the run directory.
    :param decide: the policy bound to :func:`airflow_spot.core.decide.decide`.
    :param job_name: the one name under which the job of an attempt number can be found again.
    """

    uri: str
    record: Record
    spec: TrainingSpec
    seen: Seen
    decide: Callable[[Snapshot], Decision]
    job_name: Callable[[int], str]

    @property
    def now(self) -> datetime:
        """The moment of the look, by AWS's clock."""
        return self.seen.now

    @property
    def live(self) -> Attempt | None:
        """The one attempt that may train and commit."""
        return next((item for item in self.record.attempts if item.state is AttemptState.LIVE), None)

    @property
    def leaving(self) -> Attempt | None:
        """An attempt that was live and has not ended: nobody else may go live before it has."""
        return next(
            (item for item in self.record.attempts if item.state is AttemptState.CLOSING and item.live_at), None
        )

    @property
    def queued(self) -> tuple[Attempt, ...]:
        """Open attempts that are not live: on their way to a machine, or standing by on one."""
        return tuple(
            item for item in self.record.attempts if item.state in OPEN and item.state is not AttemptState.LIVE
        )

    def each(self) -> Iterator[tuple[Attempt, AttemptSeen]]:
        """Return every attempt with what is known of it."""
        return ((item, self.seen.of(item.number)) for item in self.record.attempts)

    def last_live(self) -> Attempt | None:
        """Return the attempt that is live, or was live last."""
        return next((item for item in self.record.attempts if item.number == self.record.last_live), None)
