"""The final training of a release: one long training on spot capacity, with a deadline that is kept.

It begins on spot. After a reclaim it goes on from its last checkpoint. When the time left is just enough, it moves to
capacity that AWS does not take back: the reservation first, on-demand when that is taken. The sensor watches the
deadline from outside, with the tasks after the training in mind.

Airflow Variables, each with a default that fits ``airflow-spot localcloud``: ``spot_queue``, ``reserved_queue``,
``on_demand_queue``, ``training_job_definition``, ``trainers`` (the directory with the training programs in the image).
They are read when a task runs, never when this file is parsed.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_spot import Tier
from airflow_spot.operators.training import SpotTrainingOperator
from airflow_spot.sensors.deadline import SpotDeadlineSensor

# One thread, so that two trainings with the same seed end with the same weights, bit for bit.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1"}


def variable(name: str, default: str) -> str:
    """Return the template of an Airflow Variable."""
    return f"{{{{ var.value.get({name!r}, {default!r}) }}}}"


TRAINERS = variable("trainers", str(Path(__file__).parent / "trainers"))
JOB_DEFINITION = variable("training_job_definition", "train-digits")

with DAG(
    "final_training_run",
    schedule=None,
    max_active_runs=1,
    params={
        "deadline": Param("PT15M", type="string", description="an ISO 8601 instant, or a duration from the start"),
        "downstream": Param("PT1M", type="string", description="time that the tasks after the training need"),
        "expected": Param("PT3M", type="string", description="the training's time, uninterrupted, at full price"),
        "changeover": Param("PT1M", type="string", description="what a move to other capacity costs in time"),
        "save_interval": Param("", type="string", description="between checkpoints; empty: by the time a save takes"),
        "poll_seconds": Param(5, type="number", description="how often AWS Batch is asked"),
        "epochs": Param(50, type="integer", minimum=1),
        "pace": Param(0.1, type="number", minimum=0, description="seconds to sleep after each step"),
    },
    doc_md=__doc__,
    tags=["airflow-spot"],
) as dag:
    # [START training]
    train = SpotTrainingOperator(
        task_id="train",
        job_definition=JOB_DEFINITION,
        command=["python", f"{TRAINERS}/train_digits.py", "--epochs={{ params.epochs }}", "--pace={{ params.pace }}"],
        environment={**ONE_THREAD, "AIRFLOW_SPOT_SAVE_INTERVAL": "{{ params.save_interval }}"},
        tiers=[
            Tier.spot(variable("spot_queue", "spot"), price=0.97),
            Tier.reserved(variable("reserved_queue", "reserved"), price=0.0, max_wait=timedelta(minutes=20)),
            Tier.on_demand(variable("on_demand_queue", "on-demand"), price=3.06),
        ],
        deadline="{{ params.deadline }}",
        expected_duration="{{ params.expected }}",
        downstream_duration="{{ params.downstream }}",
        changeover="{{ params.changeover }}",
        poll_interval="{{ params.poll_seconds }}",
    )
    # [END training]

    # [START deadline]
    SpotDeadlineSensor(
        task_id="deadline",
        watch="train",
        deadline="{{ params.deadline }}",
        downstream_duration="{{ params.downstream }}",
        poke_interval=5,
    )
    # [END deadline]

    evaluate = SpotTrainingOperator(
        task_id="evaluate",
        job_definition=JOB_DEFINITION,
        command=[
            "python",
            f"{TRAINERS}/evaluate_digits.py",
            "--artifacts={{ ti.xcom_pull(task_ids='train')['artifacts'] }}",
        ],
        environment=ONE_THREAD,
        tiers=[Tier.on_demand(variable("on_demand_queue", "on-demand"), price=3.06)],
        poll_interval="{{ params.poll_seconds }}",
    )

    train >> evaluate
