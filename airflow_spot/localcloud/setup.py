"""What a local cloud has from the start: compute environments, queues, job definitions.

A set-up is TOML; it takes the place of the usual one. Tables are as in the API, in its spelling, but that a queue
may name the market of one compute environment of its own in place of ``computeEnvironmentOrder``::

    [[queue]]
    jobQueueName = "gpu-spot"
    type = "SPOT"                       # or EC2
    maxvCpus = 64
    instanceTypes = ["g5.xlarge"]

    [[job_definition]]
    jobDefinitionName = "train-gpu"
    containerProperties = { image = "train", command = [], resourceRequirements = [
        { type = "GPU", value = "1" }, { type = "VCPU", value = "4" }, { type = "MEMORY", value = "14000" } ] }
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from airflow_spot.errors import ConfigurationError
from airflow_spot.localcloud.faults import ApiError
from airflow_spot.localcloud.model import LocalBatch
from airflow_spot.localcloud.resources import JSON

DEFINITION = "airflow-spot"
EXAMPLES = "train-digits"
"""The job definition of the example DAGs."""

_OWN = ("type", "maxvCpus", "minvCpus", "instanceTypes", "allocationStrategy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Queues and job definitions to begin with, each as the API takes it (see the module)."""

    queues: tuple[JSON, ...] = ()
    definitions: tuple[JSON, ...] = ()

    @classmethod
    def usual(cls) -> Self:
        """Return queues ``spot``, ``reserved`` and ``on-demand``, and definitions for a first try and the examples."""
        kinds = {"spot": "SPOT", "reserved": "EC2", "on-demand": "EC2"}
        return cls(
            queues=tuple({"jobQueueName": name, "type": kind} for name, kind in kinds.items()),
            definitions=(container(DEFINITION, ["echo", "hello from the local cloud"]), container(EXAMPLES, [])),
        )


def load(path: Path) -> Setup:
    """Read a set-up.

    :raises ConfigurationError: no such file, not TOML, or a table that is not known.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"set-up {str(path)!r} cannot be read ({error.strerror}); give a TOML file") from error
    except ValueError as error:
        raise ConfigurationError(f"set-up {str(path)!r} is not TOML: {error}") from error
    if unknown := sorted(set(table) - {"queue", "job_definition"}):
        raise ConfigurationError(f"a set-up does not know {', '.join(unknown)}; it knows: job_definition, queue")
    return Setup(queues=tuple(table.get("queue", ())), definitions=tuple(table.get("job_definition", ())))


def container(name: str, command: list[str], *, vcpus: int = 1, memory: int = 1024) -> JSON:
    """Return a job definition of one container, to be registered."""
    needs = [{"type": "VCPU", "value": str(vcpus)}, {"type": "MEMORY", "value": str(memory)}]
    properties = {"image": "local", "command": command, "resourceRequirements": needs}
    return {"jobDefinitionName": name, "type": "container", "containerProperties": properties}


def install(batch: LocalBatch, setup: Setup) -> None:
    """Make all of it.

    :raises ConfigurationError: what AWS would refuse.
    """
    try:
        for queue in setup.queues:
            _queue(batch, queue)
        for definition in setup.definitions:
            batch.call("RegisterJobDefinition", definition)
    except ApiError as error:
        raise ConfigurationError(f"the set-up is refused: {error.message}") from error
    batch.calls.clear()


def _queue(batch: LocalBatch, queue: JSON) -> None:
    name = str(queue.get("jobQueueName"))
    resources = {"instanceTypes": ["optimal"], "subnets": ["subnet-local"]} | {
        key: queue[key] for key in _OWN if key in queue
    }
    if "type" in queue:
        batch.call("CreateComputeEnvironment", {"computeEnvironmentName": name, "computeResources": resources})
    order = queue.get("computeEnvironmentOrder", [{"order": 1, "computeEnvironment": name}])
    rest = {key: value for key, value in queue.items() if key not in _OWN}
    batch.call("CreateJobQueue", {"priority": 1, **rest, "computeEnvironmentOrder": order})
