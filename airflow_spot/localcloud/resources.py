"""Compute environments, job queues and job definitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

JSON = dict[str, Any]

INSTANCE_TYPES: dict[str, tuple[int, int, int]] = {
    "m5.large": (2, 8, 0),
    "m5.xlarge": (4, 16, 0),
    "m5.2xlarge": (8, 32, 0),
    "m5.4xlarge": (16, 64, 0),
    "m5.24xlarge": (96, 384, 0),
    "g4dn.xlarge": (4, 16, 1),
    "g4dn.12xlarge": (48, 192, 4),
    "g5.xlarge": (4, 16, 1),
    "g5.12xlarge": (48, 192, 4),
    "g5.16xlarge": (64, 256, 1),
    "g5.24xlarge": (96, 384, 4),
    "g5.48xlarge": (192, 768, 8),
    "g6.xlarge": (4, 16, 1),
    "g6.48xlarge": (192, 768, 8),
    "p3.2xlarge": (8, 61, 1),
    "p3.16xlarge": (64, 488, 8),
    "p4d.24xlarge": (96, 1152, 8),
    "p5.48xlarge": (192, 2048, 8),
}
"""Type → vCPUs, memory in GiB, GPUs. A type that is not here is taken to hold any request."""

_OPTIMAL = ("m5.large", "m5.xlarge", "m5.2xlarge", "m5.4xlarge", "m5.24xlarge")
_USABLE = 0.95
"""The share of a host's memory that its agent registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a job asks of its host; memory in MiB."""

    vcpus: float = 1.0
    memory: int = 512
    gpus: int = 0


@dataclass(slots=True, kw_only=True)
class ComputeEnvironment:
    """A compute environment: how capacity is bought, and how much of it."""

    name: str
    arn: str
    cluster: str
    cluster_arn: str
    resources: JSON
    state: str = "ENABLED"
    tags: dict[str, str] = field(default_factory=dict)
    rest: JSON = field(default_factory=dict)

    @property
    def spot(self) -> bool:
        """Whether its hosts are spot instances."""
        return self.resources.get("type") in {"SPOT", "FARGATE_SPOT"}

    @property
    def max_vcpus(self) -> float:
        """How many vCPUs it may have at once."""
        return float(self.resources.get("maxvCpus", 256))

    @property
    def instance_types(self) -> list[str]:
        """The types it may launch; families and ``optimal`` spelt out."""
        types: list[str] = []
        for entry in self.resources.get("instanceTypes") or ["optimal"]:
            family = [known for known in INSTANCE_TYPES if known.startswith(f"{entry}.")]
            types += _OPTIMAL if entry == "optimal" else family or [entry]
        return types

    def holds(self, need: Need) -> str | None:
        """Return the first of its types that can hold the need; None: none can."""
        return next((name for name in self.instance_types if _fits(name, need)), None)

    def describe(self) -> JSON:
        """Return it as DescribeComputeEnvironments does."""
        return {
            "computeEnvironmentName": self.name,
            "computeEnvironmentArn": self.arn,
            "ecsClusterArn": self.cluster_arn,
            "type": "MANAGED",
            "state": self.state,
            "status": "VALID",
            "statusReason": "ComputeEnvironment Healthy",
            "containerOrchestrationType": "ECS",
            "computeResources": self.resources,
            "tags": self.tags,
            **self.rest,
        }


def _fits(name: str, need: Need) -> bool:
    if name not in INSTANCE_TYPES:
        return True
    vcpus, memory, gpus = INSTANCE_TYPES[name]
    return need.vcpus <= vcpus and need.memory <= memory * 1024 * _USABLE and need.gpus <= gpus


@dataclass(slots=True, kw_only=True)
class Queue:
    """A job queue over one to three compute environments, in order."""

    name: str
    arn: str
    priority: int
    environments: list[str]
    """Names of the compute environments, in order."""
    order: list[JSON]
    state: str = "ENABLED"
    scheduling_policy: str | None = None
    time_limits: list[JSON] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)

    def describe(self) -> JSON:
        """Return it as DescribeJobQueues does."""
        shown: JSON = {
            "jobQueueName": self.name,
            "jobQueueArn": self.arn,
            "state": self.state,
            "status": "VALID",
            "statusReason": "JobQueue Healthy",
            "priority": self.priority,
            "computeEnvironmentOrder": self.order,
            "serviceEnvironmentOrder": [],
            "jobStateTimeLimitActions": self.time_limits,
            "tags": self.tags,
        }
        return shown | ({"schedulingPolicyArn": self.scheduling_policy} if self.scheduling_policy else {})


@dataclass(slots=True, kw_only=True)
class Definition:
    """One revision of a job definition."""

    name: str
    revision: int
    arn: str
    body: JSON
    """As registered: type, parameters, containerProperties or ecsProperties, retryStrategy, timeout, tags …"""
    status: str = "ACTIVE"

    @property
    def ecs(self) -> bool:
        """Whether it is written with ``ecsProperties``."""
        return "ecsProperties" in self.body

    @property
    def container(self) -> JSON:
        """The properties of the container that runs: the only one, or the first essential one of the task."""
        if not self.ecs:
            return dict(self.body.get("containerProperties") or {})
        containers = self.body["ecsProperties"]["taskProperties"][0]["containers"]
        return dict(next((each for each in containers if each.get("essential", True)), containers[0]))

    def describe(self) -> JSON:
        """Return it as DescribeJobDefinitions does."""
        return {
            "containerOrchestrationType": "ECS",
            "parameters": {},
            "tags": {},
            **self.body,
            "jobDefinitionName": self.name,
            "jobDefinitionArn": self.arn,
            "revision": self.revision,
            "status": self.status,
        }
