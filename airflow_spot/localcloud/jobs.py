"""Jobs and their attempts, and how the API shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from airflow_spot.localcloud.hosts import Host
from airflow_spot.localcloud.resources import JSON, Definition, Need
from airflow_spot.localcloud.runner import Handle

ESSENTIAL_EXITED = "Essential container in task exited"
TIMED_OUT = "Job attempt duration exceeded timeout"
START_FAILED = "Task failed to start"
TERMINAL = ("SUCCEEDED", "FAILED")
STOP_TIMEOUT = 30.0

_PARAMETER = re.compile(r"Ref::([A-Za-z0-9_-]+)")


def milliseconds(seconds: float) -> int:
    """Return a time as the Batch API writes it."""
    return round(seconds * 1000)


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One start of a job on a host. ``code`` is None where no container told its exit code."""

    number: int
    host: Host
    task: str
    stream: str
    placed: float
    starting_for: float
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    """Which start this is on each of its markets."""
    handle: Handle | None = None
    started: float | None = None
    stopped: float | None = None
    status_reason: str | None = None
    code: int | None = None
    reason: str | None = None
    kill_at: float | None = None
    """When SIGKILL follows the SIGTERM that was sent."""
    stop_reason: str | None = None
    """Why SIGTERM was sent; None: it was not."""
    retryable: bool = True


@dataclass(slots=True, kw_only=True)
class Job:
    """One job through its life."""

    id: str
    arn: str
    name: str
    queue: str
    queue_arn: str
    definition: Definition
    request: JSON
    """As SubmitJob got it."""
    created: float
    serial: int
    status: str = "SUBMITTED"
    since: float = 0.0
    """When it came into its status."""
    status_reason: str | None = None
    attempts: list[Attempt] = field(default_factory=list)
    current: Attempt | None = None
    stop_reason: str | None = None
    """Text of TerminateJob or CancelJob."""
    is_terminated: bool = False
    is_cancelled: bool = False
    blocked_since: float | None = None
    front: bool = False
    """Whether it is a retry, which goes before the queue."""
    stopped: float | None = None

    @property
    def terminal(self) -> bool:
        """Whether its life is over."""
        return self.status in TERMINAL

    def move(self, status: str, now: float) -> None:
        """Bring it into another status."""
        self.status, self.since = status, now
        self.status_reason, self.blocked_since = None, None

    @property
    def overrides(self) -> JSON:
        """What the request overrides of the container that runs, of either shape."""
        if not self.definition.ecs:
            return dict(self.request.get("containerOverrides") or {})
        tasks = (self.request.get("ecsPropertiesOverride") or {}).get("taskProperties") or [{}]
        named = {each.get("name"): each for each in tasks[0].get("containers") or []}
        return dict(named.get(self.definition.container.get("name"), {}))

    @property
    def parameters(self) -> dict[str, str]:
        """Parameters of the definition and, before them, of the request."""
        return {**(self.definition.body.get("parameters") or {}), **(self.request.get("parameters") or {})}

    @property
    def command(self) -> list[str]:
        """The command with its parameters put in; a parameter that nobody gave stays as it is written."""
        given = self.overrides.get("command") or self.definition.container.get("command") or []
        values = self.parameters
        return [_PARAMETER.sub(lambda m: str(values.get(m[1], m[0])), word) for word in given]

    @property
    def environment(self) -> dict[str, str]:
        """The user's environment: the definition's with the overrides."""
        pairs = [*(self.definition.container.get("environment") or []), *(self.overrides.get("environment") or [])]
        return {pair["name"]: pair.get("value", "") for pair in pairs}

    @property
    def requirements(self) -> list[JSON]:
        """Resource requirements, overridden by type."""
        of_definition = self.definition.container.get("resourceRequirements") or []
        merged = {each["type"]: each["value"] for each in of_definition}
        merged |= {each["type"]: each["value"] for each in self.overrides.get("resourceRequirements") or []}
        return [{"type": kind, "value": str(value)} for kind, value in merged.items()]

    @property
    def need(self) -> Need:
        """What its host must hold; the deprecated ``vcpus`` and ``memory`` count where nothing newer is said."""
        wanted = {each["type"]: float(each["value"]) for each in self.requirements}
        older = {**self.definition.container, **self.overrides}
        return Need(
            vcpus=wanted.get("VCPU", float(older.get("vcpus") or 1)),
            memory=int(wanted.get("MEMORY", float(older.get("memory") or 512))),
            gpus=int(wanted.get("GPU", 0)),
        )

    @property
    def retry_strategy(self) -> JSON:
        """The request's strategy in place of the definition's."""
        chosen = self.request.get("retryStrategy") or self.definition.body.get("retryStrategy") or {}
        return {"attempts": int(chosen.get("attempts", 1)), "evaluateOnExit": chosen.get("evaluateOnExit") or []}

    @property
    def timeout(self) -> float | None:
        """Seconds that an attempt may run."""
        chosen = self.request.get("timeout") or self.definition.body.get("timeout") or {}
        seconds = chosen.get("attemptDurationSeconds")
        return None if seconds is None else float(seconds)

    @property
    def stop_timeout(self) -> float:
        """Seconds between SIGTERM and SIGKILL; only task properties can set it."""
        return (
            float(self.definition.container.get("stopTimeout") or STOP_TIMEOUT) if self.definition.ecs else STOP_TIMEOUT
        )

    @property
    def last(self) -> Attempt | None:
        """The attempt that runs, else the last that did."""
        return self.current or (self.attempts[-1] if self.attempts else None)


def wants_retry(job: Job, attempt: Attempt) -> bool:
    """Return whether Batch starts a failed attempt's job again, by its retry strategy.

    The first entry whose every condition matches decides; none means retry. Only what was not stopped is asked.
    """
    strategy = job.retry_strategy
    if not attempt.retryable or len(job.attempts) >= strategy["attempts"]:
        return False
    for entry in strategy["evaluateOnExit"]:
        if _matches(entry, attempt):
            return str(entry["action"]).upper() == "RETRY"
    return True


def _matches(entry: JSON, attempt: Attempt) -> bool:
    code = "" if attempt.code is None else str(attempt.code)
    seen = {"onStatusReason": attempt.status_reason or "", "onReason": attempt.reason or "", "onExitCode": code}
    return all(_glob(str(entry[key]), text) for key, text in seen.items() if entry.get(key) is not None)


def _glob(pattern: str, text: str) -> bool:
    if pattern.endswith("*"):
        return text.lower().startswith(pattern[:-1].lower())
    return text.lower() == pattern.lower()


def detail(job: Job) -> JSON:
    """Return a job as DescribeJobs does."""
    shown: JSON = {
        "jobArn": job.arn,
        "jobName": job.name,
        "jobId": job.id,
        "jobQueue": job.queue_arn,
        "status": job.status,
        "attempts": [_attempt_detail(job, attempt) for attempt in job.attempts],
        "createdAt": milliseconds(job.created),
        "retryStrategy": job.retry_strategy,
        "dependsOn": job.request.get("dependsOn") or [],
        "jobDefinition": job.definition.arn,
        "parameters": job.parameters,
        "tags": {"resourceArn": job.arn, **(job.request.get("tags") or {})},
        "propagateTags": bool(job.request.get("propagateTags", job.definition.body.get("propagateTags", False))),
        "platformCapabilities": job.definition.body.get("platformCapabilities") or ["EC2"],
        "eksAttempts": [],
        "isCancelled": job.is_cancelled,
        "isTerminated": job.is_terminated,
    }
    shown |= _times(job)
    shown |= {"ecsProperties": _task(job)} if job.definition.ecs else {"container": _container(job)}
    return shown | _optional(job)


def _optional(job: Job) -> JSON:
    priority = job.request.get("schedulingPriorityOverride", job.definition.body.get("schedulingPriority"))
    optional = {
        "statusReason": job.status_reason,
        "timeout": None if job.timeout is None else {"attemptDurationSeconds": int(job.timeout)},
        "shareIdentifier": job.request.get("shareIdentifier"),
        "schedulingPriority": priority,
    }
    return {key: value for key, value in optional.items() if value is not None}


def _times(job: Job) -> JSON:
    last = job.last
    shown: JSON = {}
    if last is not None and last.started is not None and job.status not in {"RUNNABLE", "STARTING"}:
        shown["startedAt"] = milliseconds(last.started)
    if job.stopped is not None:
        shown["stoppedAt"] = milliseconds(job.stopped)
    return shown


def container_instance_arn(job: Job, attempt: Attempt) -> str:
    """Return the ARN that ECS gives the host."""
    prefix = job.arn.split(":job/")[0].replace(":batch:", ":ecs:")
    return f"{prefix}:container-instance/{attempt.host.cluster}/{attempt.host.container_instance}"


def task_arn(job: Job, attempt: Attempt) -> str:
    """Return the ARN of the attempt's ECS task."""
    prefix = job.arn.split(":job/")[0].replace(":batch:", ":ecs:")
    return f"{prefix}:task/{attempt.host.cluster}/{attempt.task}"


def _placement(job: Job, attempt: Attempt) -> JSON:
    return {"containerInstanceArn": container_instance_arn(job, attempt), "taskArn": task_arn(job, attempt)}


def _ending(attempt: Attempt) -> JSON:
    """Return exit code, reason and stream; a host that went away leaves no exit code and no reason."""
    ending: JSON = {"exitCode": attempt.code, "reason": attempt.reason}
    ending["logStreamName"] = attempt.stream if attempt.started is not None else None
    return {key: value for key, value in ending.items() if value is not None}


def _attempt_detail(job: Job, attempt: Attempt) -> JSON:
    shown: JSON = {"statusReason": attempt.status_reason}
    if attempt.started is not None:
        shown["startedAt"] = milliseconds(attempt.started)
    if attempt.stopped is not None:
        shown["stoppedAt"] = milliseconds(attempt.stopped)
    if not job.definition.ecs:
        return shown | {"container": {**_placement(job, attempt), **_ending(attempt), "networkInterfaces": []}}
    containers = [{"name": job.definition.container.get("name", "main"), **_ending(attempt), "networkInterfaces": []}]
    return shown | {"container": {}, "taskProperties": [{**_placement(job, attempt), "containers": containers}]}


def _container(job: Job) -> JSON:
    """Return the definition's container with what the request changed and what the last attempt added."""
    shown: JSON = {
        "volumes": [],
        "mountPoints": [],
        "ulimits": [],
        "networkInterfaces": [],
        "secrets": [],
        **job.definition.container,
        **_as_run(job),
    }
    last = job.last
    return shown if last is None else {**shown, **_placement(job, last), **_ending(last)}


def _as_run(job: Job) -> JSON:
    pairs = [{"name": name, "value": value} for name, value in job.environment.items()]
    return {"command": job.command, "environment": pairs, "resourceRequirements": job.requirements}


def _task(job: Job) -> JSON:
    task = dict(job.definition.body["ecsProperties"]["taskProperties"][0])
    main, last = job.definition.container, job.last
    shown = [
        {**each, **_as_run(job), **(_ending(last) if last else {})} if each.get("name") == main.get("name") else each
        for each in task["containers"]
    ]
    return {"taskProperties": [{**task, "containers": shown, **(_placement(job, last) if last else {})}]}


def summary(job: Job) -> JSON:
    """Return a job as ListJobs does: no tags, no attempts; the flags are there only when they are true."""
    last = job.attempts[-1] if job.attempts else None
    ending = {"exitCode": last.code, "reason": last.reason} if last is not None and job.terminal else {}
    shown: dict[str, Any] = {
        "jobArn": job.arn,
        "jobId": job.id,
        "jobName": job.name,
        "createdAt": milliseconds(job.created),
        "status": job.status,
        "jobDefinition": job.definition.arn,
        **_times(job),
    }
    if job.status_reason is not None:
        shown["statusReason"] = job.status_reason
    if ending := {key: value for key, value in ending.items() if value is not None}:
        shown["container"] = ending
    return shown
