"""A whole training run on one machine: the local cloud, the real loop, the real agent, a real training."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest

from airflow_spot import engine, opening
from airflow_spot.batch.aws import Clients
from airflow_spot.batch.client import BatchBackend
from airflow_spot.core.model import Tier
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.errors import BatchUnavailable, StoreError
from airflow_spot.localcloud import LocalCloud
from airflow_spot.localcloud.market import parse
from airflow_spot.rundir import artifacts, checkpoints, record
from airflow_spot.rundir.store import Store, open_store
from airflow_spot.rundir.values import Attempt, AttemptState, Owner, Record, Result

TRAINER = Path(__file__).parents[2] / "dags/trainers/train_digits.py"
REGION = "us-east-1"
EPOCHS, STEPS = 3, 69
SEED = ("--epochs", str(EPOCHS))
QUICK = {"runnable": 0.2, "starting": 0.2, "detection": 0.5}
QUEUES = ("spot", "reserved", "on-demand")


class Cloud(LocalCloud):
    """A local cloud whose object store can be taken away."""

    store_down = False

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if self.store_down and f"/{self.bucket}" in str(environ.get("PATH_INFO", "")):
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        return super()._serve(environ, start_response)


@dataclass
class Caller:
    """One caller of the loop in a thread of its own, as a trigger is."""

    run: Run
    loop: engine.Loop
    last: Any = None
    errors: list[Exception] = field(default_factory=list)
    _leave: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> Caller:
        self._thread = threading.Thread(target=self._drive, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._leave.set()
        if self._thread is not None:
            self._thread.join(timeout=20)

    def _drive(self) -> None:
        while not self._leave.is_set():
            try:
                self.last = engine.advance(self.loop)
            except (StoreError, BatchUnavailable) as error:
                self.errors.append(error)
                self._leave.wait(0.5)
                continue
            if not isinstance(self.last, engine.Waiting):
                return
            self._leave.wait(min(self.last.seconds, 1.0))


@dataclass
class Run:
    """A training run and everything a test may do to it."""

    cloud: Cloud
    key: str
    folder: Path
    said: list[str] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        uri = f"s3://{self.cloud.bucket}/runs/{self.key}"
        self.store: Store = open_store(uri, endpoint=self.cloud.endpoint_url, region=REGION)
        self.backend = self.new_backend()

    def new_backend(self) -> BatchBackend:
        session = boto3.Session("local", "local", region_name=REGION)
        return BatchBackend(Clients.from_session(session, REGION, self.cloud.endpoint_url))

    def spec(self, *, pace: float = 0.06, **changes: Any) -> TrainingSpec:
        base = TrainingSpec(
            job_definition="train-digits",
            tiers=(
                Tier.spot("spot", price=0.97),
                Tier.reserved("reserved", price=0.0),
                Tier.on_demand("on-demand", price=3.06),
            ),
            command=(sys.executable, str(TRAINER), *SEED, "--pace", str(pace)),
            environment={"AIRFLOW_SPOT_SAVE_INTERVAL": "0.5"},
            poll_seconds=0.5,
            heartbeat_seconds=0.5,
        )
        return replace(base, **changes)

    def open(self, *, try_number: int = 1, max_tries: int = 0, **changes: Any) -> opening.Opened:
        return opening.open_training_run(
            self.store, self.backend, run_key=self.key, spec=self.spec(**changes),
            who=Owner(deployment="test", dag_id="d", run_id="r", task_id=self.key),
            try_number=try_number, max_tries=max_tries, began=self.backend.now(),
        )  # fmt: skip

    def call(self, *, generation: int = 1, try_number: int = 1) -> Caller:
        """Start a caller of the loop with a backend of its own."""
        loop = engine.Loop(
            store=self.store, backend=self.new_backend(), generation=generation, try_number=try_number, say=self.say
        )
        self.callers.append(Caller(self, loop).start())
        return self.callers[-1]

    def say(self, line: str) -> None:
        self.said.append(f"{time.monotonic() - self.began:6.1f} {line}")

    def stop(self) -> None:
        for caller in self.callers:
            caller.stop()

    # -- looking

    @property
    def record(self) -> Record:
        loaded = record.load(self.store)
        assert loaded is not None
        return loaded.record

    def wait(self, met: Callable[[Record], Any], what: str = "it", *, seconds: float = 45.0) -> Record:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            rec = self.record
            if met(rec):
                return rec
            time.sleep(0.05)
        raise AssertionError(f"never came to {what}:\n" + "\n".join(self.said) + f"\n{self.record}")

    def live(self, number: int | None = None, *, committed: int = 0) -> Attempt:
        """Wait for an attempt that is live, and has committed so many checkpoints."""

        def met(rec: Record) -> Attempt | None:
            live = next((a for a in rec.attempts if a.state is AttemptState.LIVE), None)
            if live is None or number not in (None, live.number):
                return None
            return live if len(self.commits(live.number)) >= committed else None

        found = met(self.wait(met, f"a live attempt with {committed} checkpoints"))
        return found or self.live(number, committed=committed)

    def commits(self, number: int) -> list[str]:
        return [
            item.key for item in self.store.list("checkpoints/")
            if f"-a{number:04d}-" in item.key and item.key.endswith("manifest.json")
        ]  # fmt: skip

    def jobs(self) -> list[Any]:
        """Every job that was ever submitted for this training run."""
        return [
            job for job in list(self.cloud.batch.state.jobs.values())
            if any(pair.get("value") == self.store.uri for pair in _environment(self.cloud, job.id))
        ]  # fmt: skip

    def processes(self, *, attempt: int | None = None, text: str = "") -> list[int]:
        """Processes of this training run, of one attempt, with a text in the command line."""
        marks = [f"AIRFLOW_SPOT_RUN={self.store.uri}".encode()]
        if attempt is not None:
            marks.append(f"AIRFLOW_SPOT_ATTEMPT={attempt}".encode())
        return [pid for pid in _pids() if _has(pid, marks, text.encode())]

    def agent(self, attempt: int) -> int:
        return min(pid for pid in self.processes(attempt=attempt) if b"spot-agent" in _read(pid, "cmdline"))

    def trainer(self, attempt: int) -> int:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            found = [
                p for p in self.processes(attempt=attempt, text="train_digits")
                if b"spot-agent" not in _read(p, "cmdline")
            ]  # fmt: skip
            if found:
                return max(found)
            time.sleep(0.05)
        raise AssertionError("no trainer")

    # -- what must hold at the end

    def finish(self, *, seconds: float = 50.0) -> Result:
        """Wait for the result, then check all that must hold whatever happened."""
        rec = self.wait(lambda found: found.result, "a result", seconds=seconds)
        self.wait_gone()
        self.stop()
        assert rec.result is not None
        return rec.result

    def wait_gone(self) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if all(_terminal(job) for job in self.jobs()) and not self.processes():
                return
            time.sleep(0.1)
        left = [(pid, _read(pid, "cmdline")) for pid in self.processes()]
        states = [(job.id, job.name, job.status) for job in self.jobs()]
        raise AssertionError(f"left over: {left} {states}\n" + "\n".join(self.said))

    def check_model(self, result: Result, reference: dict[str, Any], *, line: bool = True) -> None:
        """The result is a success whose weights are those of a training that nothing disturbed, to the bit."""
        story = "\n".join(self.said)
        assert (result.outcome, result.summary.get("steps")) == ("SUCCEEDED", STEPS), f"{result}\n{story}"
        prefix = result.summary["artifacts"].removeprefix(self.store.uri).lstrip("/")
        target = self.folder / "model"
        artifacts.restore_artifacts(self.store, prefix, target)
        with np.load(target / "model.npz") as model:
            different = [name for name in reference if not np.array_equal(reference[name], model[name])]
        assert different == [], story
        if line:
            self.check_line()

    def check_line(self) -> None:
        """Along the line neither steps nor attempts ever go back, and each attempt began where its pin is."""
        rec = self.record
        found = checkpoints.present(self.store)
        line = checkpoints.line(found, record=rec)
        steps = [item.manifest.step for item in line]
        owners = [item.manifest.attempt for item in line]
        assert steps == sorted(set(steps)), (steps, self.said)
        assert owners == sorted(owners), (owners, self.said)
        names = [job.name for job in self.jobs()]
        assert len(names) == len(set(names)), names


def _environment(cloud: Cloud, job: str) -> list[dict[str, str]]:
    found = cloud.batch.call("DescribeJobs", {"jobs": [job]})["jobs"][0]
    pairs = list(found.get("container", {}).get("environment", []))
    for task in found.get("ecsProperties", {}).get("taskProperties", []):
        for container in task.get("containers", []):
            pairs += container.get("environment", [])
    return pairs


def _terminal(job: Any) -> bool:
    return str(job.status) in {"SUCCEEDED", "FAILED"}


def _pids() -> list[int]:
    return [int(item.name) for item in Path("/proc").iterdir() if item.name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _has(pid: int, marks: list[bytes], text: bytes) -> bool:
    variables = _read(pid, "environ").split(b"\0")
    return all(mark in variables for mark in marks) and text in _read(pid, "cmdline")


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """One quick, calm cloud for all tests: each does its own harm."""
    market = parse({"market": [{"queue": name, **QUICK} for name in QUEUES]})
    with pytest.MonkeyPatch.context() as patch, Cloud(market=market, directory=tmp_path_factory.mktemp("jobs")) as it:
        patch.setenv("AWS_ACCESS_KEY_ID", "local")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "local")
        yield it


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The weights of a training that nothing disturbed."""
    folder = tmp_path_factory.mktemp("reference")
    # As bare as a job's: what picks the kernels of a BLAS changes the last bit.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "LD_LIBRARY_PATH") or name.endswith("_NUM_THREADS")
    }
    command = [sys.executable, "-W", "ignore", str(TRAINER), *SEED, "--output", str(folder)]
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=100)
    with np.load(folder / "model.npz") as model:
        return dict(model)


@pytest.fixture
def training(cloud: Cloud, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """A training run of this test's own."""
    run = Run(cloud, f"d/r/{request.node.name.replace('[', '-').replace(']', '')}/-1", tmp_path)
    try:
        yield run
    finally:
        run.stop()
        cloud.store_down = False
        for job in run.jobs():
            if not _terminal(job):
                cloud.batch.call("TerminateJob", {"jobId": job.id, "reason": "the test is over"})
