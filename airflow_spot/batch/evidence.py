"""What became of the machine: the compute environment's market first, then EC2. Each look-up is optional.

Evidence expires: an instance within the hour, a spot request after some four, a job after a week. Ask soon, keep the
verdict. What the Airflow role may not ask lowers the confidence, is logged once, and ends nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from airflow_spot.batch.aws import code_of, is_denied
from airflow_spot.batch.jobs import attempts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from airflow_spot.batch.aws import AwsClock, Clients
    from airflow_spot.core.seen import JobSeen
    from airflow_spot.rundir.values import Heartbeat

log = logging.getLogger(__name__)

ENVIRONMENTS_KEPT_SECONDS = 300.0
_ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What AWS says of the machine of an attempt. None: not asked, not allowed, or too late.

    :param capacity: the compute environment's type: ``SPOT``, ``EC2``, ``FARGATE`` …
    :param lifecycle: the instance's: ``spot``, ``on-demand``, ``capacity-block`` …
    :param state: the instance's state, such as ``running``; ``gone`` where EC2 does not know it any more.
    :param denied: the actions that the Airflow role may not call.
    :param lines: what was asked and answered, for the verdict's evidence.
    """

    compute_environment: str | None = None
    capacity: str | None = None
    instance: str | None = None
    instance_type: str | None = None
    zone: str | None = None
    lifecycle: str | None = None
    state: str | None = None
    state_reason: str | None = None
    spot_status: str | None = None
    reservation_ends: datetime | None = None
    denied: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(slots=True)
class _Notes:
    """Evidence while it is being gathered."""

    found: dict[str, Any] = field(default_factory=dict)
    denied: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


class Gatherer:
    """Asks for evidence. Thread-safe; keeps the compute environments for five minutes."""

    def __init__(self, clients: Clients, clock: AwsClock, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clients = clients
        self._clock = clock
        self._monotonic = monotonic
        self._environments: tuple[float, list[dict[str, Any]]] | None = None
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def gather(self, job: JobSeen, *, market: str, heartbeat: Heartbeat | None = None) -> Evidence:
        """Return what AWS says of the machine of a job; never raises for want of an answer.

        :param market: of the attempt's tier: a spot request is only looked for where the machine may be one.
        """
        notes = _Notes()
        if job.started_at is None and job.placement_arn is None and job.instance is None and heartbeat is None:
            return Evidence(lines=("the job never had a machine",))
        cluster = cluster_of(job.placement_arn)
        self._ask_environment(notes, job, cluster)
        instance = job.instance or (heartbeat.instance if heartbeat else None)
        instance = instance or self._instance(notes, job, cluster)
        self._ask_instance(notes, instance, job)
        if (instance := notes.found.get("instance")) and _may_be_spot(notes.found, market):
            self._ask_spot_request(notes, instance)
        return Evidence(**notes.found, denied=tuple(notes.denied), lines=tuple(notes.lines))

    def _ask_environment(self, notes: _Notes, job: JobSeen, cluster: str | None) -> None:
        environments = self._known_environments(notes)
        match = next((one for one in environments if cluster and _cluster_name(one) == cluster), None)
        candidates = [match] if match else self._of_queue(notes, job.queue, environments)
        kinds = {kind for one in candidates if (kind := capacity_of(one))}
        if len(kinds) != 1:
            if environments:
                notes.lines.append(f"no compute environment of one market found for cluster {cluster or 'unknown'}")
            return
        names = ", ".join(str(one["computeEnvironmentName"]) for one in candidates)
        notes.found |= {"compute_environment": names, "capacity": (kind := kinds.pop())}
        notes.lines.append(f"compute environment {names} is of type {kind}")

    def _known_environments(self, notes: _Notes) -> list[dict[str, Any]]:
        with self._lock:
            kept = self._environments
        if kept and self._monotonic() - kept[0] < ENVIRONMENTS_KEPT_SECONDS:
            return kept[1]
        found = self._pages(
            notes, "batch:DescribeComputeEnvironments", self._clients.batch, "describe_compute_environments",
            "computeEnvironments",
        )  # fmt: skip
        if found is None:
            return []
        with self._lock:
            self._environments = (self._monotonic(), found)
        return found

    def _of_queue(self, notes: _Notes, queue: str, environments: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the environments of the job's queue, for a job whose ARNs name no cluster that is still there."""
        if not queue or not environments:
            return []
        reply = self._try(
            notes, "batch:DescribeJobQueues", self._clients.batch, "describe_job_queues", jobQueues=[queue]
        )
        order = [item for one in (reply or {}).get("jobQueues", ()) for item in one.get("computeEnvironmentOrder", ())]
        names = {str(item["computeEnvironment"]) for item in order}
        return [
            one for one in environments if {one["computeEnvironmentName"], one.get("computeEnvironmentArn")} & names
        ]

    def _instance(self, notes: _Notes, job: JobSeen, cluster: str | None) -> str | None:
        """Ask ECS which instance it was; it forgets once the instance is deregistered."""
        arn = job.placement_arn
        if not cluster or not arn or ":container-instance/" not in arn:
            return None
        reply = self._try(
            notes, "ecs:DescribeContainerInstances", self._clients.ecs, "describe_container_instances",
            cluster=cluster, containerInstances=[arn],
        )  # fmt: skip
        ids = (item.get("ec2InstanceId") for item in (reply or {}).get("containerInstances", ()))
        return next((str(one) for one in ids if one), None)

    def _ask_instance(self, notes: _Notes, instance: str | None, job: JobSeen) -> None:
        node = next((seen.node for seen in reversed(attempts_of(job.raw)) if seen.node), None)
        if instance is None and node is None:
            return
        if instance:
            notes.found["instance"] = instance
        # A filter, not ids: one unknown id would fail the whole call.
        name, value = ("instance-id", instance) if instance else ("private-dns-name", node)
        filters = [{"Name": name, "Values": [value]}]
        reply = self._try(notes, "ec2:DescribeInstances", self._clients.ec2, "describe_instances", Filters=filters)
        if reply is None:
            return
        found = [one for held in reply.get("Reservations", ()) for one in held.get("Instances", ())]
        if not found:
            notes.found["state"] = "gone"
            notes.lines.append(f"EC2 does not know {value} any more")
            return
        self._read_instance(notes, found[0])

    def _read_instance(self, notes: _Notes, seen: dict[str, Any]) -> None:
        code = (seen.get("StateReason") or {}).get("Code") or None
        found = {
            "instance": seen.get("InstanceId"),
            "instance_type": seen.get("InstanceType"),
            "zone": (seen.get("Placement") or {}).get("AvailabilityZone"),
            "lifecycle": seen.get("InstanceLifecycle") or _ON_DEMAND,
            "state": (seen.get("State") or {}).get("Name"),
            "state_reason": code,
        }
        notes.found |= {name: value for name, value in found.items() if value}
        told = " ".join(part for part in (code, seen.get("StateTransitionReason")) if part)
        notes.lines.append(
            f"EC2: {found['instance']} is {found['state']}, {found['lifecycle']}, {found['instance_type']}"
            f" in {found['zone']}{f': {told}' if told else ''}"
        )
        if found["lifecycle"] == "capacity-block" and (reservation := seen.get("CapacityReservationId")):
            self._ask_reservation(notes, reservation)

    def _ask_reservation(self, notes: _Notes, reservation: str) -> None:
        reply = self._try(
            notes, "ec2:DescribeCapacityReservations", self._clients.ec2, "describe_capacity_reservations",
            CapacityReservationIds=[reservation],
        )  # fmt: skip
        for one in (reply or {}).get("CapacityReservations", ()):
            if ends := one.get("EndDate"):
                notes.found["reservation_ends"] = ends
                notes.lines.append(f"EC2: capacity reservation {reservation} ends at {ends.isoformat()}")

    def _ask_spot_request(self, notes: _Notes, instance: str) -> None:
        reply = self._try(
            notes, "ec2:DescribeSpotInstanceRequests", self._clients.ec2, "describe_spot_instance_requests",
            Filters=[{"Name": "instance-id", "Values": [instance]}],
        )  # fmt: skip
        for one in (reply or {}).get("SpotInstanceRequests", ()):
            if code := (one.get("Status") or {}).get("Code"):
                notes.found["spot_status"] = code
                notes.lines.append(f"EC2: the spot request of {instance} has status {code}")

    def _pages(self, notes: _Notes, action: str, client: Any, method: str, items: str) -> list[dict[str, Any]] | None:
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {}
        while True:
            reply = self._try(notes, action, client, method, **page)
            if reply is None:
                return None
            found += reply.get(items, ())
            if not reply.get("nextToken"):
                return found
            page = {"nextToken": reply["nextToken"]}

    def _try(self, notes: _Notes, action: str, client: Any, method: str, **arguments: Any) -> dict[str, Any] | None:
        """Make a call whose answer is welcome, but not needed."""
        if client is None:
            return None
        try:
            reply: dict[str, Any] = getattr(client, method)(**arguments)
        except ClientError as error:
            self._clock.hear(error.response)
            if is_denied(error):
                self._deny(notes, action)
            else:
                notes.lines.append(f"{action} gave no answer: {code_of(error)}")
            return None
        except BotoCoreError as error:
            notes.lines.append(f"{action} gave no answer: {error}")
            return None
        self._clock.hear(reply)
        return reply

    def _deny(self, notes: _Notes, action: str) -> None:
        notes.denied.append(action)
        with self._lock:
            new = action not in self._said
            self._said.add(action)
        if new:
            log.warning(
                "%s is not allowed: why machines are lost stays less certain. Allow it to the Airflow role", action
            )


def cluster_of(arn: str | None) -> str | None:
    """Return the ECS cluster that the ARN of a container instance or task names; old ARNs name none."""
    parts = (arn or "").split(":", 5)[-1].split("/")
    return parts[1] if len(parts) == 3 else None


def capacity_of(environment: Mapping[str, Any]) -> str | None:
    """Return how a compute environment buys capacity; one of managed instances says so inside."""
    resources = environment.get("computeResources") or {}
    template = (resources.get("managedInstancesProvider") or {}).get("instanceLaunchTemplate") or {}
    if template.get("capacityOptionType") == "SPOT":
        return "SPOT"
    kind = resources.get("type")
    return str(kind) if kind else None


def _cluster_name(environment: dict[str, Any]) -> str:
    return str(environment.get("ecsClusterArn") or "").rsplit("/", 1)[-1]


def _may_be_spot(found: dict[str, Any], market: str) -> bool:
    if lifecycle := found.get("lifecycle"):
        return bool(lifecycle == "spot")
    return found.get("capacity") == "SPOT" or (found.get("capacity") is None and market == "spot")
