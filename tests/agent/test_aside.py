"""What lies in the checkpoint directory before the trainer begins."""

from __future__ import annotations

from airflow_spot.agent.aside import is_used, mark, put_aside


def test_what_was_left_is_moved_and_kept(tmp_path):
    """Files, directories and links; nothing is deleted."""
    directory = tmp_path / "checkpoints"
    (directory / "step-300").mkdir(parents=True)
    (directory / "step-300" / "model").write_text("torn")
    (directory / "latest").symlink_to("step-300")
    mark(directory, 3)
    assert is_used(directory)
    target = put_aside(directory)
    assert list(directory.iterdir()) == []
    assert (target / "step-300" / "model").read_text() == "torn"
    assert (target / "latest").is_symlink()


def test_an_empty_directory_stays_as_it_is(tmp_path):
    """Nothing to move, nothing is made."""
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    assert put_aside(directory) is None
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
