"""Training runs in a memory store, and the command line over them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from airflow_spot.batch.aws import AwsClock
from airflow_spot.batch.client import BatchBackend, Clients
from airflow_spot.cli import app, where
from airflow_spot.core.model import Tier
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.rundir import attempts, codec, owner, record
from airflow_spot.rundir.memory import memory_client
from airflow_spot.rundir.store import Store, open_store
from airflow_spot.rundir.values import (
    Attempt,
    AttemptState,
    Counters,
    Heartbeat,
    Notice,
    Owner,
    OwnerLease,
    Phase,
    Record,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = datetime(2026, 12, 1, 14, 0, tzinfo=UTC)
SPEC = TrainingSpec(
    job_definition="train",
    tiers=(Tier.spot("spot-queue", price=0.97), Tier.on_demand("od-queue", price=3.06)),
    expected_seconds=7200.0,
)
_numbers = count(1)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def reclaimed(number: int = 1, **changes: Any) -> Attempt:
    attempt = Attempt(
        number=number,
        generation=1,
        tier="spot",
        market="spot",
        state=AttemptState.ENDED,
        ref=f"job-{number}",
        job_name=f"train-{number}",
        job_queue="spot-queue",
        why="spot first",
        intended_at=ago(31),
        started_at=ago(30),
        live_at=ago(29),
        stopped_at=ago(20),
        ended_at=ago(20),
        terminal=True,
        steps=1200,
        committed_step=1180,
        cost_usd=0.16,
        verdict=Verdict(outcome="RECLAIMED", sentence="AWS took the spot machine back", lost_steps=20),
    )
    return replace(attempt, **changes)


def training(number: int = 2, **changes: Any) -> Attempt:
    attempt = Attempt(
        number=number,
        generation=1,
        tier="spot",
        market="spot",
        state=AttemptState.LIVE,
        ref=f"job-{number}",
        job_name=f"train-{number}",
        job_queue="spot-queue",
        why="spot again: there is slack",
        intended_at=ago(16),
        started_at=ago(15),
        live_at=ago(14),
    )
    return replace(attempt, **changes)


def a_record(**changes: Any) -> Record:
    base = Record(
        run_key="final/manual__1/train/-1",
        owner=Owner(deployment="here", dag_id="final", run_id="manual__1", task_id="train"),
        spec=codec.encode(SPEC),
        attempts=(reclaimed(), training()),
        last_live=2,
        next_attempt=3,
        began_at=ago(31),
        deadline=NOW + timedelta(hours=1),
        promote_at=NOW + timedelta(minutes=12),
        why="spot again: there is slack",
        counters=Counters(reclaims=1, total_reclaims=1, lost_steps=20, cost_usd=0.16, billed_seconds={"spot": 600.0}),
    )
    return replace(base, **changes)


def a_beat(number: int = 2, **changes: Any) -> Heartbeat:
    beat = Heartbeat(
        attempt=number,
        job=f"job-{number}",
        incarnation=1,
        phase=Phase.TRAINING,
        step=1700,
        total_steps=5000,
        steps_per_second=3.2,
        committed_step=1650,
    )
    return replace(beat, **changes)


A_NOTICE = Notice(source="spot", seconds_left=110)


class NoJobs:
    """A Batch client that knows no job."""

    def describe_jobs(self, *, jobs: list[str]) -> dict[str, Any]:
        return {"jobs": []}

    def list_jobs(self, **_: Any) -> dict[str, Any]:
        return {"jobSummaryList": []}


@dataclass
class Place:
    """A run root, and the command line over it."""

    root: Store
    backend: BatchBackend

    @property
    def uri(self) -> str:
        return self.root.uri

    def connect(self, uri: str, access: where.Access) -> where.Reach:
        return where.Reach(uri=uri, store=open_store(uri), backend=self.backend)

    def __call__(self, *words: str) -> int:
        """Run the command and return its exit code."""
        return app.run([*words], connect=self.connect)

    def at(self, value: Record) -> Store:
        return self.root.at(value.run_key)

    def put(self, value: Record, *beats: Heartbeat, leased: bool = True) -> Store:
        """Lay down a training run."""
        store = self.at(value)
        record.create(store, value)
        for beat in beats:
            attempts.write_heartbeat(store, beat)
        if leased:
            owner.renew(store, OwnerLease(owner=value.owner, generation=value.generation))
        return store


def backend_of(client: Any) -> BatchBackend:
    return BatchBackend(Clients(batch=client, batch_once=client), clock=AwsClock(wall=lambda: NOW))


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """A memory store of its own, whose clock stands at NOW."""
    monkeypatch.setenv("COLUMNS", "140")
    name = f"cli-{next(_numbers)}"
    memory_client(name).clock = lambda: NOW
    return name


@pytest.fixture
def place(name: str) -> Place:
    """A run root without AWS Batch behind it."""
    return Place(root=open_store(f"memory://{name}/runs"), backend=backend_of(NoJobs()))


@pytest.fixture
def set_clock(name: str) -> Callable[[datetime], None]:
    """Set the time at which the store takes what is written next."""

    def to(instant: datetime) -> None:
        memory_client(name).clock = lambda: instant

    return to
