"""What the loop needs of a place to run jobs. AWS Batch is one; others may follow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from airflow_spot.batch.classify import Blocked
from airflow_spot.batch.requests import ENV_ATTEMPT, ENV_RUN
from airflow_spot.core.seen import JobSeen
from airflow_spot.rundir.values import End, Heartbeat, Verdict


class Backend(Protocol):
    """What the loop needs of a place to run jobs; :class:`airflow_spot.batch.client.BatchBackend` is one."""

    def now(self) -> datetime:
        """Return the vendor's present."""
        ...

    def describe(self, refs: Sequence[str], *, max_age: float = 0.0) -> dict[str, JobSeen]:
        """Return the jobs that are known, by id."""
        ...

    def find(self, name: str, queue: str, since: datetime | None = None) -> list[JobSeen]:
        """Return the jobs of exactly that name."""
        ...

    def submit(self, request: dict[str, Any]) -> str:
        """Submit once and return the job id."""
        ...

    def terminate(self, ref: str, reason: str) -> None:
        """End a job; harmless when repeated."""
        ...

    def verdict(
        self,
        job: JobSeen,
        *,
        market: str,
        end: End | None,
        agent: bool,
        trusted: bool,
        heartbeat: Heartbeat | None = None,
    ) -> Verdict:
        """Return why a job ended."""
        ...

    def blocked(self, job: JobSeen, now: datetime) -> Blocked | None:
        """Return why a job waits."""
        ...

    def definition(self, name: str) -> dict[str, Any] | None:
        """Return a job definition."""
        ...

    def tail(self, job: JobSeen, lines: int = 50) -> list[str]:
        """Return the last lines of a job's log."""
        ...


def is_ours(job: JobSeen, uri: str, number: int) -> bool:
    """Whether Batch shows our run directory and attempt in a job's environment: no other job is acted on."""
    return (job.environment.get(ENV_RUN), job.environment.get(ENV_ATTEMPT)) == (uri, str(number))
