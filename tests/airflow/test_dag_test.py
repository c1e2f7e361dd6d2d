"""Real DAG runs, in this process, with real jobs of the local cloud: ``dag.test()``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, task

from airflow_spot import Tier
from airflow_spot.operators.training import SpotTrainingOperator
from airflow_spot.sensors.deadline import SpotDeadlineSensor

if TYPE_CHECKING:
    from airflow_spot.localcloud import LocalCloud

# Airflow runs in this process, with the warnings of all that it is made of: those are not ours to fix.
pytestmark = [pytest.mark.airflow, pytest.mark.filterwarnings("default")]

TIERS = [Tier.spot("spot", price=1.0), Tier.on_demand("on-demand", price=4.0)]


def training(task_id: str = "train", **changes: Any) -> SpotTrainingOperator:
    arguments: dict[str, Any] = {"job_definition": "airflow-spot", "tiers": TIERS, "poll_interval": 0.5}
    return SpotTrainingOperator(task_id=task_id, **arguments | changes)


def states(run: Any) -> dict[str, str]:
    return {
        f"{ti.task_id}{'' if ti.map_index < 0 else f'_{ti.map_index}'}": str(ti.state)
        for ti in run.get_task_instances()
    }


def xcom(run: Any, task_id: str, key: str = "return_value") -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = XComModel.get_many(key=key, run_id=run.run_id, dag_ids=run.dag_id, task_ids=task_id)
        found = session.execute(query.with_only_columns(XComModel.value)).first()
        return XComModel.deserialize_value(found) if found else None


def eventually(action: Callable[[], Any], seconds: float = 60.0) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (found := action()) is not None:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not come about in time")


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "in the worker"])
def test_training_completes(deferrable: bool, test_dag: Any, command: Any) -> None:
    """A training completes on spot; the return value is its summary, and the links lead to job and directory."""
    with DAG(f"completes_{deferrable}", schedule=None) as dag:
        training(command=command(12), deferrable=deferrable)
    run = test_dag(dag)
    assert states(run) == {"train": "success"}
    summary = xcom(run, "train")
    assert (summary["tier"], summary["attempts"], summary["metrics"]) == ("spot", 1, {"first": 0, "last": 12})
    assert summary["job_id"] in xcom(run, "train", "_link_BatchJobLink")
    assert xcom(run, "train", "training_run")["uri"] == summary["run"]


def test_reclaim_resumes_without_a_retry(test_dag: Any, command: Any, cloud: LocalCloud) -> None:
    """A reclaimed training goes on from its checkpoint, with no retry of the task."""
    with DAG("reclaimed", schedule=None) as dag:
        training(command=command(60, 0.1))

    def reclaim() -> None:
        client = cloud.client("batch")

        def started() -> str | None:
            jobs = client.list_jobs(jobQueue="spot", jobStatus="RUNNING")["jobSummaryList"]
            ours = [job["jobId"] for job in jobs if job["jobName"].startswith("reclaimed")]
            return ours[0] if ours else None

        job = eventually(started)
        time.sleep(4.0)
        cloud.reclaim(job)

    thread = threading.Thread(target=reclaim)
    thread.start()
    run = test_dag(dag)
    thread.join()
    summary = xcom(run, "train")
    assert (states(run), summary["reclaims"], summary["attempts"]) == ({"train": "success"}, 1, 2)
    assert summary["metrics"]["first"] > 0
    assert {ti.try_number for ti in run.get_task_instances()} == {1}


def test_user_error_is_the_task_s_own_retry(test_dag: Any) -> None:
    """A failing trainer raises with its reason; the task's retries decide, and the last one fails it."""
    with DAG("fails", schedule=None) as dag:
        training(command=["sh", "-c", "echo out of luck; exit 3"], retries=1, retry_delay=0.1)
    run = test_dag(dag)
    [instance] = run.get_task_instances()
    assert (str(instance.state), instance.try_number) == ("failed", 2)


def test_set_up_that_cannot_work_is_not_retried(test_dag: Any, command: Any) -> None:
    """A queue that does not exist fails the task at once, whatever its retries."""
    with DAG("misconfigured", schedule=None) as dag:
        training(command=command(1), tiers=[Tier.spot("no-such-queue")], retries=3)
    [instance] = test_dag(dag).get_task_instances()
    assert (str(instance.state), instance.try_number) == ("failed", 1)


def test_sweep_of_mapped_trials(test_dag: Any, trainer: Any) -> None:
    """Each trial of a sweep has a training run of its own, and the best is chosen from their summaries."""
    import sys

    @task
    def choose(trials: list[dict[str, Any]]) -> int:
        return max(trial["metrics"]["last"] for trial in trials)

    with DAG("sweep", schedule=None) as dag:
        trial = SpotTrainingOperator.partial(
            task_id="trial", job_definition="airflow-spot", tiers=[Tier.spot("spot")], poll_interval=0.5
        ).expand(command=[[sys.executable, str(trainer), steps, "0.01"] for steps in ("5", "9")])
        choose(trial.output)
    run = test_dag(dag)
    assert states(run) == {"trial_0": "success", "trial_1": "success", "choose": "success"}
    assert xcom(run, "choose") == 9


def test_sensor_after_the_end_is_skipped(test_dag: Any, command: Any) -> None:
    """Tasks run one after another here: a sensor that looks when the training has ended is skipped."""
    with DAG("too_late", schedule=None) as dag:
        train = training(command=command(5), deadline="PT1H", expected_duration="10s")
        train >> SpotDeadlineSensor(task_id="deadline", watch="train", deadline="PT1H")
    assert states(test_dag(dag)) == {"train": "success", "deadline": "skipped"}


def test_past_deadline_promotes_at_once(test_dag: Any, command: Any) -> None:
    """A deadline that cannot be kept is no error: the training goes to dependable capacity and says so."""
    with DAG("past", schedule=None) as dag:
        training(command=command(5), deadline="2020-01-01T00:00:00+00:00", expected_duration="1h")
    run = test_dag(dag)
    summary = xcom(run, "train")
    assert (states(run), summary["tier"]) == ({"train": "success"}, "on_demand")
    assert summary["slack_seconds"] < 0
