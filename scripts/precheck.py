"""Say in one sentence what this machine lacks, before anything is installed. Runs on any Python 3.

Usage: ``python3 scripts/precheck.py DIRECTORY``, where the environment is to be made.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

OLDEST = (3, 11)
FREE_BYTES = 2 * 1024**3


def lacking(directory: Path, *, version: tuple[int, ...] = sys.version_info[:3]) -> str | None:
    """Return the sentence, or None where all is there."""
    if version[:2] < OLDEST:
        found, wanted = ".".join(map(str, version)), ".".join(map(str, OLDEST))
        return f"Python {found} is too old: {wanted} or newer is needed; name one, e.g. `make demo PYTHON=python3.12`."
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        return f"Python's module {missing[0]} is missing; install it, on Debian or Ubuntu `apt install python3-venv`."
    free = shutil.disk_usage(directory).free
    if free < FREE_BYTES:
        needed = f"{FREE_BYTES / 1024**3:.0f} GB"
        return f"only {free / 1024**2:.0f} MB are free in {directory.resolve()}; the environment needs {needed}."
    return None


if __name__ == "__main__":
    sys.exit(lacking(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
