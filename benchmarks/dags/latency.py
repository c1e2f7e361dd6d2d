"""Two DAGs that train for ever on spot: ours, and the amazon provider's deferrable operator with retries."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.providers.amazon.aws.operators.batch import BatchOperator
from airflow.sdk import DAG

from airflow_spot import Tier
from airflow_spot.operators.training import SpotTrainingOperator

POLL_SECONDS = int(os.environ.get("BENCH_POLL_SECONDS", "10"))
COMMAND = ["python", os.environ.get("BENCH_TRAINER", "train.py"), "--epochs=100000", "--pace=0.05"]

with DAG("ours", schedule=None):
    SpotTrainingOperator(
        task_id="train",
        job_definition="airflow-spot",
        command=COMMAND,
        environment={"AIRFLOW_SPOT_SAVE_INTERVAL": "1s"},
        tiers=[Tier.spot("spot")],
        poll_interval=POLL_SECONDS,
    )

with DAG("theirs", schedule=None):
    BatchOperator(
        task_id="train",
        job_name="theirs",
        job_definition="airflow-spot",
        job_queue="spot",
        container_overrides={"command": COMMAND},
        deferrable=True,
        poll_interval=POLL_SECONDS,
        retries=50,
        retry_delay=timedelta(0),
    )
