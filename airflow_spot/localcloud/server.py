"""The local cloud as one server: moto for S3, Logs, IAM, STS and the rest of EC2 and ECS, our own Batch before it."""

from __future__ import annotations

import io
import json
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from airflow_spot.errors import ConfigurationError
from airflow_spot.localcloud import market as markets
from airflow_spot.localcloud.admin import administer
from airflow_spot.localcloud.api import Reply, Request, answer
from airflow_spot.localcloud.faults import Faults, ReplyLost
from airflow_spot.localcloud.logs import MotoLogs
from airflow_spot.localcloud.model import ACCOUNT, REGION, LocalBatch, Pace
from airflow_spot.localcloud.runner import ProcessRunner, Runner
from airflow_spot.localcloud.setup import Setup, install

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

log = logging.getLogger(__name__)

Environ = dict[str, Any]
StartResponse = Callable[..., Any]

BUCKET = "airflow-spot"
_TICK = 0.1
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}


class LocalCloud:
    """A local AWS in this process; a context manager.

    :param port: 0 for any free one.
    :param market: a market script (file, or the name of a built-in one), parsed markets, or None: calm.
    :param setup: queues, compute environments and job definitions to begin with; the usual ones unless given.
    :param directory: where jobs get their scratch directories.
    :param runner: what runs the jobs; local processes unless given.
    :param job_environment: further variables for every job, such as an image would set.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        market: Path | str | markets.Markets | None = None,
        setup: Setup | None = None,
        directory: Path | None = None,
        runner: Runner | None = None,
        pace: Pace | None = None,
        faults: Faults | None = None,
        region: str = REGION,
        job_environment: Mapping[str, str] | None = None,
    ) -> None:
        self._job_environment = dict(job_environment or {})
        self.region = region
        self.bucket = BUCKET
        self.faults = faults or Faults()
        self._port = port
        self._market = market if isinstance(market, markets.Markets) else _market(market)
        self._setup = setup or Setup.usual()
        self._directory = directory
        self._runner = runner
        self._pace = pace
        self._logs = MotoLogs(ACCOUNT, region)
        self._server: BaseWSGIServer | None = None
        self._clients: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self.batch: LocalBatch

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Serve in threads of this process.

        :raises ConfigurationError: the port is taken, or the set-up cannot be.
        """
        self._server = self._listen()
        try:
            self._furnish()
        except BaseException:
            self._server.server_close()
            self._server = None
            raise
        self._run("serve", self._server.serve_forever)
        self._run("tick", self._tick)
        return self

    def _furnish(self) -> None:
        """Put in place what is there from the start."""
        runner = self._runner or ProcessRunner(
            environment={**self._job_environment, **self.environment()}, logs=self._logs.put, directory=self._directory
        )
        self.batch = LocalBatch(
            runner=runner,
            market=self._market,
            pace=self._pace,
            faults=self.faults,
            seed=secrets.token_hex(8),
            region=self.region,
        )
        install(self.batch, self._setup)
        self._make_bucket()

    def stop(self) -> None:
        """End every job and the server."""
        self._stopping.set()
        if self._server is None:
            return
        for client in self._clients:
            client.close()
        self._server.shutdown()
        for thread in self._threads:
            thread.join(timeout=10)
        self._server.server_close()
        self.batch.close()
        self._logs.flush()
        self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _run(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"localcloud-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _tick(self) -> None:
        while not self._stopping.wait(_TICK):
            try:
                self.batch.tick()
            except Exception:
                # One job that cannot be moved along must not stop all the others.
                log.exception("the local cloud could not move its jobs along")

    def _listen(self) -> BaseWSGIServer:
        from werkzeug.serving import make_server

        from airflow_spot.localcloud.moto import handler_class

        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self._port))
            except OSError as error:
                raise ConfigurationError(
                    f"port {self._port} cannot be used ({error.strerror}); stop what listens there or give another port"
                ) from error
        return make_server("127.0.0.1", self._port, self._serve, threaded=True, request_handler=handler_class())

    def _make_bucket(self) -> None:
        from airflow_spot.localcloud.moto import make_bucket

        make_bucket(ACCOUNT, self.region, self.bucket)

    # -- for callers ---------------------------------------------------------------------------------------------

    @property
    def endpoint_url(self) -> str:
        """Where all services are."""
        if self._server is None:
            raise ConfigurationError("the local cloud is not started; use it as a context manager, or call start()")
        return f"http://127.0.0.1:{self._server.server_port}"

    def environment(self) -> dict[str, str]:
        """Return the variables that point the SDKs here."""
        return {"AWS_ENDPOINT_URL": self.endpoint_url, "AWS_REGION": self.region, **_CREDENTIALS} | {
            "AWS_DEFAULT_REGION": self.region
        }

    def variables(self) -> dict[str, str]:
        """Return all that a shell, an SDK, Airflow and this provider need to work here."""
        return {
            **self.environment(),
            "AIRFLOW_CONN_AWS_DEFAULT": self.airflow_connection(),
            "AIRFLOW__AIRFLOW_SPOT__RUN_ROOT": f"s3://{self.bucket}/runs",
        }

    def airflow_connection(self) -> str:
        """Return the value for ``AIRFLOW_CONN_AWS_DEFAULT``."""
        extra = {"region_name": self.region, "endpoint_url": self.endpoint_url}
        return json.dumps({"conn_type": "aws", "login": "local", "password": "local", "extra": extra})

    def client(self, name: str, **options: Any) -> Any:
        """Return a boto3 client of a service here; it is closed with the cloud."""
        import boto3

        # The name is not a literal here, so the stubs cannot tell which client it is.
        session: Any = boto3.Session("local", "local", region_name=self.region)
        client = session.client(name, endpoint_url=self.endpoint_url, **options)
        self._clients.append(client)
        return client

    def reclaim(self, job: str, *, notice: float = 0.0, sigterm: float | None = None) -> None:
        """Take back the host of a job after a notice (seconds; 0: none)."""
        self.batch.reclaim(job, notice=notice, sigterm=sigterm)

    def fail_host(self, job: str) -> None:
        """Let the host of a job fail; that is no reclaim."""
        self.batch.fail_host(job)

    def drought(self, name: str, *, on: bool = True) -> None:
        """Let a queue or compute environment have no new hosts, or have them again."""
        self.batch.drought(name, on=on)

    # -- serving -------------------------------------------------------------------------------------------------

    def _serve(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        from airflow_spot.localcloud.moto import application, service_of

        path = str(environ.get("PATH_INFO", ""))
        if path.startswith("/_localcloud/"):
            return _send(administer(self, _request("admin", environ)), start_response)
        service = service_of(environ)
        if service in {"batch", "ec2", "ecs"}:
            request = _request(service, environ)
            try:
                reply = answer(self.batch, request)
            except ReplyLost:
                _hang_up(environ)
                raise ConnectionAbortedError from None
            if reply is not None:
                return _send(reply, start_response)
            environ["wsgi.input"] = io.BytesIO(request.body)
        return application()(environ, start_response)


def _market(given: Path | str | None) -> markets.Markets:
    return markets.Markets() if given is None else markets.load(given)


def _request(service: str, environ: Environ) -> Request:
    length = int(environ.get("CONTENT_LENGTH") or 0)
    raw = str(environ.get("REQUEST_URI") or environ.get("RAW_URI") or environ.get("PATH_INFO", ""))
    headers = {key[5:].replace("_", "-").lower(): str(value) for key, value in environ.items() if key[:5] == "HTTP_"}
    return Request(
        service=service,
        method=str(environ.get("REQUEST_METHOD", "GET")),
        path=raw.partition("?")[0],
        query=str(environ.get("QUERY_STRING", "")),
        headers=headers,
        body=environ["wsgi.input"].read(length) if length else b"",
    )


def _send(reply: Reply, start_response: StartResponse) -> list[bytes]:
    start_response(f"{reply.status} -", list(reply.headers.items()))
    return [reply.body]


def _hang_up(environ: Environ) -> None:
    connection = environ.get("werkzeug.socket")
    if connection is not None:
        connection.shutdown(socket.SHUT_RDWR)
