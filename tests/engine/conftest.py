"""A world in one process: the real loop, the real Batch adapter over the fake Batch, a store in memory, one clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config

from airflow_spot import engine, opening
from airflow_spot.batch.aws import AwsClock, Clients
from airflow_spot.batch.client import BatchBackend
from airflow_spot.batch.watcher import Watcher
from airflow_spot.core.model import Tier
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.rundir import attempts, checkpoints, record
from airflow_spot.rundir.memory import MemoryClient
from airflow_spot.rundir.store import Store
from airflow_spot.rundir.values import Attempt, Claim, End, Heartbeat, Owner, Phase, Record
from airflow_spot.testing import Behaviour, FakeBatch

OWNER = Owner(deployment="test", dag_id="dag", run_id="run", task_id="train")


@dataclass
class Agent:
    """A scripted agent: it writes what the true one writes, when a test says so."""

    world: World
    number: int
    job: str
    step: int = 0
    committed: str | None = None
    ancestors: list[str] = field(default_factory=list)
    incarnation: int = 1

    def claim(self) -> Agent:
        attempts.claim(self.world.store, Claim(attempt=self.number, job=self.job, incarnation=self.incarnation))
        return self.beat(phase=Phase.HOLDING)

    def beat(self, **fields: Any) -> Agent:
        base = Heartbeat(
            attempt=self.number,
            job=self.job,
            incarnation=self.incarnation,
            phase=Phase.TRAINING,
            step=self.step or None,
            total_steps=100,
            market="spot",
            committed=self.committed,
            committed_step=int(self.committed[:12]) if self.committed else None,
        )
        attempts.write_heartbeat(self.world.store, replace(base, **fields))
        return self

    def train(self, step: int, **fields: Any) -> Agent:
        """Report a step without committing it."""
        self.step = step
        return self.beat(**fields)

    def commit(self, step: int) -> str:
        """Commit a checkpoint of that step, after what this attempt continued from."""
        entry = self.entry
        before = self.ancestors or ([entry.pin] if entry and entry.pin else [])
        folder = self.world.folder / f"{self.number}-{step}"
        folder.mkdir()
        (folder / "weights").write_text(f"{step}")
        done = checkpoints.commit(
            self.world.store, folder, step=step, attempt=self.number, job=self.job, ancestors=before,
            total_steps=100, may_commit=lambda: True,
        )  # fmt: skip
        self.committed, self.step, self.ancestors = done.checkpoint, max(step, self.step), [done.checkpoint, *before]
        self.beat()
        return done.checkpoint

    def end(
        self, *, exit_code: int = 0, completed: bool = False, reason: str = "exit", finish: bool = True, **fields: Any
    ) -> Agent:
        """Say the last word; the container exits right after it."""
        base = End(
            attempt=self.number, job=self.job, incarnation=self.incarnation, exit_code=exit_code,
            interrupted=reason != "exit", completed=completed, reason=reason, final_step=self.step,
            total_steps=100, committed=self.committed, new_steps=self.step,
        )  # fmt: skip
        attempts.write_end(self.world.store, replace(base, **fields))
        if finish:
            self.world.batch.finish(self.job, exit_code)
        return self

    @property
    def entry(self) -> Attempt | None:
        """This attempt's entry in the record."""
        return next((item for item in self.world.record.attempts if item.number == self.number), None)


class World:
    """Everything a training run touches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batch = FakeBatch()
        self.batch.script(Behaviour(after=None))
        self.batch.register_job_definition(
            jobDefinitionName="train",
            type="container",
            containerProperties={
                "image": "i",
                "command": ["spot-agent", "run", "--", "true"],
                "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "512"}],
            },
        )
        self.store = Store(MemoryClient(self.batch.clock.now), "memory://test/dag/run/train/-1", "dag/run/train/-1/")
        self.backend = self.new_backend()
        self.said: list[str] = []

    def new_backend(self) -> BatchBackend:
        """A backend as another process would have it: nothing is cached."""
        once = self.batch.new_client(config=Config(retries={"total_max_attempts": 1}))
        clients = Clients(
            batch=self.batch.client("batch"),
            batch_once=once,
            ec2=self.batch.client("ec2"),
            ecs=self.batch.client("ecs"),
        )
        clock = AwsClock(monotonic=self.batch.clock.monotonic, wall=self.batch.clock.now)
        backend = BatchBackend(clients, clock=clock)
        backend.watcher = Watcher(backend._describe_page, monotonic=self.batch.clock.monotonic)
        return backend

    @staticmethod
    def spec(**changes: Any) -> TrainingSpec:
        base = TrainingSpec(
            job_definition="train",
            tiers=(Tier.spot("spot", price=0.97), Tier.on_demand("on-demand", price=3.06)),
            command=("python", "train.py"),
            awslogs_enabled=False,
        )
        return replace(base, **changes)

    def open(self, *, try_number: int = 1, max_tries: int = 0, who: Owner = OWNER, **changes: Any) -> opening.Opened:
        return opening.open_training_run(
            self.store, self.backend, run_key="dag/run/train/-1", who=who, spec=self.spec(**changes),
            try_number=try_number, max_tries=max_tries, began=self.batch.clock.now(),
        )  # fmt: skip

    def loop(self, generation: int = 1, try_number: int = 1) -> engine.Loop:
        """A caller that has just been born."""
        return engine.Loop(
            store=self.store, backend=self.backend, generation=generation, try_number=try_number, say=self.said.append
        )

    def advance(self, loop: engine.Loop | None = None, *, seconds: float = 0.0) -> Any:
        """Let time pass, then let a caller (a new one unless given) bring the training run forward."""
        self.batch.advance(seconds)
        return engine.advance(loop or self.loop())

    def until(self, done: Callable[[Record], bool], loop: engine.Loop | None = None, *, polls: int = 40) -> Record:
        """Poll until the record is as wanted."""
        for _ in range(polls):
            self.advance(loop, seconds=5)
            if done(self.record):
                return self.record
        raise AssertionError(f"never came to it: {self.record}")

    def go_live(self, number: int, loop: engine.Loop | None = None) -> Agent:
        """Bring an attempt to life: its job runs, its agent claims it, the loop makes it live."""
        self.until(lambda rec: rec.next_attempt > number and self.runs(number), loop)
        agent = self.agent(number).claim()
        self.until(lambda rec: self.entry(number).live_at is not None, loop)
        return agent

    def agent(self, number: int) -> Agent:
        """The agent in an attempt's job."""
        return Agent(self, number, str(self.entry(number).ref))

    def runs(self, number: int) -> bool:
        ref = self.entry(number).ref
        return bool(ref) and self.status(str(ref)) == "RUNNING"

    @property
    def record(self) -> Record:
        loaded = record.load(self.store)
        assert loaded is not None
        return loaded.record

    def entry(self, number: int) -> Attempt:
        return next(item for item in self.record.attempts if item.number == number)

    def status(self, ref: str) -> str:
        return str(self.batch.describe_jobs(jobs=[ref])["jobs"][0]["status"])

    def jobs(self) -> dict[str, str]:
        """Every job ever submitted, with its status."""
        return {job: self.status(job) for job in self.batch.model.state.jobs}

    def wait(self, span: timedelta) -> None:
        self.batch.advance(span.total_seconds(), step=30)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A calm world with a spot and an on-demand queue."""
    return World(tmp_path)
