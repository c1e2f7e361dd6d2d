"""The metadata service of one host, to be started in a test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from airflow_spot.localcloud.metadata import Instance, MetadataServer


class FakeMetadata:
    """IMDSv2 over HTTP on this machine; a context manager.

    :param life_cycle: ``spot`` or ``on-demand``.
    """

    def __init__(
        self,
        *,
        instance_id: str = "i-0123456789abcdef0",
        instance_type: str = "g5.xlarge",
        life_cycle: str = "spot",
        zone: str = "us-east-1a",
    ) -> None:
        instance = Instance(instance_id=instance_id, instance_type=instance_type, life_cycle=life_cycle, zone=zone)
        self._server = MetadataServer(instance)

    @property
    def url(self) -> str:
        """The base address, for ``AWS_EC2_METADATA_SERVICE_ENDPOINT``."""
        return self._server.url

    def start(self) -> Self:
        """Serve in a thread."""
        self._server.start()
        return self

    def stop(self) -> None:
        """Stop serving."""
        self._server.stop()

    def notice(self, *, seconds: float = 120.0) -> datetime:
        """Announce a reclaim in so many seconds, and return its instant."""
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        self._server.notice(at)
        return at

    def rebalance(self) -> None:
        """Give a rebalance recommendation."""
        self._server.rebalance(datetime.now(UTC))

    def expire_tokens(self) -> None:
        """Let every token given so far answer 401."""
        self._server.expire_tokens()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
