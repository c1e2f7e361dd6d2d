"""A start that the store does not let happen, with the clock of the limits set short."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_spot.agent.settings import Settings
from airflow_spot.agent.supervise import Supervisor
from airflow_spot.errors import StoreDenied, StoreUnavailable
from airflow_spot.rundir import attempts, record
from airflow_spot.rundir.layout import RECORD
from airflow_spot.rundir.memory import memory_client
from airflow_spot.rundir.store import Store
from airflow_spot.rundir.values import Attempt, AttemptState, Owner, Record


class Faulty:
    """A store whose gets of the record fail, or everything does."""

    def __init__(self, client, error, *, record_only):
        self._client, self._error, self._record_only = client, error, record_only

    def __getattr__(self, name):
        def call(key, *arguments, **options):
            if not self._record_only or (name == "get" and key.endswith(RECORD)):
                raise self._error
            return getattr(self._client, name)(key, *arguments, **options)

        return call


@pytest.fixture
def start(tmp_path, request):
    """Run an agent over a faulty store, and return its exit code and the healthy store."""

    def run(error, *, record_only):
        client = memory_client(request.node.name)
        store = Store(client, "memory://x/run", "run/")
        live = datetime.now(UTC)
        entry = Attempt(number=1, generation=1, tier="t", market="spot", state=AttemptState.LIVE, live_at=live)
        owner = Owner(deployment="d", dag_id="d", run_id="r", task_id="t")
        record.create(store, Record(run_key="k", owner=owner, spec={}, attempts=(entry,)))
        for name in ("checkpoints", "model"):
            (tmp_path / name).mkdir()
        settings = Settings(
            run_uri="memory://x/run",
            attempt=1,
            job="job-1",
            command=("false",),
            checkpoint_dir=tmp_path / "checkpoints",
            output_dir=tmp_path / "model",
            heartbeat_seconds=0.1,
            metadata_endpoint=None,
            record_patience_seconds=0.5,
        )
        faulty = Store(Faulty(client, error, record_only=record_only), "memory://x/run", "run/")
        return Supervisor(settings, faulty, {}).run(), store

    return run


def test_a_store_that_never_answers_ends_the_start(start):
    """Nothing was claimed, nothing is trained."""
    code, store = start(StoreUnavailable("silence"), record_only=False)
    assert (code, attempts.claims(store, 1)) == (69, [])


def test_a_record_that_cannot_be_read_ends_the_start(start):
    """Fail closed: no trainer begins unfenced; the end file says why."""
    code, store = start(StoreUnavailable("silence"), record_only=True)
    end = attempts.end(store, 1)
    assert (code, end.exit_code, end.reason) == (69, -1, "fenced")
    assert "could not be read" in end.message


def test_a_record_that_may_not_be_read_is_misconfigured_at_once(start):
    """No waiting where the answer is no."""
    code, store = start(StoreDenied("403"), record_only=True)
    end = attempts.end(store, 1)
    assert (code, end.reason) == (78, "misconfigured")
    assert "jobRoleArn" in end.message
