"""The deadline sensor: its arguments, its trigger and its ends."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred

from airflow_spot import Tier
from airflow_spot.errors import ConfigurationError
from airflow_spot.operators.training import SpotTrainingOperator
from airflow_spot.rundir import requests
from airflow_spot.sensors.deadline import SpotDeadlineSensor


def sensor(**changes: Any) -> SpotDeadlineSensor:
    return SpotDeadlineSensor(**{"task_id": "deadline", "watch": "train", "deadline": "PT10H"} | changes)


def test_defers_with_plain_values(surface: Any) -> None:
    """The trigger gets plain values; the deadline counts from the DAG run's start."""
    with pytest.raises(TaskDeferred) as caught:
        sensor(deadline=timedelta(hours=10), downstream_duration="2h").execute(surface.context(task_id="deadline"))
    watch = caught.value.trigger.watch
    assert (watch["deadline"], watch["downstream_seconds"]) == ("PT36000S", 7200.0)
    assert (watch["began"], watch["task_ids"]) == ("2026-01-01T00:00:00+00:00", ["train"])
    assert caught.value.method_name == "execute_complete"


def test_watches_tasks_without_a_dependency() -> None:
    """A task, ids and lists of both are taken, and no edge is drawn."""
    with DAG("dag", schedule=None):
        train = SpotTrainingOperator(task_id="train", job_definition="j", tiers=[Tier.spot("a")])
        one, two = sensor(watch=train), sensor(task_id="two", watch=[train, "other"])
    assert (one.watch, two.watch) == (["train"], ["train", "other"])
    assert one.upstream_task_ids | train.downstream_task_ids == set()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"watch": []}, "give a training task"),
        ({"watch": [3]}, "give a training task"),
        ({"deadline": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"deadline": timedelta(hours=-1)}, "not negative"),
        ({"downstream_duration": "soon"}, "not a duration"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments(changes: dict[str, Any], said: str) -> None:
    """Wrong arguments are refused while the DAG is parsed."""
    with pytest.raises(ConfigurationError, match=said):
        sensor(**changes)


def test_returns_what_fired(surface: Any) -> None:
    """The return value says when, and for which training runs."""
    event = {"status": "fired", "message": "moved", "at": "2026-01-01T09:00:00+00:00", "runs": ["s3://b/r"]}
    assert sensor().execute_complete(surface.context(), event) == {
        "fired": True,
        "at": "2026-01-01T09:00:00+00:00",
        "runs": ["s3://b/r"],
    }


@pytest.mark.parametrize(
    ("status", "soft_fail", "raises"),
    [
        ("skipped", False, AirflowSkipException),
        ("failed", False, AirflowFailException),
        ("timed out", False, AirflowSensorTimeout),
        ("timed out", True, AirflowSkipException),
    ],
)
def test_other_ends(status: str, soft_fail: bool, raises: Any, surface: Any) -> None:
    """Skipped, failed and timed out each raise what Airflow knows them by, with the reason."""
    with pytest.raises(raises, match="the reason"):
        sensor(soft_fail=soft_fail).execute_complete(surface.context(), {"status": status, "message": "the reason"})


def test_worker_looks_once_a_poke(surface: Any) -> None:
    """deferrable=False pokes: the first look posts the deadline and waits."""
    assert not sensor(deferrable=False).poke(surface.context(task_id="deadline")).is_done
    [request] = requests.pending(surface.store(), ())
    assert (request.kind, request.who) == ("deadline", "sensor deadline")


def test_worker_waits_as_long_as_the_watch_does(surface: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base class's own time-out of a week does not end a watch of ten days."""
    from airflow_spot.triggers import deadline

    op = sensor(deferrable=False, deadline=timedelta(days=10))
    decided = deadline.Decided(
        status=deadline.Status.FIRED, message="moved", at=surface.kept.backend.now(), runs=("r",)
    )
    monkeypatch.setattr(deadline.Watch, "look", lambda watch: decided)
    assert op.execute(surface.context(task_id="deadline"))["runs"] == ["r"]
    assert op.timeout > timedelta(days=10).total_seconds()
