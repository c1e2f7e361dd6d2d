"""What the contract is checked against: the fake, the local cloud, and AWS where its two names are given."""

from __future__ import annotations

import functools
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_spot.localcloud import LocalCloud
from airflow_spot.localcloud.model import Pace
from airflow_spot.localcloud.runner import Launch
from airflow_spot.testing import Behaviour, FakeBatch

QUICK = Pace(submitted=0.05, runnable=0.05, starting=0.05, detection=0.1, blocked=0.2)

SUCCEEDS = ["sh", "-c", "echo done"]
FAILS = ["sh", "-c", "exit 7"]
RUNS_ON = ["sleep", "600"]
MISSING = ["no-such-program"]
STUBBORN = ["sh", "-c", "trap 'sleep 0.5; exit 0' TERM; sleep 600 & wait"]
"""Takes half a second after SIGTERM, and then exits 0."""

_BEHAVIOURS = {
    tuple(SUCCEEDS): Behaviour(after=1),
    tuple(FAILS): Behaviour(after=1, exit_code=7),
    tuple(RUNS_ON): Behaviour(),
    tuple(MISSING): Behaviour(start_error='CannotStartContainerError: exec: "no-such-program": not found'),
    tuple(STUBBORN): Behaviour(on_sigterm=0, sigterm_takes=0.5),
}


class Subject(ABC):
    """One implementation of the Batch API, with the names to use there."""

    queue = "spot"
    on_demand = "on-demand"
    definition = "airflow-spot"
    timeout = 15.0

    @property
    @abstractmethod
    def batch(self) -> Any: ...

    @abstractmethod
    def pause(self, seconds: float) -> None:
        """Let time pass."""

    def client(self, name: str) -> Any:
        raise NotImplementedError

    def reclaim(self, job: str, notice: float = 0.0) -> None:
        pytest.skip("hosts cannot be taken from here on demand")

    def fail_host(self, job: str) -> None:
        pytest.skip("hosts cannot be made to fail from here on demand")

    def drought(self, queue: str, *, on: bool) -> None:
        pytest.skip("capacity cannot be taken away from here on demand")

    def submit(self, command: list[str], *, name: str | None = None, **request: Any) -> str:
        overrides = {"command": command, **request.pop("containerOverrides", {})}
        request = {"jobQueue": self.queue, "jobDefinition": self.definition, **request}
        name = name or f"contract-{uuid.uuid4().hex[:10]}"
        return str(self.batch.submit_job(jobName=name, containerOverrides=overrides, **request)["jobId"])

    def describe(self, job: str) -> dict[str, Any]:
        return self.batch.describe_jobs(jobs=[job])["jobs"][0]

    def until(self, job: str, *statuses: str) -> dict[str, Any]:
        """Return the job once it is in one of the statuses."""
        for _ in range(round(self.timeout / self.step)):
            seen = self.describe(job)
            if seen["status"] in statuses:
                return seen
            self.pause(self.step)
        raise AssertionError(f"still {seen['status']} ({seen.get('statusReason')}), not {' or '.join(statuses)}")

    step = 0.05


class Fake(Subject):
    step = 0.5
    timeout = 60.0

    def __init__(self) -> None:
        self.fake = FakeBatch()
        self.fake.script(choose=self._choose)

    @staticmethod
    def _choose(launch: Launch) -> Behaviour:
        return _BEHAVIOURS.get(launch.command, Behaviour(after=1))

    @property
    def batch(self) -> Any:
        return self.fake

    def client(self, name: str) -> Any:
        return self.fake.client(name)

    def pause(self, seconds: float) -> None:
        self.fake.advance(seconds, step=0.1)

    def reclaim(self, job: str, notice: float = 0.0) -> None:
        self.fake.reclaim(job, notice=notice)

    def fail_host(self, job: str) -> None:
        self.fake.fail_host(job)

    def drought(self, queue: str, *, on: bool) -> None:
        self.fake.drought(queue, on=on)


@functools.cache
def _clients(cloud: LocalCloud, name: str) -> Any:
    return cloud.client(name)


class Local(Subject):
    def __init__(self, cloud: LocalCloud) -> None:
        self.cloud = cloud
        self._batch = self.client("batch")

    @property
    def batch(self) -> Any:
        return self._batch

    def client(self, name: str) -> Any:
        # A client of EC2 takes half a second to make.
        return _clients(self.cloud, name)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def reclaim(self, job: str, notice: float = 0.0) -> None:
        self.cloud.reclaim(job, notice=notice)

    def fail_host(self, job: str) -> None:
        self.cloud.fail_host(job)

    def drought(self, queue: str, *, on: bool) -> None:
        self.cloud.drought(queue, on=on)


class Aws(Subject):
    step = 10.0
    timeout = 1800.0

    def __init__(self, queue: str, definition: str) -> None:
        import boto3

        self.queue = self.on_demand = queue
        self.definition = definition
        self._session = boto3.Session()
        self._batch = self._session.client("batch")

    @property
    def batch(self) -> Any:
        return self._batch

    def client(self, name: str) -> Any:
        return self._session.client(name)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture(scope="module")
def _cloud() -> Iterator[LocalCloud]:
    with LocalCloud(pace=QUICK) as cloud:
        yield cloud


@pytest.fixture(params=["fake", "localcloud", "aws"])
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each implementation in turn. AWS costs money and minutes: only where both of its names are given."""
    if request.param == "fake":
        return Fake()
    if request.param == "localcloud":
        return Local(request.getfixturevalue("_cloud"))
    queue, definition = (os.environ.get(f"AIRFLOW_SPOT_CONTRACT_{name}") for name in ("QUEUE", "DEFINITION"))
    if not queue or not definition:
        pytest.skip(
            "AWS is not asked: set AIRFLOW_SPOT_CONTRACT_QUEUE and AIRFLOW_SPOT_CONTRACT_DEFINITION "
            "(an image with sh), and credentials with a region"
        )
    return Aws(queue, definition)
