"""The trainer as a process: started in its own group, signalled as a group, and gone as a group."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PROC = Path("/proc")
_SET_DEATH_SIGNAL = 1
_SET_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


class Trainer:
    """The trainer's process group.

    :param on_exit: called once, from a thread, when the first process has ended.
    :raises OSError: the command cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], on_exit: Callable[[], None]) -> None:
        _adopt_orphans()
        self._process = subprocess.Popen(
            list(command),
            env=dict(environment),
            process_group=0,
            preexec_fn=_die_with_agent if _libc else None,  # noqa: PLW1509 - one system call, looked up before the fork
        )
        self.pid = self._process.pid
        self._thread = threading.Thread(target=self._wait, args=(on_exit,), name="trainer", daemon=True)
        self._thread.start()

    def _wait(self, on_exit: Callable[[], None]) -> None:
        self._process.wait()
        on_exit()

    @property
    def exit_code(self) -> int | None:
        """Of the first process: 128 + n for signal n; None while it runs."""
        status = self._process.returncode
        return status if status is None or status >= 0 else 128 - status

    @property
    def by_signal(self) -> bool:
        """Whether a signal ended the first process, so that it did not choose the moment."""
        return (self._process.returncode or 0) < 0

    def send(self, signum: int) -> None:
        """Send a signal to the group and to what has left it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)
        for pid in self.members():
            if pid != self.pid and _group(pid) != self.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signum)

    def members(self) -> set[int]:
        """Return the processes of the trainer: its group and, where /proc is there, all that descend from the agent."""
        table = {pid: (parent, group) for pid, parent, group, state in processes() if state != "Z"}
        found = {pid for pid, (_, group) in table.items() if group == self.pid}
        ring = {os.getpid()}
        while ring:
            ring = {pid for pid, (parent, _) in table.items() if parent in ring} - found - {os.getpid()}
            found |= ring
        return found

    def gone(self) -> bool:
        """Whether nothing of the trainer runs any more; reaps what has died."""
        self._reap()
        if PROC.is_dir():
            return not self.members()
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return True
        return False

    def _reap(self) -> None:
        """Take the exit status of adopted children; the trainer's own is left to its thread."""
        for pid, parent, _, state in processes():
            if parent == os.getpid() and state == "Z" and pid != self.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def end(self, seconds: float = 5.0) -> bool:
        """Kill what is left, and return whether all of it is gone after that time."""
        deadline = time.monotonic() + seconds
        self.send(signal.SIGKILL)
        self._thread.join(seconds)
        while not self.gone():
            if time.monotonic() > deadline:
                return False
            self.send(signal.SIGKILL)
            time.sleep(0.02)
        return True


def _die_with_agent() -> None:
    """In the child: be killed when the agent is, so that no trainer goes on without a fence."""
    if _libc is not None:
        _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _adopt_orphans() -> None:
    """Become the parent of processes that the trainer leaves behind, to find and end them."""
    if _libc is not None:
        _libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0)


def _stat(pid: int) -> tuple[int, int, int, str] | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (OSError, ValueError):
        return None
    # The name may hold spaces and brackets: what follows the last bracket is plain.
    state, parent, group, *_ = text.rpartition(")")[2].split()
    return pid, int(parent), int(group), state


def processes() -> Iterator[tuple[int, int, int, str]]:
    """Give pid, parent, group and state of every process; nothing where /proc is absent."""
    if not PROC.is_dir():
        return
    for name in os.listdir(PROC):  # noqa: PTH208 - thousands of entries, twice a second
        if name.isdigit() and (row := _stat(int(name))):
            yield row


def _group(pid: int) -> int:
    row = _stat(pid)
    return row[2] if row else 0
