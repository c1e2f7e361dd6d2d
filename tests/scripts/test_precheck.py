"""What a machine lacks is said in one sentence, before anything is installed."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import precheck
import pytest


def test_nothing_lacks(tmp_path: Path) -> None:
    """On a machine that runs these tests nothing lacks."""
    assert precheck.lacking(tmp_path) is None


def test_old_python(tmp_path: Path) -> None:
    """A Python that is too old is named, with how to name another."""
    sentence = precheck.lacking(tmp_path, version=(3, 9, 6))

    assert sentence == (
        "Python 3.9.6 is too old: 3.11 or newer is needed; name one, e.g. `make demo PYTHON=python3.12`."
    )


def test_no_venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's Python without ``venv`` is met with the package that has it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())

    sentence = precheck.lacking(tmp_path)

    assert sentence == (
        "Python's module ensurepip is missing; install it, on Debian or Ubuntu `apt install python3-venv`."
    )


def test_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is met with what is free and what is needed."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 5 * 1024**2))

    sentence = precheck.lacking(tmp_path)

    assert sentence == f"only 5 MB are free in {tmp_path}; the environment needs 2 GB."
