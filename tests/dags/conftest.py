"""The example trainers, loaded from where they lie: they are programs, not a package."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DAGS = Path(__file__).parents[2] / "dags"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def train_digits() -> Iterator[ModuleType]:
    """The training program; importing scikit-learn takes about two seconds."""
    yield load(DAGS / "trainers" / "train_digits.py")
    del sys.modules["train_digits"]


@pytest.fixture(scope="session")
def evaluate_digits(train_digits: ModuleType) -> Iterator[ModuleType]:
    """The evaluation, which imports the training program."""
    yield load(DAGS / "trainers" / "evaluate_digits.py")
    del sys.modules["evaluate_digits"]
