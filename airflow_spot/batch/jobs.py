"""DescribeJobs in all its shapes, turned into :class:`airflow_spot.core.seen.JobSeen`. Pure.

Where a detail sits depends on the kind of job: ``attempts[].container``, ``attempts[].taskProperties[].containers[]``,
``eksAttempts[]`` with ``eksProperties.podProperties`` for the current one, or ``nodeProperties``. Absent stays None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_spot.batch.requests import ENV_RUN
from airflow_spot.core.seen import JobSeen, JobStatus

LOG_GROUP = "/aws/batch/job"
_INSTANCE = re.compile(r"\bi-[0-9a-f]{8,17}\b")
_Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeen:
    """One try that Batch itself made of a job; with our retry strategy there is one."""

    status_reason: str = ""
    container_reason: str = ""
    exit_code: int | None = None
    placement_arn: str | None = None
    node: str | None = None
    log_streams: tuple[str, ...] = ()
    started_at: datetime | None = None
    stopped_at: datetime | None = None


def job_seen(detail: _Json) -> JobSeen:
    """Return a job of DescribeJobs, or of a Batch event's ``detail``, in our words."""
    attempts = attempts_of(detail)
    current = _current(detail)
    last = attempts[-1] if attempts else current
    status_reason = str(detail.get("statusReason") or last.status_reason)
    return JobSeen(
        ref=str(detail["jobId"]),
        name=str(detail.get("jobName", "")),
        status=_status(str(detail["status"])),
        queue=str(detail.get("jobQueue", "")),
        status_reason=status_reason,
        container_reason=last.container_reason or current.container_reason,
        exit_code=last.exit_code if last.exit_code is not None else current.exit_code,
        is_terminated=bool(detail.get("isTerminated", False)),
        is_cancelled=bool(detail.get("isCancelled", False)),
        attempts=len(attempts),
        created_at=_instant(detail.get("createdAt")),
        started_at=_instant(detail.get("startedAt")) or last.started_at,
        stopped_at=_instant(detail.get("stoppedAt")) or last.stopped_at,
        log_streams=_distinct(stream for seen in (*attempts, current) for stream in seen.log_streams),
        log_group=_log_group(detail),
        placement_arn=last.placement_arn or current.placement_arn,
        instance=instance_in(status_reason) or instance_in(last.status_reason),
        environment=_environment(detail),
        raw=dict(detail),
    )


def _status(text: str) -> JobStatus:
    """Return a status; one that AWS may add later is not terminal, so the job is looked at again."""
    return JobStatus(text) if text in JobStatus.__members__ else JobStatus.PENDING


def instance_in(text: str) -> str | None:
    """Return the EC2 instance id that a text names."""
    match = _INSTANCE.search(text)
    return match[0] if match else None


def attempts_of(detail: _Json) -> tuple[AttemptSeen, ...]:
    """Return the tries that Batch made of a job, oldest first."""
    return tuple(_attempt(item) for item in detail.get("attempts") or detail.get("eksAttempts") or ())


def _attempt(item: _Json) -> AttemptSeen:
    holder, containers = _containers(item)
    main = _main(containers)
    return AttemptSeen(
        status_reason=str(item.get("statusReason") or ""),
        container_reason=str(main.get("reason") or ""),
        exit_code=main.get("exitCode"),
        placement_arn=holder.get("containerInstanceArn") or holder.get("taskArn"),
        node=item.get("nodeName"),
        log_streams=_distinct(str(one["logStreamName"]) for one in containers if one.get("logStreamName")),
        started_at=_instant(item.get("startedAt")),
        stopped_at=_instant(item.get("stoppedAt")),
    )


def _containers(item: _Json) -> tuple[_Json, list[_Json]]:
    """Return what carries the ARNs of a try, and its containers."""
    if tasks := item.get("taskProperties"):
        return tasks[0], [container for task in tasks for container in task.get("containers") or ()]
    if "container" in item:
        container = item.get("container") or {}
        return container, [container]
    return item, [*(item.get("initContainers") or ()), *(item.get("containers") or ())]


def _main(containers: list[_Json]) -> _Json:
    """Return the container that says how the try ended: one that failed, else the first."""
    failed = (one for one in containers if one.get("exitCode") or (one.get("reason") and "exitCode" not in one))
    return next(failed, containers[0] if containers else {})


def _current(detail: _Json) -> AttemptSeen:
    """Return the try that is under way, which only the job's own properties show."""
    tasks = (detail.get("ecsProperties") or {}).get("taskProperties")
    if tasks:
        return _attempt({"taskProperties": tasks})
    if pod := (detail.get("eksProperties") or {}).get("podProperties"):
        return _attempt(pod)
    return _attempt({"container": detail.get("container") or {}})


def _all_containers(detail: _Json) -> Iterator[_Json]:
    yield detail.get("container") or {}
    for task in (detail.get("ecsProperties") or {}).get("taskProperties") or ():
        yield from task.get("containers") or ()
    yield from ((detail.get("eksProperties") or {}).get("podProperties") or {}).get("containers") or ()
    for node in (detail.get("nodeProperties") or {}).get("nodeRangeProperties") or ():
        yield node.get("container") or {}
        for task in (node.get("ecsProperties") or {}).get("taskProperties") or ():
            yield from task.get("containers") or ()


def _environment(detail: _Json) -> dict[str, str]:
    """Return the environment of the container that bears our training run, else of the first that has one."""
    found: list[dict[str, str]] = []
    for container in _all_containers(detail):
        pairs = container.get("environment") or container.get("env") or ()
        found.append({str(pair["name"]): str(pair.get("value", "")) for pair in pairs})
    ours = (one for one in found if ENV_RUN in one)
    return next(ours, next((one for one in found if one), {}))


def _log_group(detail: _Json) -> str:
    for container in _all_containers(detail):
        options = (container.get("logConfiguration") or {}).get("options") or {}
        if group := options.get("awslogs-group"):
            return str(group)
    return LOG_GROUP


def _instant(milliseconds: Any) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None


def _distinct(items: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
