from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from moto.server import ThreadedMotoServer

from airflow_spot.localcloud.metadata import Instance, MetadataServer
from airflow_spot.rundir import attempts, owner, record
from airflow_spot.rundir.store import Store, open_store
from airflow_spot.rundir.values import (
    Attempt,
    AttemptState,
    Desired,
    End,
    Heartbeat,
    Owner,
    OwnerLease,
    Record,
)

BUCKET = "agent-runs"
OWNER = Owner(deployment="test", dag_id="dag", run_id="run", task_id="train")


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of an S3 that answers as AWS does."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()
    yield endpoint
    server.stop()


@pytest.fixture
def credentials(s3: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    values = {
        "AWS_ENDPOINT_URL": s3,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
    for key, value in values.items():
        monkeypatch.setenv(key, value)
    return values


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    """The metadata service of one spot instance."""
    server = MetadataServer(Instance(instance_id="i-0123456789abcdef0"))
    server.start()
    yield server
    server.stop()


class Training:
    """The Airflow side of one training run, and the jobs of its attempts, as real processes."""

    def __init__(self, store: Store, environment: dict[str, str], scratch: Path) -> None:
        self.store, self.environment, self.scratch = store, environment, scratch
        self.started: list[subprocess.Popen[bytes]] = []
        self.log = scratch / "log.txt"

    def write(self, *entries: Attempt, desired: Desired | None = None) -> None:
        """Write the record as the Airflow side would."""
        owner.renew(self.store, OwnerLease(owner=OWNER, generation=1))
        fresh = Record(run_key="dag/run/train/-1", owner=OWNER, spec={}, attempts=entries, desired=desired or Desired())
        loaded = record.load(self.store)
        if loaded is None:
            record.create(self.store, fresh)
        else:
            record.save(self.store, fresh, loaded.etag)

    def entry(self, number: int = 1, state: AttemptState = AttemptState.LIVE, **fields: object) -> Attempt:
        live = datetime.now(UTC) if state in (AttemptState.LIVE, AttemptState.CLOSING) else None
        base = Attempt(number=number, generation=1, tier="spot", market="spot", state=state, live_at=live)
        return replace(base, **fields)  # type: ignore[arg-type]

    def start(
        self,
        script: str,
        *options: str,
        number: int = 1,
        job: str = "job-1",
        command: list[str] | None = None,
        **extra: str,
    ) -> Job:
        """Start the agent of an attempt around a Python script."""
        path = self.scratch / f"train-{uuid4().hex[:6]}.py"
        path.write_text(script)
        home = self.scratch / job
        home.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(home),
            **self.environment,
            "AIRFLOW_SPOT_RUN": self.store.uri,
            "AIRFLOW_SPOT_ATTEMPT": str(number),
            "AIRFLOW_SPOT_CONTRACT": "1",
            "AIRFLOW_SPOT_HEARTBEAT_SECONDS": "0.3",
            "AWS_BATCH_JOB_ID": job,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AIRFLOW_SPOT_CHECKPOINT_DIR": str(home / "checkpoints"),
            "AIRFLOW_SPOT_OUTPUT_DIR": str(home / "model"),
            **extra,
        }
        inner = command or [sys.executable, str(path)]
        outer = [sys.executable, "-m", "airflow_spot.agent", "run", *options, "--", *inner]
        with self.log.open("ab") as log:
            process = subprocess.Popen(outer, env=environment, cwd=home, stdout=log, stderr=log, start_new_session=True)
        self.started.append(process)
        return Job(process, self, number)

    def heartbeat(self, number: int = 1) -> Heartbeat | None:
        found = attempts.heartbeat(self.store, number)
        return found and found[0]

    def end(self, number: int = 1) -> End:
        found = attempts.end(self.store, number)
        assert found is not None, self.log.read_text()
        return found

    def until(self, what: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait for something that other processes bring about."""
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


class Job:
    """A job's main process: the agent."""

    def __init__(self, process: subprocess.Popen[bytes], training: Training, number: int) -> None:
        self.process, self._training, self._number = process, training, number

    def wait(self, seconds: float = 30.0) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._training.log.read_text()) from None

    def terminate(self) -> None:
        """What a container runtime does."""
        self.process.send_signal(signal.SIGTERM)


@pytest.fixture
def training(credentials: dict[str, str], tmp_path: Path) -> Iterator[Training]:
    store = open_store(f"s3://{BUCKET}/{uuid4().hex[:8]}/dag/run/train/-1")
    found = Training(store, credentials, tmp_path)
    yield found
    found.close()


class Gate:
    """A way to the store that can be shut: connections to it are passed on, or refused and cut."""

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.shut = False
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Let nothing through any more, and cut what is open."""
        self.shut = True
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            if self.shut:
                connection.close()
                continue
            onward = socket.create_connection(self._target)
            self._open += [connection, onward]
            for source, sink in ((connection, onward), (onward, connection)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def gate(s3: str) -> Iterator[Gate]:
    """The way from the jobs to the store."""
    found = Gate(s3)
    yield found
    found.stop()


class Policy:
    """A way to the store that refuses some writes, as a bucket policy does."""

    def __init__(self, endpoint: str) -> None:
        self.denied: tuple[str, ...] = ()
        policy, target = self, endpoint.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, headers, data = self._answer(body)
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                if self.command != "HEAD":
                    headers = [("Content-Length", str(len(data)))]
                for name, value in headers:
                    if name.lower() == "content-length":
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def _answer(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                if self.command in ("PUT", "POST") and any(part in self.path for part in policy.denied):
                    return 403, [], b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
                onward = http.client.HTTPConnection(target, timeout=10)
                try:
                    onward.request(self.command, self.path, body, dict(self.headers))
                    reply = onward.getresponse()
                    return reply.status, reply.getheaders(), reply.read()
                finally:
                    onward.close()

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815 - names that the server looks for

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def policy(s3: str) -> Iterator[Policy]:
    """The way from the jobs to the store, with a policy of its own."""
    found = Policy(s3)
    yield found
    found.stop()
