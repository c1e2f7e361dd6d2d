"""The example trainer: whatever interrupts it, the final weights are the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

EPOCHS = 2
STEPS = 46


class Reclaimed(Exception):
    """The machine is gone."""


class TrainingRun:
    """What ``attach()`` gives, keeping its checkpoint in a directory and dying after a given step."""

    def __init__(self, directory: Path, *, resume: bool = False, every: int = 1, dies_after: int | None = None) -> None:
        self.directory = directory
        self.resume_dir = directory if resume else None
        self.every, self.dies_after = every, dies_after
        self.step = 0
        self.stopping = False
        self.finished: dict[str, Any] = {}

    @property
    def should_save(self) -> bool:
        return self.step % self.every == 0

    def progress(self, *, step: int, total_steps: int) -> None:
        self.step = step
        if self.dies_after is not None and step > self.dies_after:
            raise Reclaimed

    def save(self, directory: Path, *, step: int, total_steps: int) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(directory, self.directory)

    def finish(self, *, metrics: dict[str, Any], output: Path) -> None:
        self.finished = {"metrics": metrics, "output": output}


@pytest.fixture
def run_with(train_digits: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Train under a given training run and return the final weights' bytes."""

    def train(run: TrainingRun, *arguments: str) -> dict[str, bytes]:
        monkeypatch.setattr(train_digits, "attach", lambda: run)
        output = tmp_path / "model"
        train_digits.train(train_digits.parse([f"--epochs={EPOCHS}", f"--output={output}", *arguments]))
        with np.load(output / "model.npz", allow_pickle=False) as arrays:
            return {name: arrays[name].tobytes() for name in arrays.files}

    return train


@pytest.mark.parametrize("last", [1, 22, 23, 24, 45], ids=lambda step: f"after step {step}")
def test_interrupted_equals_uninterrupted(run_with: Any, tmp_path: Path, last: int) -> None:
    """A training that dies after any step and goes on from its checkpoint ends with the same weights, bit for bit."""
    expected = run_with(TrainingRun(tmp_path / "whole", every=7))

    with pytest.raises(Reclaimed):
        run_with(TrainingRun(tmp_path / "saved", dies_after=last))
    resumed = TrainingRun(tmp_path / "saved", resume=True)

    assert expected == run_with(resumed)
    assert resumed.step == STEPS


def test_lost_steps_are_trained_again(run_with: Any, tmp_path: Path) -> None:
    """Steps after the last checkpoint are done again with the same result."""
    expected = run_with(TrainingRun(tmp_path / "whole"))

    with pytest.raises(Reclaimed):
        run_with(TrainingRun(tmp_path / "saved", every=10, dies_after=28))

    assert expected == run_with(TrainingRun(tmp_path / "saved", resume=True))


def test_it_leaves_when_asked(run_with: Any, tmp_path: Path) -> None:
    """Asked to stop, it leaves with exit code 0 after its next save, and the next one goes on from there."""
    expected = run_with(TrainingRun(tmp_path / "whole"))
    asked = TrainingRun(tmp_path / "saved", every=10)
    asked.stopping = True

    with pytest.raises(SystemExit, match="0"):
        run_with(asked)

    assert (10, {}) == (asked.step, asked.finished)
    assert expected == run_with(TrainingRun(tmp_path / "saved", resume=True))


def test_other_options_are_refused(run_with: Any, tmp_path: Path) -> None:
    """A checkpoint made with other options is refused with both sets of them and what to do."""
    with pytest.raises(Reclaimed):
        run_with(TrainingRun(tmp_path / "saved", dies_after=3))

    with pytest.raises(SystemExit, match=r"'learning_rate': 0.1.*'learning_rate': 0.5.*on_clear='fresh'"):
        run_with(TrainingRun(tmp_path / "saved", resume=True), "--learning-rate=0.5")


def test_it_learns_and_reports(run_with: Any, tmp_path: Path) -> None:
    """Two passes already read most unseen digits rightly, and the metrics and the model's directory are reported."""
    run = TrainingRun(tmp_path / "saved")

    run_with(run)

    assert run.finished["metrics"]["accuracy"] > 0.8
    assert (run.finished["output"] / "model.npz").is_file()


def test_evaluation_agrees_with_training(
    run_with: Any, evaluate_digits: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The evaluation of a model finds the accuracy that its training reported."""
    run = TrainingRun(tmp_path / "saved")
    run_with(run)
    evaluation = TrainingRun(tmp_path / "none")
    monkeypatch.setattr(evaluate_digits, "attach", lambda: evaluation)
    monkeypatch.setattr(evaluation, "finish", lambda *, metrics: None)

    assert run.finished["metrics"]["accuracy"] == evaluate_digits.evaluate(str(tmp_path / "model"))["accuracy"]


def test_evaluation_finds_the_model_in_a_store(run_with: Any, evaluate_digits: ModuleType, tmp_path: Path) -> None:
    """An address of artefacts is searched for the model, which is fetched."""
    from airflow_spot.rundir.store import open_store

    expected = run_with(TrainingRun(tmp_path / "saved"))
    store = open_store("memory://evaluation/artifacts/a0001")
    store.upload(tmp_path / "model" / "model.npz", "data/model.npz")

    found = evaluate_digits.load_model("memory://evaluation/artifacts/a0001/", tmp_path)

    assert expected == {name: array.tobytes() for name, array in found.items()}


def test_missing_model_is_a_sentence(evaluate_digits: ModuleType, tmp_path: Path) -> None:
    """Without a model the evaluation says where it looked."""
    with pytest.raises(SystemExit, match=r"no model\.npz in .*'artifacts' of the training task"):
        evaluate_digits.load_model(str(tmp_path), tmp_path)
