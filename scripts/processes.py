"""Child processes that end with all that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

GRACE_SECONDS = 8.0


class StartError(RuntimeError):
    """Something that the demo needs did not start, in one sentence."""


class Child:
    """A program in a session of its own, so that a Ctrl-C in the terminal reaches only us, and we end it in order.

    :param log: where its output goes.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], *, env: Mapping[str, str], log: Path, cwd: Path | None = None
    ) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int:
        """Return its exit code.

        :raises StartError: it takes longer.
        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise StartError(f"{self.name} did not end within {seconds:.0f} s; its output is in {self.log}") from None

    def check(self) -> None:
        """Do nothing while it runs.

        :raises StartError: it has ended.
        """
        if (code := self.exit_code) is not None:
            raise StartError(f"{self.name} ended with exit code {code}: {self.last_words()} (all of it in {self.log})")

    def last_words(self) -> str:
        """Return the last line it wrote."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else "no output"

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """End it and everything it started: a request first, force after the grace. Calling it twice is safe."""
        family = self._family()
        for signum, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
            self._signal_group(signum)
            if signum is signal.SIGKILL:
                _kill(family)
            self._process.poll()
            _, alive = psutil.wait_procs(family, timeout=patience)
            if not alive:
                self._process.poll()  # psutil may have reaped it: let Popen know
                return
            family = [*alive]

    def _family(self) -> list[psutil.Process]:
        """Return all that runs of it: descendants, and whoever is in its group though its parent is gone."""
        found = {process.pid: process for process in _descendants(self._process.pid)}
        for process in psutil.process_iter():
            try:
                if os.getpgid(process.pid) == self._process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = process
            except (OSError, psutil.Error):
                continue
        return [*found.values()]

    def _signal_group(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signum)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return [*psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def free_port(preferred: int = 0) -> int:
    """Return a free port of this machine; the preferred one where it is free."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise StartError("no port of 127.0.0.1 is free; end some of the programs that listen there")
