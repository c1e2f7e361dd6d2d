"""How jobs run: the interface that the model needs, and the runner that starts each job as a local process.

A container runner has the same two classes with a container in place of a process group. The image of a job
definition is ignored here: the command runs in the Python environment of the local cloud.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Protocol

from airflow_spot.localcloud.clock import Clock, SystemClock
from airflow_spot.localcloud.metadata import Instance, MetadataServer
from airflow_spot.localcloud.processes import kill_tree

_KEPT = frozenset({"LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "SSL_CERT_FILE", "TZ", "VECLIB_MAXIMUM_THREADS"})
"""What of our environment jobs get: what stands for their image."""

LogSink = Callable[[str, list[tuple[float, str]]], None]
"""Takes the name of a stream and lines with their times (seconds since 1970)."""


class StartError(Exception):
    """The container could not be started; the text becomes the attempt's ``reason``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a job's main process ended: its exit code as a container runtime gives it, and the runtime's reason."""

    code: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """All that a runner needs to start one attempt of a job.

    :param environment: the user's and Batch's; the runner adds what the host gives.
    :param stream: name of the log stream.
    """

    job_id: str
    job_name: str
    queue: str
    attempt: int
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stream: str
    instance: Instance


class Handle(Protocol):
    """One running attempt. No method blocks."""

    def poll(self) -> Exit | None:
        """Return how it ended; None while it runs."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM to the main process, as a container runtime does."""
        ...

    def kill(self) -> None:
        """End every process of the job at once, as a host does that goes away, or a stop time-out that passed."""
        ...

    def notice(self, at: datetime) -> None:
        """Show a reclaim at that time in the instance's metadata."""
        ...

    def close(self) -> None:
        """Give back what the attempt held. Nothing of it runs afterwards."""
        ...


class Runner(Protocol):
    """Starts attempts."""

    def start(self, launch: Launch) -> Handle:
        """Start an attempt and return at once.

        :raises StartError: it cannot be started.
        """
        ...


def discard(stream: str, lines: list[tuple[float, str]]) -> None:
    """A log sink that keeps nothing."""


@dataclass(slots=True, kw_only=True)
class ProcessRunner:
    """Runs each job as a process group of its own in a scratch directory of its own.

    :param environment: what every job gets besides Batch's own: endpoint, credentials, region.
    :param logs: where lines of stdout and stderr go.
    :param directory: where scratch directories are made; the system's place for temporary files unless given.
    :param keep: whether scratch directories stay after the job.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    logs: LogSink = discard
    directory: Path | None = None
    keep: bool = False
    clock: Clock = field(default_factory=SystemClock)

    def start(self, launch: Launch) -> Handle:
        """Start an attempt and return at once.

        :raises StartError: the command is not found or cannot be executed, or there is no place for it.
        """
        if not launch.command:
            raise StartError("CannotStartContainerError: Error response from daemon: no command specified")
        try:
            return self._start(launch)
        except (OSError, ValueError) as error:
            # ValueError: a zero byte in the command or the environment.
            text = error.strerror if isinstance(error, OSError) else str(error)
            raise StartError(
                f'CannotStartContainerError: Error response from daemon: exec: "{launch.command[0]}": {text}'
            ) from error

    def _start(self, launch: Launch) -> Handle:
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"job-{launch.job_id[:8]}-{launch.attempt}-", dir=self.directory))
        metadata = MetadataServer(launch.instance)
        metadata.start()
        try:
            process = _spawn(launch.command, self._environment(launch, scratch, metadata.url), scratch)
        except (OSError, ValueError):
            metadata.stop()
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        marker = f"AWS_BATCH_JOB_ID={launch.job_id}"
        handle = ProcessHandle(process, metadata, None if self.keep else scratch, marker)
        # A log driver makes the stream when the container starts, whether or not it ever says anything.
        self.logs(launch.stream, [])
        handle.pump(launch.stream, self.logs, self.clock)
        return handle

    def _environment(self, launch: Launch, scratch: Path, metadata: str) -> dict[str, str]:
        """Return what the job sees: of our own little, so that what a job lacks on AWS it lacks here already."""
        kept = {key: value for key, value in os.environ.items() if key in _KEPT or key.endswith("_NUM_THREADS")}
        binaries = str(Path(sys.executable).parent)
        return {
            **kept,
            "PATH": os.pathsep.join([binaries, os.environ.get("PATH", os.defpath)]),
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "PYTHONUNBUFFERED": "1",
            **self.environment,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata,
            **launch.environment,
        }


def _spawn(command: tuple[str, ...], environment: dict[str, str], scratch: Path) -> subprocess.Popen[bytes]:
    program = shutil.which(command[0], path=environment["PATH"])
    return subprocess.Popen(
        command,
        executable=program,
        cwd=scratch,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


class ProcessHandle:
    """One running process group, its metadata endpoint and the thread that reads its output."""

    def __init__(
        self, process: subprocess.Popen[bytes], metadata: MetadataServer, scratch: Path | None, marker: str
    ) -> None:
        self._marker = marker
        self.process = process
        self.metadata = metadata
        self._scratch = scratch
        self._reader: threading.Thread | None = None
        self._closed = False

    def pump(self, stream: str, logs: LogSink, clock: Clock) -> None:
        """Read the output in a thread until every writer has gone."""
        output = self.process.stdout
        assert output is not None
        name = f"logs-{self.process.pid}"
        self._reader = threading.Thread(target=_read, args=(output, stream, logs, clock), name=name, daemon=True)
        self._reader.start()

    def poll(self) -> Exit | None:
        """Return how the main process ended; what it left behind is killed, as the end of a container does."""
        code = self.process.poll()
        if code is None:
            return None
        kill_tree(self.process.pid, self._marker)
        return Exit(code=128 - code if code < 0 else code)

    def terminate(self) -> None:
        """Send SIGTERM to the main process only: it has to forward it, as in a container."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the group and to every descendant, wherever it went."""
        kill_tree(self.process.pid, self._marker)

    def notice(self, at: datetime) -> None:
        """Show a reclaim at that time in the instance's metadata."""
        self.metadata.notice(at)

    def close(self) -> None:
        """Kill what is left, read the rest of the output, remove the scratch directory."""
        if self._closed:
            return
        self._closed = True
        self.kill()
        self.process.wait(timeout=10)
        threading.Thread(target=self._give_back, name=f"close-{self.process.pid}").start()

    def _give_back(self) -> None:
        if self._reader is not None:
            self._reader.join(timeout=5)
        self.metadata.stop()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _read(output: IO[bytes], stream: str, logs: LogSink, clock: Clock) -> None:
    with output:
        for line in output:
            logs(stream, [(clock.time(), line.decode("utf-8", "replace").rstrip("\r\n"))])
