"""What only a live Airflow shows: kills while deferred, clears, a sensor in parallel, a paused DAG."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("default")]


def stopped(live: Any, dag_id: str) -> dict[str, Any]:
    """Wait until a training run is stopped and its jobs are gone, and return who wanted it so."""
    live.eventually(lambda: live.record(dag_id)["desired"]["state"] == "stopped", "the record wants it stopped")
    live.eventually(lambda: not live.jobs(dag_id), "its jobs end")
    return live.record(dag_id)["desired"]


@pytest.mark.parametrize(("dag_id", "state"), [("for_ever_0", "failed"), ("of_a_team", "success")])
def test_marked_by_a_person(dag_id: str, state: str, live: Any) -> None:
    """Marking a deferred task ends its job within seconds, also for a subclass of the operator."""
    live.start(dag_id)
    live.eventually(lambda: live.trained(dag_id), "it trains")
    links = live.airflow.call("GET", f"/api/v2/dags/{dag_id}/dagRuns/r1/taskInstances/train/links")["extra_links"]
    assert live.jobs(dag_id)[0] in links["Batch job"]
    assert f"prefix=runs/{dag_id}/r1/train/-1/" in links["Training run"]
    live.mark(dag_id, state)
    desired = stopped(live, dag_id)
    assert (desired["by_person"], desired["why"]) == (True, f"the task was marked {state}")


def test_failed_dag_run(live: Any) -> None:
    """Marking the DAG run failed ends the training of its deferred task."""
    live.start("for_ever_1")
    live.eventually(lambda: live.trained("for_ever_1"), "it trains")
    live.airflow.call("PATCH", "/api/v2/dags/for_ever_1/dagRuns/r1", {"state": "failed"})
    assert stopped(live, "for_ever_1")["by_person"]


def test_clear_while_deferred(live: Any) -> None:
    """A Clear of a deferred task begins a new generation that resumes, and leaves one job alive, not the old one."""
    live.start("for_ever_2")
    live.eventually(lambda: live.trained("for_ever_2"), "it trains")
    [old] = live.jobs("for_ever_2")
    live.clear("for_ever_2")
    live.eventually(lambda: live.trained("for_ever_2", generation=2), "its next generation trains")
    live.eventually(lambda: len(live.jobs("for_ever_2")) == 1, "one job is left")
    record = live.record("for_ever_2")
    assert (record["generation"], record["desired"]["state"]) == (2, "running")
    assert live.jobs("for_ever_2") != [old]
    assert next(item for item in record["attempts"] if item["generation"] == 2)["pin"]
    live.mark("for_ever_2", "failed")
    stopped(live, "for_ever_2")


def test_clear_after_a_stop(live: Any) -> None:
    """A person's stop is undone by a Clear, which goes on from the last checkpoint."""
    live.start("for_ever_3")
    live.eventually(lambda: live.trained("for_ever_3"), "it trains")
    live.mark("for_ever_3", "failed")
    stopped(live, "for_ever_3")
    live.clear("for_ever_3")
    live.eventually(lambda: live.trained("for_ever_3", generation=2), "it trains again")
    assert next(item for item in live.record("for_ever_3")["attempts"] if item["generation"] == 2)["pin"]
    live.mark("for_ever_3", "failed")
    stopped(live, "for_ever_3")


def test_execution_timeout_while_deferred(live: Any) -> None:
    """A deferral that times out fails the task and ends the job, which Airflow by itself would leave alive."""
    live.start("timed_out")
    live.eventually(lambda: live.airflow.state("timed_out", "r1") == "failed", "the task times out", 90)
    assert "execution_timeout" in stopped(live, "timed_out")["why"]


def test_paused_dag_trains_on(live: Any) -> None:
    """A reclaim in a paused DAG is survived: the loop needs no worker slot and no scheduling."""
    live.start("paused")
    live.eventually(lambda: live.trained("paused"), "it trains")
    live.airflow.call("PATCH", "/api/v2/dags/paused", {"is_paused": True})
    live.cloud.reclaim(live.jobs("paused")[0])
    result = live.eventually(lambda: live.record("paused").get("result"), "it ends while paused")
    assert (result["outcome"], result["summary"]["reclaims"]) == ("SUCCEEDED", 1)
    live.airflow.unpause("paused")
    live.eventually(lambda: live.airflow.state("paused", "r1") == "success", "the DAG run ends")


def test_sensor_promotes_in_parallel(live: Any) -> None:
    """Beside the deferred training the sensor's deadline is planned with, the promotion comes, and both succeed."""
    live.cloud.drought("spot")
    try:
        live.start("promoted")
        live.eventually(lambda: live.airflow.state("promoted", "r1") in {"success", "failed"}, "it ends", 110)
    finally:
        live.cloud.drought("spot", on=False)
    assert live.airflow.task_states("promoted", "r1") == {"train": "success", "deadline": "success"}
    fired, summary = live.airflow.xcom("promoted", "r1", "deadline"), live.airflow.xcom("promoted", "r1", "train")
    assert (fired["fired"], fired["runs"]) == (True, [summary["run"]])
    assert (summary["tier"], summary["promotions"], summary["slack_seconds"] > 0) == ("on_demand", 1, True)


@pytest.mark.parametrize("dag_id", ["final_training_run", "daily_dev_cycle"])
def test_example_dags(dag_id: str, live: Any) -> None:
    """Both example DAGs run to their end on a live Airflow and a calm market."""
    live.start(dag_id, "example", epochs=2, pace=0, poll_seconds=1)
    state = live.eventually(lambda: _ended(live, dag_id), "the DAG run ends", seconds=110)
    assert state == "success", live.airflow.task_states(dag_id, "example")


def _ended(live: Any, dag_id: str) -> str | None:
    state = str(live.airflow.state(dag_id, "example"))
    return state if state in ("success", "failed") else None
