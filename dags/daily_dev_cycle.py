"""Every weekday: does the code still train, and which settings are best?

``check`` trains for a moment on the reservation, which is paid for anyway, and on spot when that is taken. Then a sweep
of mapped trials runs on spot only: it can wait, and a reclaimed trial goes on from its checkpoint. ``choose`` reads
the summaries that the trials return and names the best.

Airflow Variables, each with a default that fits ``airflow-spot localcloud``: ``spot_queue``, ``reserved_queue``,
``training_job_definition``, ``trainers`` (the directory with the training programs in the image).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_spot import Tier
from airflow_spot.operators.training import SpotTrainingOperator

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1"}
LEARNING_RATES = [0.02, 0.05, 0.1, 0.2]


def variable(name: str, default: str) -> str:
    """Return the template of an Airflow Variable: read when a task runs, never when this file is parsed."""
    return f"{{{{ var.value.get({name!r}, {default!r}) }}}}"


TRAINER = variable("trainers", str(Path(__file__).parent / "trainers")) + "/train_digits.py"
JOB_DEFINITION = variable("training_job_definition", "train-digits")
POLL = "{{ params.poll_seconds }}"


@task
def choose(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the summary of the trial with the best accuracy; the cheapest of them where several are."""
    best = max(trials, key=lambda trial: (trial["metrics"]["accuracy"], -(trial["cost"]["usd"] or 0.0)))
    print(f"best of {len(trials)}: {best['metrics']} by {best['run']}, model in {best['artifacts']}")
    return best


with DAG(
    "daily_dev_cycle",
    schedule="0 6 * * 1-5",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params={
        "poll_seconds": Param(5, type="number", description="how often AWS Batch is asked"),
        "epochs": Param(10, type="integer", minimum=1),
        "pace": Param(0.01, type="number", minimum=0, description="seconds to sleep after each step"),
    },
    doc_md=__doc__,
    tags=["airflow-spot"],
) as dag:
    check = SpotTrainingOperator(
        task_id="check",
        job_definition=JOB_DEFINITION,
        command=["python", TRAINER, "--epochs=2"],
        environment=ONE_THREAD,
        tiers=[
            Tier.reserved(variable("reserved_queue", "reserved"), price=0.0, max_wait=timedelta(minutes=10)),
            Tier.spot(variable("spot_queue", "spot"), price=0.97),
        ],
        poll_interval=POLL,
    )

    # [START sweep]
    trial = SpotTrainingOperator.partial(
        task_id="trial",
        job_definition=JOB_DEFINITION,
        environment=ONE_THREAD,
        tiers=[Tier.spot(variable("spot_queue", "spot"), price=0.97)],
        poll_interval=POLL,
    ).expand(
        command=[
            ["python", TRAINER, "--epochs={{ params.epochs }}", "--pace={{ params.pace }}", f"--learning-rate={rate}"]
            for rate in LEARNING_RATES
        ]
    )
    # [END sweep]

    check >> trial
    choose(trial.output)
