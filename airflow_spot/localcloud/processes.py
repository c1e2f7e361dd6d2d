"""Ending a process with everything that descends from it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess


def kill_tree(root: int) -> None:
    """Send SIGKILL to the session and group that a process leads, and to all of its descendants.

    :param root: a process started as the leader of its own session.
    """
    table = _table()
    doomed = _descendants(root, table) | {pid for pid, (_, group) in table.items() if group == root}
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)
    for pid in doomed - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _table() -> dict[int, tuple[int, int]]:
    """Return process → (parent, session or group) of all processes; ``ps`` is there on Linux and macOS alike."""
    session = "sess" if os.uname().sysname == "Linux" else "pgid"
    listing = subprocess.run(
        ["ps", "-axo", f"pid=,ppid=,{session}="], capture_output=True, text=True, check=False, timeout=10
    ).stdout
    rows = (line.split() for line in listing.splitlines())
    return {int(row[0]): (int(row[1]), int(row[2])) for row in rows if len(row) == 3 and all(map(str.isdigit, row))}


def _descendants(root: int, table: dict[int, tuple[int, int]]) -> set[int]:
    found: set[int] = set()
    ring = {root}
    while ring:
        ring = {pid for pid, (parent, _) in table.items() if parent in ring} - found
        found |= ring
    return found
