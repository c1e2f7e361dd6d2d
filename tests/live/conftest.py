"""One real ``airflow standalone`` on one local cloud, for all tests of this folder: about 40 s, once."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from airflow_spot.localcloud import LocalCloud

HERE = Path(__file__).parent
TRAINER = """
    import pathlib, sys, time
    from airflow_spot.agent import attach

    run, total, pace = attach(), int(sys.argv[1]), float(sys.argv[2])
    state = run.resume_dir / "step" if run.resume_dir else None
    first = int(state.read_text()) if state and state.exists() else 0
    for step in range(first + 1, total + 1):
        time.sleep(pace)
        run.progress(step=step, total_steps=total)
        if step % 5 == 0 or run.stopping:
            place = pathlib.Path("saved")
            place.mkdir(exist_ok=True)
            (place / "step").write_text(str(step))
            run.save(place, step=step, total_steps=total)
        if run.stopping:
            break
    else:
        run.finish(metrics={"first": first, "last": total})
"""


class Live:
    """A live Airflow, its local cloud, and what they show."""

    def __init__(self, cloud: LocalCloud, airflow: Any) -> None:
        self.cloud = cloud
        self.airflow = airflow
        self._batch = cloud.client("batch")
        self._s3 = cloud.client("s3")

    def start(self, dag_id: str, run_id: str = "r1", **params: Any) -> None:
        """Start a DAG run."""
        self.airflow.unpause(dag_id)
        self.airflow.trigger(dag_id, run_id, params)

    def record(self, dag_id: str) -> dict[str, Any]:
        """The record of a training run; empty before there is one."""
        return self._read(dag_id, "run.json")

    def _read(self, dag_id: str, name: str) -> dict[str, Any]:
        from botocore.exceptions import ClientError

        try:
            found = self._s3.get_object(Bucket=self.cloud.bucket, Key=f"runs/{dag_id}/r1/train/-1/{name}")
        except ClientError:
            return {}
        return dict(json.loads(found["Body"].read()))

    def jobs(self, dag_id: str) -> list[str]:
        """Ids of the jobs that are not terminal."""
        found = []
        for queue in ("spot", "on-demand"):
            for status in ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING"):
                listed = self._batch.list_jobs(jobQueue=queue, jobStatus=status)["jobSummaryList"]
                found += [job["jobId"] for job in listed if job["jobName"].startswith(dag_id)]
        return found

    def trained(self, dag_id: str, generation: int = 1) -> bool:
        """Whether an attempt of that generation has committed a checkpoint of its own, by its agent's word."""
        numbers = [
            item["number"] for item in self.record(dag_id).get("attempts", ()) if item["generation"] == generation
        ]
        names = [f"a{number:04d}" for number in numbers]
        beats = {name: self._read(dag_id, f"attempts/{name}/heartbeat.json") for name in names}
        return any(f"-{name}-" in (beat.get("committed") or "") for name, beat in beats.items())

    def mark(self, dag_id: str, state: str, run_id: str = "r1", task_id: str = "train") -> None:
        """Mark a task, as a person does."""
        self.airflow.call(
            "PATCH", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}", {"new_state": state}
        )

    def clear(self, dag_id: str, run_id: str = "r1") -> None:
        """Clear the training task."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": ["train"], "only_failed": False}
        self.airflow.call("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", body)

    @staticmethod
    def eventually(action: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
        """Return the first true answer."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if found := action():
                return found
            time.sleep(0.3)
        raise AssertionError(f"not within {seconds:.0f} s: {what}")


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A live Airflow that runs the DAGs beside this file and the example DAGs."""
    from airflow_spot.localcloud import LocalCloud

    sys.path.insert(0, str(HERE.parent.parent / "scripts"))
    from standalone import Ports, Standalone

    home = tmp_path_factory.mktemp("live")
    trainer = home / "trainer.py"
    trainer.write_text(textwrap.dedent(TRAINER))
    dags = home / "dags"
    shutil.copytree(HERE.parent.parent / "dags", dags)
    shutil.copytree(HERE / "dags", dags, dirs_exist_ok=True)
    with LocalCloud(directory=home / "jobs") as cloud:
        extra = cloud.variables() | {"AIRFLOW__AIRFLOW_SPOT__HEARTBEAT_INTERVAL": "2", "LIVE_TRAINER": str(trainer)}
        airflow = Standalone(home / "airflow", dags, ports=Ports(), extra=extra)
        try:
            airflow.wait_until_ready(["for_ever_0", "promoted", "paused", "daily_dev_cycle", "final_training_run"])
            yield Live(cloud, airflow)
        finally:
            airflow.stop()
