"""``make demo``: a training run survives two reclaims and a drought, and keeps its deadline; all on this machine.

It starts a local cloud and a real Airflow, triggers the example DAG ``final_training_run``, follows it, trains once
more without any interruption, and compares the weights bit for bit. Exit code 0 only if all of it ended as it should.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import numpy as np
from processes import Child, StartError, free_port
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text
from standalone import Ports, Standalone, clean_environment
from story import Story

from airflow_spot.cli import facts, render, where
from airflow_spot.errors import SpotError, StoreError
from airflow_spot.rundir import layout
from airflow_spot.rundir.store import open_store
from airflow_spot.rundir.values import Record

ROOT = Path(__file__).resolve().parent.parent
DAGS = ROOT / "dags"
DAG_ID, RUN_ID = "final_training_run", "demo"
RUN_ROOT, REGION = "s3://airflow-spot/runs", "us-east-1"
UI_PORT, CLOUD_PORT = 8080, 4566
FREE_BYTES = 500 * 1024**2
LONGEST_SECONDS = 300.0
"""Of the DAG run; it takes about two minutes."""
EPOCHS = 40
CONF = {
    "epochs": EPOCHS,
    "pace": 0.05,
    "deadline": "PT150S",
    "expected": "PT60S",
    "downstream": "PT10S",
    "changeover": "PT12S",
    "save_interval": "3s",
    "poll_seconds": 1,
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1"}


@dataclass(slots=True)
class Seen:
    """What is shown: the last look at the training run, and what has happened."""

    record: Record | None = None
    beats: facts.Beats = field(default_factory=dict)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    tasks: dict[str, str] = field(default_factory=dict)
    news: list[str] = field(default_factory=list)


class Stage:
    """The terminal: a live picture where there is one, plain lines elsewhere."""

    def __init__(self) -> None:
        self.console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
        self.began = time.monotonic()
        self._live: Live | None = None

    def say(self, text: str, style: str = "") -> None:
        """Print a line with the time since the demo began."""
        self.console.print(Text.assemble((f"{self.clock()} ", "dim"), (text, style)))

    def clock(self) -> str:
        """Return the time since the demo began."""
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        return f"{minutes}:{seconds:02d}"

    @contextmanager
    def picture(self) -> Iterator[None]:
        """Draw a live picture below the lines while the block runs."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, auto_refresh=False, transient=True, vertical_overflow="crop") as self._live:
            yield
        self._live = None

    def draw(self, what: RenderableType) -> None:
        """Replace the picture."""
        if self._live is not None:
            self._live.update(what, refresh=True)


def precheck(state: Path, *, port: int | None) -> None:
    """Refuse what cannot work, in a sentence.

    :raises StartError: no disk, or the port that was asked for is in use.
    """
    free = shutil.disk_usage(state.parent).free
    if free < FREE_BYTES:
        raise StartError(
            f"only {free / 1024**2:.0f} MB are free in {state.parent}; the demo needs {FREE_BYTES / 1024**2:.0f} MB"
        )
    if port and free_port(port) != port:
        raise StartError(f"port {port} is in use; end what listens there, or leave --port out for a free one")


@contextmanager
def own_directory(state: Path) -> Iterator[Path]:
    """Yield an empty directory that no other demo uses.

    :raises StartError: another one runs.
    """
    state.mkdir(exist_ok=True)
    with (state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StartError(f"another demo runs in {state}; end it first") from None
        for entry in state.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "lock":
                entry.unlink()
        yield state


def start_cloud(state: Path, stage: Stage, port: int) -> tuple[Child, str]:
    """Start the local cloud with the demo's market and return it and its address once it answers."""
    program = Path(sys.executable).with_name("airflow-spot")
    cloud = Child(
        "the local cloud",
        [program, "localcloud", f"--port={port}", "--market=demo", f"--state={state / 'cloud'}"],
        env=clean_environment() | ONE_THREAD,
        log=state / "cloud.log",
        cwd=state,
    )
    end = time.monotonic() + 60
    while "ready" not in cloud.log.read_text(errors="replace"):
        cloud.check()
        if time.monotonic() > end:
            cloud.stop()
            raise StartError(f"the local cloud was not ready within 60 s; what it says is in {cloud.log}")
        time.sleep(0.2)
    address = f"http://127.0.0.1:{port}"
    stage.say(f"local cloud at {address}: spot, reserved and on-demand queues; the spot market is scripted")
    return cloud, address


def variables(address: str) -> dict[str, str]:
    """Return the environment with which Airflow finds the local cloud, as the local cloud tells it."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{address}/_localcloud/status", timeout=10) as reply:
        told: dict[str, str] = json.load(reply)["variables"]
    return told | {"AIRFLOW__AIRFLOW_SPOT__HEARTBEAT_INTERVAL": "1"}


def follow(airflow: Standalone, reach: where.Reach, stage: Stage) -> Seen:
    """Show the training run until the DAG run has ended, and return the last look.

    :raises StartError: it takes far longer than it should.
    """
    seen, story = Seen(), Story()
    end = time.monotonic() + LONGEST_SECONDS
    with stage.picture():
        while True:
            state = look(airflow, reach, seen)
            if seen.record is not None:
                for line in story.news(seen.record, seen.beats, seen.now):
                    seen.news.append(f"{stage.clock()}  {line}")
                    stage.say(line)
            stage.draw(picture(seen))
            if state in ("success", "failed"):
                return seen
            if time.monotonic() > end:
                raise StartError(f"the DAG run is still {state} after {LONGEST_SECONDS:.0f} s: {seen.tasks}")
            time.sleep(0.7)


def look(airflow: Standalone, reach: where.Reach, seen: Seen) -> str:
    """Take one look at the record, the heartbeats and Airflow, and return the DAG run's state."""
    try:
        seen.record = where.load(reach).record
        seen.beats, seen.now = where.heartbeats(reach.store, seen.record), where.now(reach.backend)
    except (where.NoTrainingRun, StoreError):
        pass
    try:
        seen.tasks = airflow.task_states(DAG_ID, RUN_ID)
        return airflow.state(DAG_ID, RUN_ID)
    except (OSError, KeyError):
        return "unknown"


def picture(seen: Seen) -> RenderableType:
    """Return what the live part of the terminal shows."""
    tasks = Text("  ".join(f"{task}: {state}" for task, state in sorted(seen.tasks.items())), style="dim")
    if seen.record is None:
        return tasks
    return Group(Text(), render.training_run(seen.record, seen.beats, seen.now, zone=None), tasks)


def failures(seen: Seen, airflow: Standalone, equal: bool) -> list[str]:
    """Return what did not end as it should, a sentence each."""
    record = seen.record
    if record is None or record.result is None:
        return ["the training run has no result"]
    verdicts = [attempt.verdict.outcome for attempt in record.attempts if attempt.verdict]
    early, sensor = facts.early(record), airflow.xcom(DAG_ID, RUN_ID, "deadline") or {}
    checks = {
        "the training did not succeed: " + record.result.message: record.result.outcome == "SUCCEEDED",
        f"two reclaims were expected, the attempts ended {verdicts}": verdicts.count("RECLAIMED") == 2,
        "the training was not promoted": facts.promoted_at(record) is not None,
        "the deadline sensor did not fire": bool(sensor.get("fired")),
        "the deadline was missed": early is not None and early.total_seconds() >= 0,
        "the weights differ from those of the uninterrupted training": equal,
        f"the DAG run failed: {seen.tasks}": airflow.state(DAG_ID, RUN_ID) == "success",
    }
    return [sentence for sentence, holds in checks.items() if not holds]


def uninterrupted(state: Path) -> Child:
    """Start the same training without a cloud and without interruptions."""
    trainer = DAGS / "trainers" / "train_digits.py"
    return Child(
        "the uninterrupted training",
        [sys.executable, trainer, f"--epochs={EPOCHS}", f"--output={state / 'reference'}"],
        env=clean_environment() | ONE_THREAD,
        log=state / "reference.log",
    )


def weights_equal(record: Record, reference: Path, state: Path, address: str) -> bool:
    """Compare the training run's model with that of the uninterrupted training, bit for bit."""
    artifacts = str((record.result.summary if record.result else {}).get("artifacts") or "")
    if not artifacts:
        return False
    store = open_store(artifacts.rstrip("/"), region=REGION, endpoint=address, allow_http=True)
    keys = [meta.key for meta in store.list() if meta.key.endswith("model.npz")]
    if not keys:
        return False
    store.download(keys[0], state / "model.npz")
    with np.load(state / "model.npz") as ours, np.load(reference / "model.npz") as theirs:
        return sorted(ours.files) == sorted(theirs.files) and all(
            ours[name].dtype == theirs[name].dtype and ours[name].tobytes() == theirs[name].tobytes()
            for name in ours.files
        )


def closing(seen: Seen, equal: bool) -> RenderableType:
    """Return the attempts and the one line of the end."""
    record = seen.record
    assert record is not None
    line = render.closing_line(record, also=["weights equal" if equal else "WEIGHTS DIFFER"], zone=None)
    return Group(render.attempts_table(record, seen.beats, seen.now), Text(line, style="bold"))


def export(seen: Seen, equal: bool, path: Path) -> None:
    """Write a picture of the demo for the documentation."""
    console = Console(record=True, file=io.StringIO(), width=118, force_terminal=True, highlight=False)
    console.print(Text("$ make demo", style="bold"))
    for line in seen.news:
        console.print(Text(line))
    console.print(closing(seen, equal))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(console.export_svg(title="airflow-provider-spot"), encoding="utf-8")


def play(stage: Stage, options: argparse.Namespace, stack: ExitStack) -> int:
    """Run the demo and return its exit code; the stack ends what was started."""
    precheck(options.state, port=options.port)
    state = stack.enter_context(own_directory(options.state))
    cloud, address = start_cloud(state, stage, free_port(CLOUD_PORT))
    stack.callback(cloud.stop)
    ports = Ports(api=options.port or free_port(UI_PORT if options.port is None else 0))
    airflow = Standalone(state / "airflow", DAGS, ports=ports, extra=variables(address))
    stack.callback(airflow.stop)
    stage.say(f"Airflow is starting at {airflow.address}; this takes about a minute")
    reference = uninterrupted(state)
    stack.callback(reference.stop)
    airflow.wait_until_ready([DAG_ID])
    stage.say(f"Airflow is ready; triggering {DAG_ID}")
    airflow.unpause(DAG_ID)
    airflow.trigger(DAG_ID, RUN_ID, CONF)
    uri = f"{RUN_ROOT}/{layout.run_key(dag_id=DAG_ID, run_id=RUN_ID, task_id='train')}"
    seen = follow(airflow, where.connect(uri, where.Access(region=REGION, endpoint_url=address)), stage)
    if reference.wait(60) != 0:
        raise StartError(f"the uninterrupted training failed: {reference.last_words()}")
    equal = seen.record is not None and weights_equal(seen.record, state / "reference", state, address)
    return finish(seen, airflow, stage, options, equal=equal)


def finish(seen: Seen, airflow: Standalone, stage: Stage, options: argparse.Namespace, *, equal: bool) -> int:
    """Say how it ended, and wait for Ctrl-C where that was asked for."""
    wrong = failures(seen, airflow, equal)
    if seen.record is not None:
        evaluation = airflow.xcom(DAG_ID, RUN_ID, "evaluate") or {}
        if accuracy := evaluation.get("metrics", {}).get("accuracy"):
            stage.say(f"evaluated by a task of its own: {accuracy:.1%} of unseen digits are read rightly")
        stage.console.print(closing(seen, equal))
        if options.svg:
            export(seen, equal, options.svg)
    for sentence in wrong:
        stage.say(sentence, "red")
    if options.keep:
        stage.say(f"Airflow is at {airflow.address}/dags/{DAG_ID}/runs/{RUN_ID}; Ctrl-C ends everything", "bold")
        with suppress(KeyboardInterrupt):
            signal.pause()
    else:
        stage.say(f"Airflow was at {airflow.address}; `make demo KEEP=1` leaves it running", "dim")
    return 1 if wrong else 0


def leave(signum: int, _frame: FrameType | None) -> None:
    """Turn a signal into an orderly end."""
    raise SystemExit(128 + signum)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="Show a training run that survives reclaims and keeps its deadline.")
    parser.add_argument("--keep", action="store_true", help="leave Airflow and the local cloud running until Ctrl-C")
    parser.add_argument("--port", type=int, help="of Airflow's UI (default: 8080 or a free one; 0: a free one)")
    parser.add_argument("--svg", type=Path, help="write a picture of the demo to this file")
    parser.add_argument("--state", type=Path, default=ROOT / ".demo", help="directory for logs and databases")
    return parser.parse_args(arguments)


def main() -> int:
    """Run the demo; every process that it started has ended when this returns."""
    options, stage = parse(), Stage()
    options.state = options.state.resolve()
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, leave)
    # The reader of records runs in this process and needs the local cloud's credentials, not the user's.
    os.environ |= {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": REGION}
    code = 1
    try:
        with ExitStack() as stack:
            stack.callback(stage.say, "everything has been ended", "dim")
            try:
                code = play(stage, options, stack)
            finally:
                # A second Ctrl-C must not leave anything behind.
                for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(signum, signal.SIG_IGN)
    except KeyboardInterrupt:
        return 130
    except (StartError, SpotError, urllib.error.URLError) as error:
        stage.say(str(error), "red")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
