"""What the loop sees of the world at one moment, in our words. Values only; the adapters fill them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_spot.core.outcomes import Outcome
from airflow_spot.rundir.values import Claim, End, Heartbeat, Request, Verdict


class JobStatus(StrEnum):
    """The life of an AWS Batch job."""

    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    RUNNABLE = "RUNNABLE"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


TERMINAL = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """One job as DescribeJobs shows it, whatever its shape (container, task properties, EKS, nodes).

    :param exit_code: None where Batch gives none; None is not 0.
    :param log_streams: of every attempt and container, oldest first.
    :param placement_arn: container instance or task ARN of the last attempt; its middle segment names the cluster.
    """

    ref: str
    name: str
    status: JobStatus
    queue: str = ""
    status_reason: str = ""
    container_reason: str = ""
    exit_code: int | None = None
    is_terminated: bool = False
    is_cancelled: bool = False
    attempts: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    stopped_at: datetime | None = None
    log_streams: tuple[str, ...] = ()
    log_group: str = "/aws/batch/job"
    placement_arn: str | None = None
    instance: str | None = None
    """EC2 instance id, where the texts name one."""
    environment: dict[str, str] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def terminal(self) -> bool:
        """Whether Batch will not change it any more."""
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeen:
    """What is known of one attempt at one moment.

    :param job: its job; None where Batch does not know one.
    :param found: jobs of its name, looked up only while nobody knows whether one exists.
    :param verdict: why it ended; filled only once it has.
    :param heartbeat_age: seconds since the store took its last heartbeat.
    :param proved: a plain image's proof of success is there (``success_object``).
    :param blocked: why Batch says its job waits, in words; ``never_fits`` where waiting cannot help.
    """

    job: JobSeen | None = None
    found: tuple[JobSeen, ...] = ()
    claims: tuple[Claim, ...] = ()
    end: End | None = None
    heartbeat: Heartbeat | None = None
    heartbeat_age: float | None = None
    verdict: Verdict | None = None
    proved: bool = False
    blocked: str | None = None
    never_fits: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one look at the world showed.

    :param readable_seconds: for how long this caller has been able to read the store without a break.
    :param tip: id of the checkpoint that the next pin would be; meaningful only where ``tip_read``.
    """

    now: datetime
    attempts: dict[int, AttemptSeen] = field(default_factory=dict)
    requests: tuple[Request, ...] = ()
    readable_seconds: float = 0.0
    tip_read: bool = False
    tip: str | None = None

    def of(self, number: int) -> AttemptSeen:
        """Return what is known of an attempt."""
        return self.attempts.get(number, NOTHING)


NOTHING = AttemptSeen()
