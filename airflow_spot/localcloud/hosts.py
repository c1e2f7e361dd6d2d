"""Hosts: the EC2 instances that jobs run on, and what EC2 says of them when they are gone."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_spot.localcloud.market import Cause
from airflow_spot.localcloud.metadata import Instance

_GONE: dict[Cause | None, tuple[str, str]] = {
    Cause.RECLAIM: ("Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot instance termination"),
    Cause.FAILURE: ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown"),
    None: ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown"),
}


@dataclass(slots=True, kw_only=True)
class Host:
    """One instance.

    :param cluster: name of the ECS cluster of its compute environment.
    :param container_instance: the id that ECS gives it.
    :param spot_request: None on a host that is not spot.
    :param noticed: when the reclaim was announced, or decided without a word.
    :param dies: when the host is to go; None: not known to.
    :param died: when it went.
    """

    instance: Instance
    cluster: str
    compute_environment: str
    container_instance: str
    spot_request: str | None
    launched: float
    cause: Cause | None = None
    noticed: float | None = None
    dies: float | None = None
    sigterm: float | None = None
    died: float | None = None
    released: float | None = None
    job_id: str | None = None
    warned: bool = field(default=False)

    @property
    def id(self) -> str:
        """The EC2 instance id."""
        return self.instance.instance_id

    @property
    def spot(self) -> bool:
        """Whether it was bought as spot."""
        return self.spot_request is not None

    @property
    def state(self) -> str:
        """EC2's name for its state."""
        return "running" if self.died is None else "terminated"

    @property
    def state_reason(self) -> tuple[str, str] | None:
        """Code and message of EC2's StateReason; None while it runs."""
        return None if self.died is None else _GONE[self.cause]

    @property
    def request_status(self) -> str:
        """Status code of its spot request: a reclaim shows there before the host goes."""
        if self.cause is Cause.RECLAIM:
            return "instance-terminated-no-capacity"
        return "fulfilled" if self.died is None else "instance-terminated-by-user"
