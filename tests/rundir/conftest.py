"""Stores to test against: memory, a moto S3 server, and either behind a client that fails when it is told to."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from airflow_spot.rundir.memory import MemoryClient
from airflow_spot.rundir.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REGION = "eu-west-1"
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **span: float) -> datetime:
        self.now += timedelta(**span)
        return self.now


@dataclass
class Faults:
    """A client in front of another: raises at chosen calls, before or after their effect."""

    inner: Any
    at: dict[int, Exception] = field(default_factory=dict)
    """Number of the write (from 1), and what it raises."""
    after: bool = False
    """The effect happens, its reply is lost."""
    methods: tuple[str, ...] = ("put",)
    calls: int = 0
    log: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        return self._wrapped(name, method) if name in self.methods else method

    def _wrapped(self, name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            self.log.append(name)
            error = self.at.get(self.calls)
            if error and not self.after:
                raise error
            done = method(*args, **kwargs)
            if error:
                raise error
            return done

        return call


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """One moto server for the session (about 2 s), with the bucket ``runs``."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    boto_s3(endpoint).create_bucket(Bucket="runs", CreateBucketConfiguration={"LocationConstraint": REGION})
    yield endpoint
    server.stop()


def boto_s3(endpoint: str) -> Any:
    import boto3

    return boto3.client(
        "s3", endpoint_url=endpoint, region_name=REGION, aws_access_key_id="key", aws_secret_access_key="secret"
    )


def credentials() -> dict[str, Any]:
    return {"access_key_id": "key", "secret_access_key": "secret", "token": None, "expires_at": None}


@pytest.fixture
def s3(s3_endpoint: str) -> Any:
    """A boto3 client of the moto server."""
    return boto_s3(s3_endpoint)


@pytest.fixture
def open_s3(s3_endpoint: str) -> Callable[..., Store]:
    """Open a directory on the moto server, a fresh one unless named."""

    def make(uri: str = "", **options: Any) -> Store:
        uri = uri or f"s3://runs/{uuid4().hex[:8]}"
        given = {"endpoint": s3_endpoint, "region": REGION, "credentials": credentials, **options}
        return open_store(uri, **given)

    return make


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> Store:
    """A fresh directory, of each kind of store."""
    if request.param == "memory":
        return open_store(f"memory://{uuid4().hex}/root")
    return request.getfixturevalue("open_s3")()


@pytest.fixture
def clock() -> Clock:
    """A clock that the test moves."""
    return Clock()


@pytest.fixture
def memory(clock: Clock) -> Store:
    """A directory in memory whose last-modified times come from ``clock``."""
    return Store(MemoryClient(clock), "memory://test")


@pytest.fixture
def faulty() -> Callable[..., tuple[Store, Faults]]:
    """Make the same directory behind a client that fails."""

    def make(store: Store, **faults: Any) -> tuple[Store, Faults]:
        client = Faults(store.client, **faults)
        return Store(client, store.uri, store.prefix), client

    return make
