"""DAGs that a live Airflow runs on the local cloud. Their trainer counts, and its place is in the checkpoint."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_spot import Tier
from airflow_spot.operators.training import SpotTrainingOperator
from airflow_spot.sensors.deadline import SpotDeadlineSensor

TRAINER = os.environ.get("LIVE_TRAINER", "trainer.py")
FOR_EVER = 1_000_000


class TeamOperator(SpotTrainingOperator):
    """A subclass, as a team may have one: the listener has to know it all the same."""


def training(task_id: str, steps: int, cls: type[SpotTrainingOperator] = SpotTrainingOperator, **changes: Any) -> Any:
    """Return a training of so many steps, ten a second."""
    return cls(
        task_id=task_id,
        job_definition="airflow-spot",
        command=[sys.executable, TRAINER, str(steps), "0.1"],
        tiers=[Tier.spot("spot", price=1.0), Tier.on_demand("on-demand", price=4.0)],
        poll_interval=2,
        **changes,
    )


for number in range(4):
    with DAG(f"for_ever_{number}", schedule=None):
        training("train", FOR_EVER)

with DAG("of_a_team", schedule=None):
    training("train", FOR_EVER, cls=TeamOperator)

with DAG("timed_out", schedule=None):
    training("train", FOR_EVER, execution_timeout=timedelta(seconds=10))

with DAG("paused", schedule=None):
    training("train", 60)

with DAG("promoted", schedule=None):
    training("train", 400, expected_duration=40, changeover=5)
    SpotDeadlineSensor(task_id="deadline", watch="train", deadline="PT65S")
