"""Calls of DescribeJobs per minute with 200 waiting tasks: ours against the amazon provider's deferrable BatchOperator.

Both kinds of triggers run in one event loop each, as in a triggerer, against the local cloud, where all jobs are
RUNNABLE. Both look every 30 seconds, the default of ours; the amazon trigger's own default is every 30 s as well.
Needs aiobotocore for the amazon trigger: ``pip install 'apache-airflow-providers-amazon[aiobotocore]'``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="bench-airflow-"))
os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "ERROR")

from report import show

from airflow_spot.localcloud import LocalCloud

POLL_SECONDS = 30


def ours(cloud: LocalCloud, count: int) -> list[Any]:
    """Create training runs and return the triggers that wait for them."""
    from airflow_spot.core.model import Tier
    from airflow_spot.core.spec import TrainingSpec
    from airflow_spot.opening import open_training_run
    from airflow_spot.rundir import codec
    from airflow_spot.rundir.layout import run_key
    from airflow_spot.rundir.values import Owner
    from airflow_spot.session import connect
    from airflow_spot.triggers.training import SpotTrainingTrigger

    triggers = []
    for number in range(count):
        who = Owner(deployment="bench", dag_id="bench", run_id="r", task_id="train", map_index=number)
        key = run_key(dag_id="bench", run_id="r", task_id="train", map_index=number)
        uri = f"s3://{cloud.bucket}/runs/{key}"
        spec = TrainingSpec(
            job_definition="airflow-spot", tiers=(Tier.spot("spot"),), command=("true",), poll_seconds=POLL_SECONDS
        )
        session = connect(uri)
        open_training_run(
            session.store,
            session.backend,
            run_key=key,
            who=who,
            spec=spec,
            try_number=1,
            max_tries=0,
            began=datetime.now(UTC),
        )
        owner = codec.encode(who)
        triggers.append(
            SpotTrainingTrigger(run=uri, generation=1, try_number=1, owner=owner, poll_interval=POLL_SECONDS)
        )
    return triggers


def theirs(cloud: LocalCloud, count: int) -> list[Any]:
    """Submit jobs and return the triggers that wait for them."""
    from airflow.providers.amazon.aws.triggers.batch import BatchJobTrigger

    batch = cloud.client("batch")
    jobs = [
        batch.submit_job(jobName=f"theirs-{number}", jobQueue="spot", jobDefinition="airflow-spot")["jobId"]
        for number in range(count)
    ]
    return [BatchJobTrigger(job_id=job, waiter_delay=POLL_SECONDS, waiter_max_attempts=4200) for job in jobs]


async def wait_on(triggers: Sequence[Any], cloud: LocalCloud, settle: float, seconds: float) -> dict[str, float]:
    """Run the triggers and return the calls per minute, by operation, once they have settled."""
    tasks = [asyncio.create_task(anext(trigger.run())) for trigger in triggers]
    await asyncio.sleep(settle)
    cloud.batch.calls.clear()
    began = time.monotonic()
    await asyncio.sleep(seconds)
    calls, minutes = [*cloud.batch.calls], (time.monotonic() - began) / 60
    assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()][:1]
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
    return {name: calls.count(name) / minutes for name in sorted(set(calls))}


def measure(make: Callable[[LocalCloud, int], list[Any]], options: argparse.Namespace) -> dict[str, float]:
    """Return the calls per minute of one kind of trigger on a cloud of its own."""
    with LocalCloud() as cloud:
        os.environ |= cloud.variables()
        cloud.drought("spot")
        triggers = make(cloud, options.tasks)
        return asyncio.run(wait_on(triggers, cloud, options.settle, options.seconds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--settle", type=float, default=45.0, help="seconds before counting")
    parser.add_argument("--seconds", type=float, default=120.0, help="seconds of counting")
    options = parser.parse_args()
    found = {"airflow_spot": measure(ours, options), "amazon BatchJobTrigger": measure(theirs, options)}
    print(f"{options.tasks} waiting tasks, polled every {POLL_SECONDS} s\n")
    show("DescribeJobs", "calls per minute", {name: [calls["DescribeJobs"]] for name, calls in found.items()})
    for name, calls in found.items():
        print(f"all calls of {name}: " + ", ".join(f"{call} {rate:.1f}" for call, rate in calls.items()))
