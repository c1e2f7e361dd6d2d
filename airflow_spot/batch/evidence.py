"""What became of the machine: the compute environment's market first, then EC2. Each look-up is optional."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_spot.batch.aws import AwsClock, Clients
    from airflow_spot.core.seen import JobSeen
    from airflow_spot.rundir.values import Heartbeat


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


class Gatherer:
    """Placeholder until the look-ups are in."""

    def __init__(self, clients: Clients, clock: AwsClock) -> None:
        self._clients = clients
        self._clock = clock

    def gather(self, job: JobSeen, *, market: str, heartbeat: Heartbeat | None = None) -> Evidence:
        """Return what is known without asking."""
        return Evidence(instance=job.instance or (heartbeat.instance if heartbeat else None))
