"""CPU that importing operators adds to parsing a DAG file, beyond ``airflow.sdk``: ours against ``BatchOperator``.

The DAG processor forks for each file, so the import is paid at every parse. Each sample is a fresh interpreter that
has ``airflow.sdk`` already. Goal: ours under 10 ms.
"""

from __future__ import annotations

import subprocess
import sys

from report import show

PROBE = """
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, Param, task
with DAG("warm"):  # the first DAG of a process imports timetables, whoever's operators it has
    BaseOperator(task_id="warm")
import time
begin = time.process_time()
{imports}
print((time.process_time() - begin) * 1000)
"""
OURS = """
from airflow_spot import Tier
from airflow_spot.operators.training import SpotTrainingOperator
from airflow_spot.sensors.deadline import SpotDeadlineSensor
with DAG("d") as dag:
    SpotTrainingOperator(task_id="t", job_definition="j", tiers=[Tier.spot("s"), Tier.on_demand("o")],
                         deadline="PT2H", expected_duration="PT1H")
    SpotDeadlineSensor(task_id="s", watch="t", deadline="PT2H")
"""
THEIRS = """
from airflow.providers.amazon.aws.operators.batch import BatchOperator
with DAG("d") as dag:
    BatchOperator(task_id="t", job_definition="j", job_name="n", job_queue="q")
"""
SAMPLES = 7


def sample(imports: str) -> float:
    """Return the milliseconds of CPU that the imports cost in a fresh interpreter."""
    probe = [sys.executable, "-W", "ignore", "-c", PROBE.format(imports=imports)]
    done = subprocess.run(probe, check=True, capture_output=True, text=True)
    return float(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    for warm in (OURS, THEIRS):
        sample(warm)
    rows: dict[str, list[float]] = {"airflow_spot": [], "amazon BatchOperator": []}
    for _ in range(SAMPLES):
        rows["airflow_spot"].append(sample(OURS))
        rows["amazon BatchOperator"].append(sample(THEIRS))
    show("parsing a DAG file, beyond airflow.sdk", "ms CPU", rows)
