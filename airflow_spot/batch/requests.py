"""Requests to AWS Batch as data. Pure: nothing is sent here."""

from __future__ import annotations

import hashlib
import re
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from airflow_spot.rundir.layout import CONTRACT, attempt_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_spot.core.model import Tier
    from airflow_spot.core.spec import TrainingSpec

ENV_RUN = "AIRFLOW_SPOT_RUN"
ENV_ATTEMPT = "AIRFLOW_SPOT_ATTEMPT"
ENV_CONTRACT = "AIRFLOW_SPOT_CONTRACT"
ENV_REGION = "AIRFLOW_SPOT_REGION"
ENV_KMS_KEY = "AIRFLOW_SPOT_KMS_KEY"
ENV_HEARTBEAT = "AIRFLOW_SPOT_HEARTBEAT_SECONDS"
ENV_ORPHAN_AFTER = "AIRFLOW_SPOT_ORPHAN_AFTER_SECONDS"

AGENT_COMMAND = ("spot-agent", "run")
STOP_PREFIX = "airflow-spot"
_AGENT_MODULE = "airflow_spot.agent"
_NAME_MAX, _REASON_MAX, _TIMEOUT_MIN = 128, 1024, 60
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


def run_token(run_uri: str) -> str:
    """Return ten hex digits that stand for a training run in names and stop reasons."""
    return hashlib.sha256(run_uri.rstrip("/").encode()).hexdigest()[:10]


def stop_token(run_uri: str) -> str:
    """Return how each of our own stop reasons for this training run begins."""
    return f"{STOP_PREFIX} {run_token(run_uri)}"


def stop_reason(run_uri: str, why: str) -> str:
    """Return the reason for TerminateJob that :mod:`airflow_spot.batch.classify` knows as our own."""
    return f"{stop_token(run_uri)}: {why}"[:_REASON_MAX]


def job_name(run_uri: str, run_key: str, attempt: int) -> str:
    """Return the one name under which the job of this attempt can be found again.

    :param run_key: gives the readable part; the token, not this part, tells training runs apart.
    """
    tail = f"-{run_token(run_uri)}-{attempt_name(attempt)}"
    slug = _NOT_IN_NAMES.sub("-", run_key).strip("-_")[: _NAME_MAX - len(tail)]
    return f"{slug or 'training'}{tail}"


def starts_agent(command: Sequence[str]) -> bool:
    """Whether a container command hands over to the agent, also through ``python -m`` or a shell's ``exec``."""
    words = list(command)
    if len(words) >= 3 and PurePath(words[0]).name in {"sh", "bash"} and re.fullmatch(r"-[a-z]*c", words[1]):
        words = _shell_words(words[2])
    if words[:1] == ["exec"]:
        words = words[1:]
    if words and PurePath(words[0]).name.startswith("python") and words[1:3] == ["-m", _AGENT_MODULE]:
        words = [AGENT_COMMAND[0], *words[3:]]
    return len(words) >= 2 and (PurePath(words[0]).name, words[1]) == AGENT_COMMAND


def _shell_words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def submit_request(
    spec: TrainingSpec,
    tier: Tier,
    *,
    run_uri: str,
    run_key: str,
    attempt: int,
    definition: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the arguments of SubmitJob for one attempt.

    :param definition: the job definition as AWS describes it: its kind decides where overrides go,
        and its revision is pinned. None: a definition with ``containerProperties`` is assumed.
    """
    request: dict[str, Any] = {
        "jobName": job_name(run_uri, run_key, attempt),
        "jobQueue": tier.job_queue,
        "jobDefinition": _pinned(spec.job_definition, definition),
        # Our loop owns retries: Batch's would run in the same queue and be counted by nobody.
        "retryStrategy": {"attempts": 1},
        "timeout": {"attemptDurationSeconds": max(_TIMEOUT_MIN, int(spec.attempt_timeout_seconds))},
        **_overrides(spec, _environment(spec, run_uri, attempt), definition or {}),
    }
    optional = {
        "parameters": spec.parameters,
        "tags": spec.tags,
        "shareIdentifier": spec.share_identifier,
        "schedulingPriorityOverride": spec.scheduling_priority_override,
    }
    return request | {name: value for name, value in optional.items() if value or value == 0}


def _pinned(name: str, definition: Mapping[str, Any] | None) -> str:
    """Name the revision that was looked at, so that a newer one of another kind does not get our overrides."""
    if definition is None or ":" in name or not definition.get("revision"):
        return name
    return f"{name}:{definition['revision']}"


def _environment(spec: TrainingSpec, run_uri: str, attempt: int) -> dict[str, str]:
    ours = {
        ENV_RUN: run_uri,
        ENV_ATTEMPT: str(attempt),
        ENV_CONTRACT: str(CONTRACT),
        ENV_REGION: spec.bucket_region,
        ENV_KMS_KEY: spec.kms_key,
        ENV_HEARTBEAT: f"{spec.heartbeat_seconds:g}",
        ENV_ORPHAN_AFTER: f"{spec.orphan_after_seconds:g}",
    }
    return {**spec.environment, **{name: value for name, value in ours.items() if value}}


def _overrides(spec: TrainingSpec, environment: dict[str, str], definition: Mapping[str, Any]) -> dict[str, Any]:
    """Put command and environment where this kind of definition takes them."""
    if "eksProperties" in definition:
        return {"eksPropertiesOverride": _eks(spec, environment, definition["eksProperties"])}
    if "ecsProperties" in definition or spec.ecs_properties_override:
        return {"ecsPropertiesOverride": _ecs(spec, environment, definition.get("ecsProperties") or {})}
    container = _container(spec, environment, spec.container_overrides)
    if "nodeProperties" in definition:
        # Every node runs an agent of its own; node 0 commits.
        return {"nodeOverrides": {"nodePropertyOverrides": [{"targetNodes": "0:", "containerOverrides": container}]}}
    return {"containerOverrides": container}


def _container(spec: TrainingSpec, environment: dict[str, str], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return an override of one container: the user's, then the operator's arguments, then what is ours."""
    given = {item["name"]: item.get("value", "") for item in base.get("environment", ())}
    out = dict(base)
    out["environment"] = [{"name": name, "value": value} for name, value in (given | environment).items()]
    if command := _command(spec, base.get("command")):
        out["command"] = command
    return out


def _command(spec: TrainingSpec, override: Sequence[str] | None) -> list[str] | None:
    command = list(spec.command if spec.command is not None else override or ())
    if not command or not spec.agent or starts_agent(command):
        return command or None
    return [*AGENT_COMMAND, "--", *command]


def _ecs(spec: TrainingSpec, environment: dict[str, str], properties: Mapping[str, Any]) -> dict[str, Any]:
    override = spec.ecs_properties_override or {}
    tasks = [dict(task) for task in override.get("taskProperties", ())] or [{}]
    containers = [dict(container) for container in tasks[0].get("containers", ())]
    name = main_container(properties) or next((item["name"] for item in containers if "name" in item), "default")
    base = next((item for item in containers if item.get("name") == name), {"name": name, **spec.container_overrides})
    others = [item for item in containers if item.get("name") != name]
    tasks[0]["containers"] = [_container(spec, environment, base), *others]
    return {**override, "taskProperties": tasks}


def main_container(properties: Mapping[str, Any]) -> str | None:
    """Return the name of the container that trains: the first essential one of the first task."""
    tasks = properties.get("taskProperties") or [{}]
    containers = tasks[0].get("containers") or []
    essential = [item for item in containers if item.get("essential", True)]
    return next((str(item["name"]) for item in (essential or containers) if item.get("name")), None)


def _eks(spec: TrainingSpec, environment: dict[str, str], properties: Mapping[str, Any]) -> dict[str, Any]:
    containers = properties.get("podProperties", {}).get("containers") or [{}]
    override: dict[str, Any] = {"env": [{"name": name, "value": value} for name, value in environment.items()]}
    if name := containers[0].get("name"):
        override["name"] = name
    if command := _command(spec, spec.container_overrides.get("command")):
        override["command"] = command
    return {"podProperties": {"containers": [override]}}
