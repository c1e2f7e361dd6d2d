"""Ending a process with everything that descends from it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class _Row:
    parent: int
    session: int


def kill_tree(root: int, marker: str | None = None) -> None:
    """Send SIGKILL to the session and group that a process leads, and to all of its descendants.

    :param root: a process started as the leader of its own session.
    :param marker: ``NAME=value`` in the environment of all of them; on Linux it also finds daemons that
        left the session and whose parents are gone.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)
    # A process may fork while it is being looked for.
    for _ in range(_ROUNDS):
        doomed = _doomed(root, marker)
        if not doomed:
            return
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _doomed(root: int, marker: str | None) -> set[int]:
    table = _from_proc() if _PROC.joinpath("self/stat").exists() else _from_ps()
    found = {pid for pid, row in table.items() if row.session == root} | {root} & set(table)
    ring = set(found)
    while ring:
        ring = {pid for pid, row in table.items() if row.parent in ring} - found
        found |= ring
    if marker is not None:
        found |= {pid for pid in table if pid not in found and _carries(pid, marker.encode())}
    return found - {os.getpid()}


def _from_proc() -> dict[int, _Row]:
    """Return all processes that are not zombies; a slim image has no ``ps``."""
    table: dict[int, _Row] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name may hold spaces and brackets; what follows its last bracket does not.
                state, parent, _, session = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:4]
                if state not in {"Z", "X"}:
                    table[int(entry.name)] = _Row(int(parent), int(session))
    return table


def _carries(pid: int, marker: bytes) -> bool:
    try:
        return marker in _PROC.joinpath(str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _from_ps() -> dict[int, _Row]:
    """Return all processes where there is no ``/proc``, as on macOS; the group stands in for the session."""
    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,pgid=,stat="], capture_output=True, text=True, check=False, timeout=10
    ).stdout
    rows = (line.split() for line in listing.splitlines())
    return {int(row[0]): _Row(int(row[1]), int(row[2])) for row in rows if len(row) == 4 and row[3][0] != "Z"}
