"""The example DAGs run on the local cloud."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

# Airflow runs in this process, with the warnings of all that it is made of: those are not ours to fix.
pytestmark = [pytest.mark.airflow, pytest.mark.filterwarnings("default")]

DAGS = Path(__file__).parents[2] / "dags"


def example(name: str) -> Any:
    """Return the DAG of an example file."""
    spec = importlib.util.spec_from_file_location(name, DAGS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.dag


def returned(run: Any, task_id: str, map_index: int = -1) -> Any:
    """Return a task's XCom."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = XComModel.get_many(
            key="return_value", run_id=run.run_id, dag_ids=run.dag_id, task_ids=task_id, map_indexes=map_index
        )
        found = session.execute(query.with_only_columns(XComModel.value)).first()
        return XComModel.deserialize_value(found)


@pytest.mark.timeout(180)
def test_daily_dev_cycle(test_dag: Any) -> None:
    """The check trains on the reservation, each trial on spot, and the best of the trials is chosen."""
    run = test_dag(example("daily_dev_cycle"), run_conf={"epochs": 2, "pace": 0, "poll_seconds": 0.5})

    assert {"success"} == {str(task.state) for task in run.get_task_instances()}
    trials = [returned(run, "trial", index) for index in range(4)]
    assert ["spot"] * 4 == [trial["tier"] for trial in trials]
    assert "reserved" == returned(run, "check")["tier"]
    assert max(trial["metrics"]["accuracy"] for trial in trials) == returned(run, "choose")["metrics"]["accuracy"]
