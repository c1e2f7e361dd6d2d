"""What an attempt produced: whole, verified, under a prefix of its own."""

from __future__ import annotations

import pytest

from airflow_spot.errors import CheckpointDamaged
from airflow_spot.rundir import artifacts


@pytest.fixture
def output(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.bin").write_text("weights")
    return tmp_path / "out"


def test_they_come_back(store, output, tmp_path):
    """Files lie below ``data/``, the manifest beside it."""
    prefix = artifacts.commit_artifacts(store, 3, output, step=7, job="j")
    found = artifacts.restore_artifacts(store, prefix, tmp_path / "target")

    assert [f"{prefix}data/model.bin", f"{prefix}manifest.json"] == [item.key for item in store.list(prefix)]
    assert (7, 3, "j") == (found.step, found.attempt, found.job)
    assert (tmp_path / "target" / "model.bin").read_text() == "weights"


def test_a_second_life_writes_beside_the_first(store, output):
    """Nothing is written over."""
    assert artifacts.commit_artifacts(store, 3, output) != artifacts.commit_artifacts(store, 3, output)


@pytest.mark.parametrize("prefix", ["run.json", "artifacts/a0003/../", "artifacts/a0003/aaaa", "artifacts/a0003/aaaa/"])
def test_other_prefixes_hold_nothing(store, prefix, tmp_path):
    """What an end file names is not trusted."""
    assert artifacts.artifacts(store, prefix) is None
    with pytest.raises(CheckpointDamaged, match="no readable manifest"):
        artifacts.restore_artifacts(store, prefix, tmp_path)


def test_damage_is_found(store, output, tmp_path):
    """By SHA-256."""
    prefix = artifacts.commit_artifacts(store, 3, output)
    store.put(f"{prefix}data/model.bin", b"WEIGHTS")
    with pytest.raises(CheckpointDamaged):
        artifacts.restore_artifacts(store, prefix, tmp_path / "target")
