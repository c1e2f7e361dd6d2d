"""The listener: it stops the training of a task that was ended from outside, and disturbs nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from airflow_spot.errors import StoreUnavailable
from airflow_spot.plugin import SpotPlugin, listener


class Base(DeclarativeBase):
    """Tables of the test."""


class Row(Base):
    """Has what the listener reads of a task instance, and its module's name."""

    __tablename__ = "task_instance"

    id: Mapped[int] = mapped_column(primary_key=True)
    dag_id: Mapped[str] = mapped_column(default="dag")
    run_id: Mapped[str] = mapped_column(default="run")
    task_id: Mapped[str] = mapped_column(default="train")
    map_index: Mapped[int] = mapped_column(default=-1)
    try_number: Mapped[int] = mapped_column(default=1)
    operator: Mapped[str] = mapped_column(default="SpotTrainingOperator")
    state: Mapped[str] = mapped_column(default="failed")


Row.__module__ = "airflow.models.taskinstance"


@pytest.fixture
def db() -> Iterator[Session]:
    """A database with one deferred task of ours."""
    engine = sqlalchemy.create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[listener.Ended]:
    """The stops that were asked for, without their thread."""
    asked: list[listener.Ended] = []

    class Now:
        def submit(self, function: Any, ended: listener.Ended) -> None:
            assert function is listener.stop
            asked.append(ended)

    monkeypatch.setattr(listener, "_pool", Now)
    monkeypatch.setattr(listener, "_pointer", lambda row: None)
    return asked


def row(db: Session, **fields: Any) -> Row:
    made = Row(**fields)
    db.add(made)
    db.flush()
    return made


@pytest.mark.parametrize(
    ("state", "hook"),
    [
        ("failed", listener.on_task_instance_failed),
        ("success", listener.on_task_instance_success),
        ("skipped", listener.on_task_instance_skipped),
    ],
)
def test_marked_by_a_person(state: str, hook: Any, db: Session, stops: list[listener.Ended]) -> None:
    """A task that a person marked is stopped once the mark is in the database, not before."""
    hook(previous_state=None, task_instance=row(db, state=state))
    assert stops == []
    db.commit()
    [ended] = stops
    assert (ended.state, ended.by_person, ended.task_id, ended.try_number) == (state, True, "train", 1)


def test_rolled_back_mark_stops_nothing(db: Session, stops: list[listener.Ended]) -> None:
    """A mark that does not get into the database ends no training."""
    listener.on_task_instance_failed(previous_state=None, task_instance=row(db))
    db.rollback()
    row(db, id=2)
    db.commit()
    assert stops == []


def test_savepoint_settles_nothing(db: Session, stops: list[listener.Ended]) -> None:
    """A savepoint between the mark and its commit neither stops the training early nor loses the stop."""
    listener.on_task_instance_failed(previous_state=None, task_instance=row(db))
    with db.begin_nested():
        row(db, id=2)
    assert stops == []
    db.commit()
    db.commit()
    assert len(stops) == 1


def test_given_up_by_the_scheduler(db: Session, stops: list[listener.Ended]) -> None:
    """A task that its executor lost for good is stopped; one that will be tried again keeps its training."""
    listener.on_task_instance_failed(previous_state="running", task_instance=row(db, state="up_for_retry"))
    listener.on_task_instance_failed(previous_state="running", task_instance=row(db, id=2))
    db.commit()
    assert [False] == [ended.by_person for ended in stops]


def test_worker_s_own_end_is_none_of_ours(stops: list[listener.Ended]) -> None:
    """In a worker the task ends by itself, and the listener does nothing."""

    class RuntimeTaskInstance:
        state = "failed"

    listener.on_task_instance_failed(previous_state="running", task_instance=RuntimeTaskInstance())
    assert stops == []


def test_other_operators(db: Session, stops: list[listener.Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another operator is left alone; a subclass of ours is known by the pointer it pushed."""
    listener.on_task_instance_failed(previous_state=None, task_instance=row(db, operator="BashOperator"))
    monkeypatch.setattr(listener, "_pointer", lambda row: {"uri": "memory://surface/x"})
    listener.on_task_instance_failed(previous_state=None, task_instance=row(db, id=2, operator="TeamOperator"))
    db.commit()
    assert [{"uri": "memory://surface/x"}] == [ended.pointer for ended in stops]


def test_a_state_change_never_fails_because_of_us(
    db: Session, stops: list[listener.Ended], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong in the listener is logged, and the mark goes on."""

    def broken(row: Any) -> Any:
        raise RuntimeError("no XCom table")

    monkeypatch.setattr(listener, "_pointer", broken)
    with caplog.at_level(logging.ERROR):
        listener.on_task_instance_failed(previous_state=None, task_instance=row(db))
    db.commit()
    assert stops == []
    assert "airflow-spot orphans" in caplog.text


def ended(**changes: Any) -> listener.Ended:
    fields: dict[str, Any] = {
        "dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": -1, "try_number": 1,
        "state": "failed", "by_person": True, "pointer": None,
    }  # fmt: skip
    return listener.Ended(**fields | changes)


@pytest.fixture
def running(surface: Any) -> Any:
    """A training run with one job."""
    from airflow.sdk.exceptions import TaskDeferred

    from airflow_spot import Tier
    from airflow_spot.operators.training import SpotTrainingOperator

    op = SpotTrainingOperator(task_id="train", job_definition="train", command=["x"], tiers=[Tier.spot("spot")])
    with pytest.raises(TaskDeferred) as caught:
        op.execute(surface.context())
    caught.value.trigger._advance()
    return surface


@pytest.mark.parametrize("pushed", [True, False], ids=["pointer", "key rule"])
def test_stop_ends_the_job(pushed: bool, running: Any) -> None:
    """The record wants it stopped, by a person, and the job is told to end: by the pointer or by the key rule."""
    listener.stop(ended(pointer=running.xcoms["training_run"] if pushed else None))
    desired = running.record().desired
    assert (desired.state, desired.by_person, desired.why) == ("stopped", True, "the task was marked failed")
    assert running.batch.describe_jobs(jobs=running.jobs())["jobs"][0]["isTerminated"]


def test_stop_of_an_older_try_or_another_owner_does_nothing(running: Any) -> None:
    """A stop reaches only the training run that the marked task itself waits for."""
    listener.stop(ended(try_number=0))
    listener.stop(ended(run_id="yesterday", pointer=running.xcoms["training_run"]))
    assert running.record().desired.state == "running"


def test_stop_tries_again(running: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without an answer it tries again, with a pause; in the end the log says who finds what still runs."""
    from airflow_spot import stopping

    def away(*args: Any, **kwargs: Any) -> Any:
        raise StoreUnavailable("no answer")

    pauses: list[float] = []
    monkeypatch.setattr(stopping, "stop", away)
    with caplog.at_level(logging.WARNING):
        listener.stop(ended(), sleep=pauses.append)
    assert pauses == [5.0, 10.0, 15.0, 20.0]
    assert "airflow-spot orphans" in caplog.text


def test_request_where_the_record_cannot_be_written(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the compare-and-swap is refused for good, a stop request is left for the loop."""
    from airflow_spot import stopping
    from airflow_spot.rundir import requests
    from airflow_spot.rundir.record import RecordMoved

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise RecordMoved("written by others meanwhile")

    monkeypatch.setattr(stopping, "stop", refused)
    listener.stop(ended(by_person=False))
    [left] = requests.pending(running.store(), ())
    assert (left.kind, left.generation, left.by_person, left.try_number) == ("stop", 1, False, 1)


def test_airflow_takes_the_listener() -> None:
    """The plugin passes Airflow's own check, and its listener the hook specifications."""
    from airflow._shared.listeners.listener import ListenerManager
    from airflow._shared.listeners.spec import taskinstance

    SpotPlugin.validate()
    manager = ListenerManager()
    manager.add_hookspecs(taskinstance)
    manager.add_listener(SpotPlugin.listeners[0])
    assert manager.has_listeners
