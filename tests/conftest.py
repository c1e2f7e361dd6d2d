"""What all tests share: an Airflow of their own, and the Airflow surface over a fake AWS."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from airflow_spot.rundir.store import Store
    from airflow_spot.rundir.values import Record
    from airflow_spot.testing import FakeBatch

# Airflow reads this when it is imported: no test may see, or write to, an Airflow of the one who runs it.
if "AIRFLOW_HOME" not in os.environ:
    _home = tempfile.mkdtemp(prefix="airflow-spot-tests-")
    os.environ["AIRFLOW_HOME"] = _home
    atexit.register(shutil.rmtree, _home, ignore_errors=True)
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")

ROOT = "memory://surface"
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Surface:
    """The Airflow surface over the real loop, the real Batch adapter on a fake Batch, and a store in memory."""

    batch: FakeBatch
    kept: Any
    root: Store
    xcoms: dict[str, Any] = field(default_factory=dict)

    def context(self, *, task_id: str = "train", try_number: int = 1, max_tries: int = 0, map_index: int = -1) -> Any:
        """A task context as far as our operators read it."""
        ti = SimpleNamespace(
            dag_id="dag", run_id="run", task_id=task_id, map_index=map_index, try_number=try_number,
            max_tries=max_tries, xcom_push=self._push,
        )  # fmt: skip
        return {"ti": ti, "dag_run": SimpleNamespace(start_date=BEGAN, run_after=BEGAN)}

    def _push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def store(self, task_id: str = "train", map_index: int = -1) -> Store:
        """The run directory of a task."""
        return self.root.at(f"dag/run/{task_id}/{map_index}")

    def record(self, task_id: str = "train", map_index: int = -1) -> Record:
        """Its record."""
        from airflow_spot.rundir import record

        loaded = record.load(self.store(task_id, map_index))
        assert loaded is not None
        return loaded.record

    def jobs(self) -> list[str]:
        """Ids of the jobs that were submitted, in order."""
        return [*self.batch.model.state.jobs]


@pytest.fixture
def surface(monkeypatch: pytest.MonkeyPatch) -> Iterator[Surface]:
    """The Airflow surface; it costs no network and no time."""
    from airflow_spot import session
    from airflow_spot.batch.aws import AwsClock, Clients
    from airflow_spot.batch.client import BatchBackend
    from airflow_spot.batch.watcher import Watcher
    from airflow_spot.rundir.memory import MemoryClient
    from airflow_spot.rundir.store import Store
    from airflow_spot.testing import Behaviour, FakeBatch

    batch = FakeBatch()
    batch.script(Behaviour(after=None))
    batch.register_job_definition(
        jobDefinitionName="train",
        type="container",
        containerProperties={
            "image": "i",
            "command": ["spot-agent", "run", "--", "true"],
            "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "512"}],
        },
    )
    clock = AwsClock(monotonic=batch.clock.monotonic, wall=batch.clock.now)
    client = batch.client("batch")
    backend = BatchBackend(Clients(batch=client, batch_once=client, ec2=batch.client("ec2")), clock=clock)
    backend.watcher = Watcher(backend._describe_page, monotonic=batch.clock.monotonic)
    root = Store(MemoryClient(batch.clock.now), ROOT, "")
    account = SimpleNamespace(region="eu-central-1", endpoints={}, verify=None)
    kept = session._Kept(account=account, backend=backend, stores={ROOT: (root, "eu-west-1")})
    monkeypatch.setattr(session, "_make", lambda *args: kept)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_SPOT__RUN_ROOT", ROOT)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_SPOT__DEPLOYMENT", "test")
    session.forget()
    yield Surface(batch, kept, root)
    session.forget()


@pytest.fixture
def here() -> Path:
    """The repository."""
    return Path(__file__).parent.parent
