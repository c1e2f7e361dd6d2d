"""Every command as a process of its own, against a local cloud that ``airflow-spot localcloud`` serves."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from airflow_spot import engine, opening, session
from airflow_spot.core.model import Tier
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.rundir.values import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from airflow_spot.rundir.values import Record

ROOT = "s3://airflow-spot/runs"
KEY = "final/manual__1/train/-1"
NAMES = ["final", "manual__1", "train"]
SPEC = TrainingSpec(
    job_definition="airflow-spot",
    tiers=(Tier.spot("spot"), Tier.on_demand("on-demand")),
    command=("sleep", "120"),
    agent=False,
    trust_exit_code=True,
    poll_seconds=1.0,
)
COMMAND = [sys.executable, "-c", "import sys; from airflow_spot.cli import main; sys.exit(main())"]


@dataclass(frozen=True)
class Cloud:
    """A local cloud in another process, and a shell that knows nothing of it but credentials."""

    endpoint: str
    shell: dict[str, str]

    def __call__(self, *words: str) -> tuple[int, str]:
        """Run a command to its end and return its exit code and what it printed."""
        places = [] if words[0] in ("examples", "localcloud") else ["--endpoint-url", self.endpoint]
        places += ["--run-root", ROOT] if places else []
        done = subprocess.run([*COMMAND, *words, *places], env=self.shell, capture_output=True, text=True, timeout=60)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """``airflow-spot localcloud --port`` with a free one, ended by Ctrl-C."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shell = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "AIRFLOW_SPOT_"))}
    keys = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": "us-east-1"}
    shell |= keys | {"AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")), "COLUMNS": "140"}
    command = [*COMMAND, "localcloud", "--port", str(port)]
    with subprocess.Popen(command, env=shell, stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            assert select.select([serving.stdout], [], [], 60)[0], "the local cloud did not get ready"
            assert serving.stdout.readline().startswith(f"local cloud ready at http://127.0.0.1:{port}")
            yield Cloud(f"http://127.0.0.1:{port}", shell)
        finally:
            serving.send_signal(signal.SIGINT)
            assert serving.wait(30) == 0


@pytest.fixture(scope="module")
def loop(cloud: Cloud) -> engine.Loop:
    """Somebody who waits: a plain image that sleeps on spot."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**cloud.shell, "AWS_ENDPOINT_URL": cloud.endpoint}.items():
            patch.setenv(name, value)
        made = session.connect(f"{ROOT}/{KEY}", aws_conn_id=None, region_name="us-east-1")
        opening.open_training_run(
            made.store,
            made.backend,
            run_key=KEY,
            who=Owner(deployment="here", dag_id="final", run_id="manual__1", task_id="train"),
            spec=SPEC,
            try_number=1,
            max_tries=0,
            began=datetime.now(UTC),
        )
        loop = engine.Loop(store=made.store, backend=made.backend, generation=1)
        until(loop, lambda record: record.last_live == 1)
    return loop


def until(loop: engine.Loop, reached: Callable[[Record], bool]) -> engine.Finished | engine.Waiting:
    """Look again and again, as a trigger does, until the record says so."""
    for _ in range(100):
        answer = engine.advance(loop)
        assert not isinstance(answer, engine.Superseded)
        if reached(answer.record):
            return answer
        time.sleep(0.2)
    raise AssertionError(f"not reached: {answer}")


def test_the_commands_that_read(cloud: Cloud, loop: engine.Loop) -> None:
    """runs, show and orphans tell of a training run that somebody waits for."""
    code, told = cloud("runs", "final", "--open", "--json")
    assert (code, [row["uri"] for row in json.loads(told)]) == (0, [f"{ROOT}/{KEY}"])
    code, told = cloud("show", *NAMES)
    assert (code, "training on spot, attempt 1" in told) == (0, True)
    assert cloud("orphans") == (0, "no orphans: every job of ours has someone waiting for it\n")


def test_promote_stop_and_watch(cloud: Cloud, loop: engine.Loop) -> None:
    """The loop takes up a promotion, orphans lists what has waited longer than asked, stop ends it, watch tells so."""
    assert cloud("promote", *NAMES, "--tier", "on_demand", "--why", "demo tomorrow")[0] == 0
    until(loop, lambda record: record.last_live == 2)
    code, told = cloud("orphans", "--older-than", "0.1s", "--json")
    assert (code, [(row["attempt"], row["ours"]) for row in json.loads(told)]) == (4, [(2, True)])
    assert cloud("stop", *NAMES, "--why", "wrong data")[0] == 0
    answer = until(loop, lambda record: record.result is not None)
    assert answer.record.result is not None
    assert answer.record.result.outcome == "STOPPED_BY_US"
    code, told = cloud("watch", KEY, "--every", "1s")
    assert (code, "wrong data" in told) == (4, True)


def test_examples_and_print_env(cloud: Cloud, tmp_path: Path) -> None:
    """examples copies a DAGs folder; --print-env of one that runs prints its environment and ends."""
    code, told = cloud("examples", str(tmp_path / "dags"))
    assert (code, "files in" in told) == (0, True)
    assert list((tmp_path / "dags").glob("*.py"))
    code, told = cloud("localcloud", "--print-env", "--port", cloud.endpoint.rsplit(":", 1)[1])
    assert (code, f"export AWS_ENDPOINT_URL={cloud.endpoint}" in told) == (0, True)
