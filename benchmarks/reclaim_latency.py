"""Seconds from Batch showing a reclaimed job as FAILED to the next SubmitJob: ours against a deferrable BatchOperator.

Both run in one live Airflow on the local cloud, with the same interval of polling. The other DAG has ``retries=50`` and
``retry_delay=0``, its best case: Airflow's default would add five minutes each time.
Needs aiobotocore for its trigger: ``pip install 'apache-airflow-providers-amazon[aiobotocore]'``.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import show

from airflow_spot.localcloud import LocalCloud

ROOT = Path(__file__).resolve().parent.parent
LOOK_SECONDS = 0.05


def newest(cloud: LocalCloud, name: str) -> dict[str, Any] | None:
    """Return the job of that DAG that was submitted last."""
    with cloud.batch.lock:
        found = [job.id for job in cloud.batch.state.jobs.values() if job.name.startswith(name)]
    jobs = cloud.batch.call("DescribeJobs", {"jobs": found[-1:]})["jobs"] if found else []
    return jobs[0] if jobs else None


def until(condition: Any, seconds: float = 600.0) -> Any:
    """Return the first true answer."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise SystemExit("it took too long; the logs are in the directory of --state")
        time.sleep(LOOK_SECONDS)
    return found


def latency(cloud: LocalCloud, name: str, dice: random.Random) -> float:
    """Reclaim the DAG's job once it has trained for a while, and return the seconds that no job was submitted."""

    def running() -> dict[str, Any] | None:
        job = newest(cloud, name)
        return job if job and job["status"] == "RUNNING" else None

    job = until(running)["jobId"]
    time.sleep(dice.uniform(12, 22))
    cloud.reclaim(job)
    until(lambda: newest(cloud, name)["status"] == "FAILED")  # type: ignore[index]  # it is there
    failed = time.time()
    following = until(lambda: found if (found := newest(cloud, name)) and found["jobId"] != job else None)
    return float(following["createdAt"]) / 1000 - failed


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "scripts"))
    from standalone import Ports, Standalone

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--poll", type=int, default=10, help="seconds between two looks, of both")
    options = parser.parse_args()
    dice = random.Random(0)
    found: dict[str, list[float]] = {"airflow_spot": [], "amazon BatchOperator": []}
    with tempfile.TemporaryDirectory() as state, LocalCloud(directory=Path(state) / "jobs") as cloud:
        extra = cloud.variables() | {
            "BENCH_POLL_SECONDS": str(options.poll),
            "BENCH_TRAINER": str(ROOT / "dags" / "trainers" / "train_digits.py"),
            "AIRFLOW__AIRFLOW_SPOT__HEARTBEAT_INTERVAL": "5",
        }
        airflow = Standalone(Path(state) / "airflow", ROOT / "benchmarks" / "dags", ports=Ports(), extra=extra)
        try:
            airflow.wait_until_ready(["ours", "theirs"])
            for dag_id in ("ours", "theirs"):
                airflow.unpause(dag_id)
                airflow.trigger(dag_id, "bench", {})
            for _ in range(options.samples):
                found["airflow_spot"].append(latency(cloud, "ours", dice))
                found["amazon BatchOperator"].append(latency(cloud, "theirs", dice))
        finally:
            airflow.stop()
    print(f"both look every {options.poll} s\n")
    show("from FAILED to the next SubmitJob", "s", found)
