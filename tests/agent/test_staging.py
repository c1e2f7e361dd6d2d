"""Still copies of files."""

from __future__ import annotations

import pytest

from airflow_spot.agent.staging import LINK_FROM_BYTES, Stage
from airflow_spot.errors import ConfigurationError


@pytest.fixture
def stage(tmp_path):
    found = Stage(tmp_path / "checkpoints")
    yield found
    found.close()


def test_what_was_saved_stays_as_it_was(stage, tmp_path):
    """The trainer may change small files and delete large ones at once."""
    source = tmp_path / "save"
    source.mkdir()
    (source / "small").write_text("before")
    (source / "large").write_bytes(b"x" * LINK_FROM_BYTES)
    staged = stage.take(source)
    (source / "small").write_text("after!")
    (source / "large").unlink()
    assert (staged.directory / "small").read_text() == "before"
    assert (staged.directory / "large").stat().st_size == LINK_FROM_BYTES
    assert staged.intact()


def test_a_large_file_costs_nothing(stage, tmp_path):
    """It is a link, not a copy, on one file system."""
    source = tmp_path / "save"
    source.mkdir()
    (source / "large").write_bytes(b"x" * LINK_FROM_BYTES)
    staged = stage.take(source)
    assert (staged.directory / "large").stat().st_ino == (source / "large").stat().st_ino


def test_a_file_rewritten_in_place_is_found_out(stage, tmp_path):
    """The link would show it; so the save does not count."""
    source = tmp_path / "save"
    source.mkdir()
    (source / "large").write_bytes(b"x" * LINK_FROM_BYTES)
    staged = stage.take(source)
    with (source / "large").open("r+b") as file:
        file.write(b"yy" * LINK_FROM_BYTES)
    assert not staged.intact()


def test_nothing_to_save_is_refused(stage, tmp_path):
    """With the directory's name."""
    with pytest.raises(ConfigurationError, match="no file to save"):
        stage.take(tmp_path)
    with pytest.raises(ConfigurationError, match="not a directory"):
        stage.take(tmp_path / "missing")


def test_a_vanished_file_leaves_nothing_behind(stage, tmp_path):
    """A save that cannot be staged gives its space back."""
    with pytest.raises(FileNotFoundError):
        stage.take(tmp_path, ["gone"])
    assert list(stage.root.iterdir()) == []
