"""Training throughput under the agent, against the same program alone. Goal: less than 1 % lost.

The program multiplies matrices on one thread and saves 8 MB whenever the agent asks for it, at the default interval.
Samples alternate; S3 is moto's server in this process, on the other cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from report import show

from airflow_spot.localcloud import LocalCloud
from airflow_spot.localcloud.metadata import Instance, MetadataServer
from airflow_spot.rundir import owner, record
from airflow_spot.rundir.store import open_store
from airflow_spot.rundir.values import Attempt, AttemptState, Owner, OwnerLease, Record

TRAINER = """
import sys, tempfile, time, warnings
from pathlib import Path
import numpy as np
from airflow_spot.agent import attach
warnings.simplefilter("ignore")
run, seconds = attach(), float(sys.argv[1])
a = np.random.default_rng(0).normal(size=(384, 384))
state = np.zeros(1 << 20)
steps, begin = 0, time.perf_counter()
while time.perf_counter() - begin < seconds:
    a = np.tanh(a @ a / 384)
    steps += 1
    run.progress(step=steps, total_steps=10**9)
    if run.should_save:
        with tempfile.TemporaryDirectory() as scratch:
            np.save(Path(scratch) / "state.npy", state)
            run.save(scratch, step=steps)
print("rate", steps / (time.perf_counter() - begin), time.process_time())
"""
ME = Owner(deployment="bench", dag_id="bench", run_id="bench", task_id="train")


def alone(trainer: Path, seconds: float, environment: dict[str, str]) -> tuple[float, float]:
    """Return steps per second, and the CPU share of everything but the trainer: none."""
    out = subprocess.run(
        [sys.executable, trainer, str(seconds)], env=environment, check=True, capture_output=True, text=True
    )
    return float(out.stdout.split()[1]), 0.0


def under_agent(
    trainer: Path, seconds: float, environment: dict[str, str], cloud: LocalCloud, number: int
) -> tuple[float, float]:
    """Return steps per second under an agent whose attempt is live, and the agent's CPU seconds per second."""
    uri = f"s3://{cloud.bucket}/bench/{number}"
    store = open_store(uri, endpoint=cloud.endpoint_url, allow_http=True)
    entry = Attempt(
        number=1, generation=1, tier="spot", market="spot", state=AttemptState.LIVE, live_at=datetime.now(UTC)
    )
    owner.renew(store, OwnerLease(owner=ME, generation=1))
    record.create(store, Record(run_key=f"bench/{number}", owner=ME, spec={}, attempts=(entry,)))
    told = {"AIRFLOW_SPOT_RUN": uri, "AIRFLOW_SPOT_ATTEMPT": "1", "AWS_BATCH_JOB_ID": f"job-{number}"}
    agent = Path(sys.executable).with_name("spot-agent")
    with subprocess.Popen(
        [agent, "run", "--", sys.executable, trainer, str(seconds)],
        env=environment | told,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        words = process.stdout.read().split()
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
    rate, trainer_cpu = float(words[words.index("rate") + 1]), float(words[words.index("rate") + 2])
    # What is left of the CPU time is the agent's and both interpreters' start and end.
    return rate, max(0.0, used.ru_utime + used.ru_stime - trainer_cpu) / seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each sample")
    parser.add_argument("--samples", type=int, default=6)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {"under spot-agent": [], "alone": []}
    shares: list[float] = []
    service = MetadataServer(Instance(instance_id="i-0123456789abcdef0"))
    service.start()
    with LocalCloud() as cloud, tempfile.TemporaryDirectory() as scratch:
        os.environ |= cloud.environment()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": service.url,
        }
        trainer = Path(scratch) / "trainer.py"
        trainer.write_text(TRAINER)
        for number in range(options.samples):
            rates["alone"].append(alone(trainer, options.seconds, environment)[0])
            rate, share = under_agent(trainer, options.seconds, environment, cloud, number)
            rates["under spot-agent"].append(rate)
            shares.append(100 * share)
    service.stop()
    show("training throughput", "steps/s", rates)
    show("CPU of the agent, starts included", "% of one core", {"under spot-agent": shares})
