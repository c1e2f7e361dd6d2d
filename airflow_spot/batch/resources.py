"""How much a job asks for, and whether a machine holds it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_spot.core.spec import TrainingSpec

MEMORY_SHARE = 0.95
"""Of a machine's nominal memory; the kernel and the ECS agent keep about the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one machine must give. None: not said."""

    vcpus: float | None = None
    memory_mib: float | None = None
    gpus: float | None = None

    def __str__(self) -> str:
        parts = ((self.vcpus, "vCPUs"), (self.memory_mib, "MiB of memory"), (self.gpus, "GPUs"))
        return ", ".join(f"{value:g} {unit}" for value, unit in parts if value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What an instance type has, by DescribeInstanceTypes."""

    name: str
    vcpus: int
    memory_mib: int
    gpus: int

    def holds(self, request: Request) -> bool:
        """Whether the request is within the nominal size."""
        return (
            (request.vcpus or 0) <= self.vcpus
            and (request.memory_mib or 0) <= self.memory_mib
            and (request.gpus or 0) <= self.gpus
        )

    def tight(self, request: Request) -> bool:
        """Whether the request leaves too little memory to the machine itself."""
        return (request.memory_mib or 0) >= MEMORY_SHARE * self.memory_mib

    def __str__(self) -> str:
        return f"{self.name} ({self.vcpus} vCPUs, {self.memory_mib} MiB, {self.gpus} GPUs)"


def machine(detail: Mapping[str, Any]) -> Machine:
    """Return an instance type of DescribeInstanceTypes."""
    return Machine(
        name=str(detail["InstanceType"]),
        vcpus=int(detail.get("VCpuInfo", {}).get("DefaultVCpus", 0)),
        memory_mib=int(detail.get("MemoryInfo", {}).get("SizeInMiB", 0)),
        gpus=sum(int(gpu.get("Count", 0)) for gpu in detail.get("GpuInfo", {}).get("Gpus", ())),
    )


def request_of(definition: Mapping[str, Any], spec: TrainingSpec) -> Request:
    """Return what a job of this definition and these overrides asks of one machine."""
    containers = list(containers_of(definition))
    overrides = _overrides(spec)
    total: dict[str, float] = {}
    for index, container in enumerate(containers):
        own = _requirements(container) | _requirements(overrides.get(container.get("name"), {}))
        if index == 0:
            own |= _requirements(spec.container_overrides)
        for kind, value in own.items():
            total[kind] = total.get(kind, 0.0) + value
    return Request(vcpus=total.get("VCPU"), memory_mib=total.get("MEMORY"), gpus=total.get("GPU"))


def containers_of(definition: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return the containers that share one machine, the one that trains first. Pods are not read."""
    nodes = (definition.get("nodeProperties") or {}).get("nodeRangeProperties") or ()
    holder = nodes[0] if nodes else definition
    if tasks := (holder.get("ecsProperties") or {}).get("taskProperties"):
        # The sort is stable: the first essential container comes first.
        yield from sorted(tasks[0].get("containers") or (), key=lambda one: not one.get("essential", True))
    elif container := holder.get("containerProperties") or holder.get("container"):
        yield container


def _overrides(spec: TrainingSpec) -> dict[Any, Mapping[str, Any]]:
    tasks = (spec.ecs_properties_override or {}).get("taskProperties") or ()
    return {one.get("name"): one for task in tasks for one in task.get("containers") or ()}


def _requirements(container: Mapping[str, Any]) -> dict[str, float]:
    """Return the requirements by type; the old fields ``vcpus`` and ``memory`` still occur."""
    old = {"VCPU": container.get("vcpus"), "MEMORY": container.get("memory")}
    out = {kind: float(value) for kind, value in old.items() if value}
    return out | dict(_pairs(container.get("resourceRequirements") or ()))


def _pairs(items: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for item in items:
        try:
            yield str(item["type"]), float(item["value"])
        except (KeyError, ValueError):
            continue  # AWS judges it at submit
