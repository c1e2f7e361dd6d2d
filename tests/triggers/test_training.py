"""The trigger: one event, waits through outages, and a careful on_kill."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_spot import engine, session
from airflow_spot.errors import BatchUnavailable, ContractError, StoreDenied, StoreError, StoreUnavailable
from airflow_spot.rundir import codec, record
from airflow_spot.rundir.record import RecordMoved
from airflow_spot.rundir.values import Result
from airflow_spot.triggers import training
from airflow_spot.triggers.training import Backoff, SpotTrainingTrigger, phase

OWNER = {"deployment": "test", "dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": -1}


def trigger(**changes: Any) -> SpotTrainingTrigger:
    arguments: dict[str, Any] = {
        "run": "memory://surface/dag/run/train/-1",
        "generation": 1,
        "try_number": 1,
        "owner": OWNER,
        "poll_interval": 5.0,
    }
    return SpotTrainingTrigger(**arguments | changes)


@pytest.fixture
def opened(surface: Any) -> Any:
    """A training run that an operator has just opened."""
    from airflow.sdk.exceptions import TaskDeferred

    from airflow_spot import Tier
    from airflow_spot.operators.training import SpotTrainingOperator

    op = SpotTrainingOperator(
        task_id="train", job_definition="train", command=["x"], tiers=[Tier.spot("spot"), Tier.on_demand("on-demand")]
    )
    with pytest.raises(TaskDeferred):
        op.execute(surface.context())
    return surface


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of a trigger, which take no time."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(training.asyncio, "sleep", sleep)
    return waited


async def events(of: SpotTrainingTrigger) -> list[Any]:
    return [event.payload async for event in of.run()]


def steps(monkeypatch: pytest.MonkeyPatch, *script: Any) -> None:
    left = list(script)

    def advance(loop: engine.Loop) -> Any:
        step = left.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    monkeypatch.setattr(engine, "advance", advance)


def test_serializes_to_json_and_back() -> None:
    """Another triggerer gets all it needs, as plain values."""
    import json

    one = trigger(aws_conn_id="gpu", region_name="eu-west-1", verify=False, botocore_config={"read_timeout": 5})
    path, arguments = one.serialize()
    assert path == "airflow_spot.triggers.training.SpotTrainingTrigger"
    assert SpotTrainingTrigger(**json.loads(json.dumps(arguments))).serialize() == (path, arguments)


async def test_runs_the_loop_and_yields_the_result_once(opened: Any, waits: list[float], monkeypatch: Any) -> None:
    """The only event is the result; between two looks it waits as long as the loop says, the first time less."""
    rec = opened.record()
    result = Result(outcome="SUCCEEDED", message="done", generation=1, summary={"steps": 3})
    steps(monkeypatch, engine.Waiting(30.0, rec), engine.Waiting(30.0, rec), engine.Finished(result, rec))
    one = trigger()
    assert await events(one) == [
        {"run": one.run_uri, "generation": 1, "try_number": 1, "region": "eu-central-1", "result": codec.encode(result)}
    ]
    assert waits == [pytest.approx(30.0 * phase(one.run_uri)), 30.0]


async def test_real_loop_submits(opened: Any, waits: list[float]) -> None:
    """The first look submits the first attempt; the trigger's own loop is the engine's."""
    await asyncio.to_thread(trigger()._advance)
    assert [opened.batch.describe_jobs(jobs=opened.jobs())["jobs"][0]["jobQueue"].rpartition("/")[2]] == ["spot"]


async def test_superseded_ends_with_an_event(opened: Any, waits: list[float], monkeypatch: Any) -> None:
    """With a newer generation in the record the trigger does nothing and says so."""
    steps(monkeypatch, engine.Superseded(2))
    assert await events(trigger()) == [
        {"run": trigger().run_uri, "generation": 1, "try_number": 1, "region": "eu-central-1"}
    ]


async def test_outages_are_waited_out(opened: Any, waits: list[float], monkeypatch: Any) -> None:
    """No answer from Batch or the store decides nothing: the wait doubles, and starts anew after an answer."""
    done = engine.Finished(Result(outcome="SUCCEEDED", message="", generation=1), opened.record())
    gone = [BatchUnavailable("-"), StoreUnavailable("-"), StoreDenied("403"), StoreError("400"), RecordMoved("races")]
    steps(monkeypatch, *gone, engine.Waiting(7.0, opened.record()), BatchUnavailable("again"), done)
    assert len(await events(trigger())) == 1
    assert waits[:5] == [5.0, 10.0, 20.0, 40.0, 80.0]
    assert waits[6] == 5.0


async def test_other_errors_fail_the_trigger(opened: Any, waits: list[float], monkeypatch: Any) -> None:
    """What no wait would change goes to the operator, which stops the training."""
    steps(monkeypatch, ContractError("contract 2"))
    with pytest.raises(ContractError):
        await events(trigger())


def test_denial_is_waited_out_for_a_quarter_of_an_hour_only() -> None:
    """A policy that is being edited ends no training; one that stays does, and an outage never."""
    denied, missing, away = Backoff(30.0), Backoff(30.0), Backoff(30.0)
    with pytest.raises(StoreDenied):
        sum(denied.next(StoreDenied("403")) for _ in range(100))
    with pytest.raises(StoreError, match="no such bucket"):
        sum(missing.next(StoreError("no such bucket")) for _ in range(100))
    assert max(away.next(StoreUnavailable("-")) for _ in range(100)) == training.MAX_BACKOFF_SECONDS


def kill(monkeypatch: pytest.MonkeyPatch, state: Any, **changes: Any) -> None:
    def task_state(**task: Any) -> Any:
        assert task == {key: value for key, value in OWNER.items() if key != "deployment"}
        if isinstance(state, Exception):
            raise state
        return state

    monkeypatch.setattr(training, "task_state", task_state)
    asyncio.run(trigger(**changes).on_kill())


@pytest.mark.parametrize("state", ["deferred", LookupError("unknown"), RuntimeError("no API")], ids=str)
def test_on_kill_leaves_a_healthy_task_alone(state: Any, opened: Any, monkeypatch: Any) -> None:
    """A task that is still deferred, or whose state cannot be read, keeps its training."""
    kill(monkeypatch, state)
    assert opened.record().desired.state == "running"


@pytest.mark.parametrize("state", ["failed", "success", None])
def test_on_kill_stops_a_task_that_was_ended(state: Any, opened: Any, monkeypatch: Any) -> None:
    """Marked failed or success, or cleared: the record wants it stopped and the job is told to end."""
    trigger()._advance()
    kill(monkeypatch, state)
    assert opened.record().desired.state == "stopped"
    assert opened.batch.describe_jobs(jobs=opened.jobs())["jobs"][0]["isTerminated"]


def test_on_kill_of_an_older_generation_does_nothing(opened: Any, monkeypatch: Any) -> None:
    """After a Clear the new execute has come first: its training is not the old trigger's to stop."""
    loaded = record.load(opened.store())
    record.save(
        opened.store(), codec.decode(type(loaded.record), codec.encode(loaded.record) | {"generation": 2}), loaded.etag
    )
    kill(monkeypatch, None)
    assert opened.record().desired.state == "running"


def test_on_kill_may_be_forbidden(opened: Any, monkeypatch: Any) -> None:
    """cancel_on_kill=False keeps the training, whatever the task's state."""
    kill(monkeypatch, "failed", cancel_on_kill=False)
    assert opened.record().desired.state == "running"


async def test_kill_finishes_though_the_runner_cancels(opened: Any, monkeypatch: Any) -> None:
    """Airflow cancels an awaiting on_kill after a second; the thread that stops goes on."""
    import threading

    held, stopped = threading.Event(), threading.Event()

    def task_state(**task: Any) -> str:
        held.wait(10)
        return "failed"

    monkeypatch.setattr(training, "task_state", task_state)
    one = trigger()
    monkeypatch.setattr(one, "_session", lambda: (stopped.set(), session.connect(one.run_uri))[1])
    task = asyncio.ensure_future(one.on_kill())
    await asyncio.sleep(0.05)
    task.cancel()
    held.set()
    assert await asyncio.to_thread(stopped.wait, 10)


def test_job_link_follows_the_newest_job(opened: Any, monkeypatch: Any) -> None:
    """Each job is written twice, for the worker that has just left may write over the first; then no more."""
    from airflow.sdk.execution_time.xcom import XCom

    wrote: list[Any] = []
    monkeypatch.setattr(XCom, "set", lambda **fields: wrote.append(fields))
    one = trigger()
    one._advance()
    for _ in range(4):
        one._show_job(opened.record())
    assert len(wrote) == 2
    assert wrote[0]["key"] == "_link_BatchJobLink"
    assert wrote[0]["value"].endswith(f"#jobs/detail/{opened.jobs()[0]}")


def test_phases_differ() -> None:
    """Training runs that begin together are not looked at together."""
    phases = sorted(phase(f"s3://b/run/{number}") for number in range(200))
    assert phases[0] < 0.1
    assert phases[-1] > 0.9
