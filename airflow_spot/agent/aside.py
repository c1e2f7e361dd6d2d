"""What lies in the checkpoint directory before the trainer begins.

A container that is started again, or a directory on a host's volume, may hold what an earlier trainer left, torn
files among it; a trainer that loads the newest thing it finds would take that for its checkpoint. So it is put aside,
never deleted. What an image brings along stays where it is.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from airflow_spot.rundir.layout import attempt_name

_OURS = ".airflow-spot-"


def mark(directory: Path, attempt: int) -> None:
    """Note that a trainer begins to use the directory: beside it, since trainers take whatever is newest in there."""
    with contextlib.suppress(OSError):
        _mark(directory).write_text(f"{attempt_name(attempt)}\n")


def is_used(directory: Path) -> bool:
    """Whether an earlier trainer has used the directory."""
    return _mark(directory).exists()


def _mark(directory: Path) -> Path:
    return directory.with_name(f"{_OURS}trained-{directory.name}")


def put_aside(directory: Path) -> Path | None:
    """Move what lies in a directory out of it; return where to, or None where there was nothing.

    :raises OSError: it cannot be moved.
    """
    found = [path for path in directory.iterdir() if not path.name.startswith(_OURS)]
    if not found:
        return None
    target = _beside(directory, found[0])
    for path in found:
        if path.exists() or path.is_symlink():
            path.rename(target / path.name)
    # Within the directory it must not be the newest thing that a trainer finds.
    os.utime(target, (0, 0))
    return target


def _beside(directory: Path, first: Path) -> Path:
    """Return a new directory to move to: beside, else within, where the directory is a mount of its own."""
    prefix = f"{_OURS}aside-"
    try:
        target = Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent))
    except OSError:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=directory))
    try:
        first.rename(target / first.name)
    except OSError:
        target.rmdir()
        return Path(tempfile.mkdtemp(prefix=prefix, dir=directory))
    return target
