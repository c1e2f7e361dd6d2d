"""A boto3 Batch client over the model, without a network."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_spot.localcloud import ec2
from airflow_spot.localcloud.api import Reply, Request, answer
from airflow_spot.localcloud.faults import ApiError, Faults, ReplyLost
from airflow_spot.localcloud.market import Markets
from airflow_spot.localcloud.model import REGION, LocalBatch, Pace
from airflow_spot.localcloud.setup import Setup, install
from airflow_spot.testing.clock import FakeClock
from airflow_spot.testing.runner import Behaviour, Chooser, ScriptedHandle, ScriptedRunner

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest, AWSResponse

FAKE_PACE = Pace(submitted=1.0, runnable=1.0, starting=1.0, detection=1.0, blocked=1.0)
"""A second in each state: a test sees every one of them."""


class FakeBatch:
    """Has every method of ``boto3.client("batch")``, and the controls of a local cloud.

    :param clock: moves everything; a new one unless given.
    :param setup: queues and definitions to begin with: ``spot``, ``reserved``, ``on-demand`` and ``airflow-spot``.
    :param config: botocore's for the clients; one attempt per call unless given, as nothing here is ever slow.
    """

    def __init__(
        self,
        clock: FakeClock | None = None,
        *,
        market: Markets | None = None,
        setup: Setup | None = None,
        pace: Pace = FAKE_PACE,
        region: str = REGION,
        config: Any = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.runner = ScriptedRunner(self.clock)
        self.faults = Faults()
        self.model = LocalBatch(
            self.clock, self.runner, market, pace=pace, faults=self.faults, seed="fake", region=region
        )
        self.region = region
        self._config = config
        self._clients: dict[str, Any] = {}
        install(self.model, setup or Setup.usual())

    def __getattr__(self, name: str) -> Any:
        """Return the method of the Batch client."""
        if name.startswith("_") or "_clients" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.client("batch"), name)

    def client(self, name: str) -> Any:
        """Return the client of ``batch``, ``ec2`` or ``ecs``; all of them see the same hosts."""
        if name not in self._clients:
            self._clients[name] = self._new_client(name)
        return self._clients[name]

    def new_client(self, name: str = "batch", *, config: Any = None) -> Any:
        """Return one more client, e.g. with retries of its own."""
        return self._new_client(name, config)

    def _new_client(self, name: str, config: Any = None) -> Any:
        import boto3
        from botocore.config import Config

        session: Any = boto3.Session("fake", "fake", region_name=self.region)
        chosen = config or self._config or Config(retries={"total_max_attempts": 1})
        client = session.client(name, endpoint_url=f"http://{name}.fake.invalid", config=chosen)
        client.meta.events.register(f"before-send.{name}", _transport(self.model, name))
        return client

    @property
    def calls(self) -> list[str]:
        """Names of the Batch operations that came, in order."""
        return self.model.calls

    # -- controls ------------------------------------------------------------------------------------------------

    def script(self, *behaviours: Behaviour, choose: Chooser | None = None) -> None:
        """Say what jobs do: in the order of their starts from now on (the last one stays), or by a function."""
        self.runner.script, self.runner.choose, self.runner.starts = behaviours or (Behaviour(),), choose, 0

    def running(self, job: str) -> ScriptedHandle:
        """Return the running container of a job, to end it or to see which signals it got."""
        self.model.tick()
        return next(each for each in reversed(self.runner.handles) if each.launch.job_id == job)

    def finish(self, job: str, exit_code: int | None = 0, reason: str | None = None) -> None:
        """Let the container of a running job end now."""
        self.running(job).finish(exit_code, reason)
        self.model.tick()

    def reclaim(self, job: str, *, notice: float = 0.0, sigterm: float | None = None) -> None:
        """Take back the host of a job after a notice (seconds; 0: none)."""
        self.model.reclaim(job, notice=notice, sigterm=sigterm)

    def fail_host(self, job: str) -> None:
        """Let the host of a job fail; that is no reclaim."""
        self.model.fail_host(job)

    def drought(self, name: str, *, on: bool = True) -> None:
        """Let a queue or compute environment have no new hosts, or have them again."""
        self.model.drought(name, on=on)

    def advance(self, seconds: float, *, step: float = 1.0) -> None:
        """Move the clock on in steps, and everything with it."""
        left = seconds
        while left > 0:
            self.clock.advance(min(step, left))
            self.model.tick()
            left -= step


class _Body(io.BytesIO):
    """What botocore reads an answer from."""

    def stream(self, **_: Any) -> Any:
        """Yield the rest."""
        yield self.read()


def _transport(model: LocalBatch, service: str) -> Callable[..., AWSResponse]:
    def send(request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        from botocore.awsrequest import AWSResponse
        from botocore.exceptions import ReadTimeoutError

        url = str(request.url)
        parts = urlsplit(url)
        headers = {name.lower(): _text(value) for name, value in request.headers.items()}
        body: Any = request.body or b""
        asked = Request(
            service=service,
            method=str(request.method),
            path=parts.path,
            query=parts.query,
            headers=headers,
            body=body.encode() if isinstance(body, str) else bytes(body),
        )
        try:
            reply = answer(model, asked)
        except ReplyLost:
            raise ReadTimeoutError(endpoint_url=url) from None
        if reply is None:
            # As EC2 would say it of an action that it does not have.
            body = ec2.error(ApiError("UnsupportedOperation", "The fake does not serve this; use a LocalCloud."))
            reply = Reply(status=400, headers={}, body=body.encode())
        headers_out: Any = reply.headers
        return AWSResponse(url, reply.status, headers_out, _Body(reply.body))

    return send


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
