"""What a local cloud has from the start: compute environments, queues, job definitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from airflow_spot.localcloud.model import LocalBatch
from airflow_spot.localcloud.resources import JSON

DEFINITION = "airflow-spot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Queues by name with the type of their one compute environment, and job definitions as they are registered."""

    queues: dict[str, str] = field(default_factory=dict)
    definitions: tuple[JSON, ...] = ()

    @classmethod
    def usual(cls) -> Self:
        """Return queues ``spot``, ``reserved`` and ``on-demand``, and one definition whose command says hello."""
        return cls(
            queues={"spot": "SPOT", "reserved": "EC2", "on-demand": "EC2"},
            definitions=(container(DEFINITION, ["echo", "hello from the local cloud"]),),
        )


def container(name: str, command: list[str], *, vcpus: int = 1, memory: int = 1024) -> JSON:
    """Return a job definition of one container, to be registered."""
    needs = [{"type": "VCPU", "value": str(vcpus)}, {"type": "MEMORY", "value": str(memory)}]
    properties = {"image": "local", "command": command, "resourceRequirements": needs}
    return {"jobDefinitionName": name, "type": "container", "containerProperties": properties}


def install(batch: LocalBatch, setup: Setup) -> None:
    """Make all of it."""
    for name, kind in setup.queues.items():
        resources = {"type": kind, "maxvCpus": 256, "instanceTypes": ["optimal"], "subnets": ["subnet-local"]}
        batch.call(
            "CreateComputeEnvironment",
            {"computeEnvironmentName": name, "type": "MANAGED", "computeResources": resources},
        )
        order = [{"order": 1, "computeEnvironment": name}]
        batch.call("CreateJobQueue", {"jobQueueName": name, "priority": 1, "computeEnvironmentOrder": order})
    for definition in setup.definitions:
        batch.call("RegisterJobDefinition", definition)
    batch.calls.clear()
