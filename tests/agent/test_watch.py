"""Which checkpoints in a directory are complete."""

from __future__ import annotations

import os

import pytest

from airflow_spot.agent.directory import states
from airflow_spot.agent.watch import Rules, candidate, look, step_of


def write(directory, *names):
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def names(found):
    return None if found is None else (found.step, sorted(found.files))


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-300", 300),
        ("checkpoint_1200.pt", 1200),
        ("epoch=3-step=1200.ckpt", 1200),
        ("step=1200-loss=0.31.ckpt", 1200),
        ("global_step8000", 8000),
        ("0042", 42),
        ("model-00001-of-00003.safetensors", None),
        ("rng_state_0.pth", None),
        ("latest", None),
        ("loss-0.31.pt", None),
    ],
)
def test_the_step_comes_from_the_name(name, step):
    """After a word such as step, else the last whole number; shards and fractions are none."""
    assert step_of(name) == step


def test_the_users_pattern_wins():
    """Its first group is the step."""
    assert step_of("v2-at-17-of-99", r"at-(\d+)") == 17


def test_a_newer_sibling_completes(tmp_path):
    """Where open files cannot be seen, the entry before the last is complete."""
    write(tmp_path, "step-100/a", "step-200/a")
    now = look(tmp_path, None)
    blind = type(now)(now.entries, None)
    assert names(candidate(blind, blind, Rules())) == (100, ["step-100/a"])


def test_quiet_time_alone_completes_nothing(tmp_path):
    """Two equal looks are not enough where open files cannot be seen."""
    write(tmp_path, "step-100/a")
    now = look(tmp_path, None)
    blind = type(now)(now.entries, None)
    assert candidate(blind, blind, Rules()) is None


def test_a_file_open_for_writing_is_not_complete(tmp_path):
    """It is once it was closed and two looks saw the same."""
    with (tmp_path / "step-100").open("w") as file:
        file.write("half")
        file.flush()
        first = look(tmp_path, [os.getpid()])
        assert candidate(first, first, Rules()) is None
    second, third = look(tmp_path, [os.getpid()]), look(tmp_path, [os.getpid()])
    assert candidate(second, first, Rules()) is None
    assert names(candidate(third, second, Rules())) == (100, ["step-100"])


def test_a_reader_does_not_hold_a_checkpoint_up(tmp_path):
    """Only files open for writing count."""
    write(tmp_path, "step-100")
    with (tmp_path / "step-100").open() as _:
        now = look(tmp_path, [os.getpid()])
    assert names(candidate(now, now, Rules())) == (100, ["step-100"])


def test_a_log_that_stays_open_is_left_out(tmp_path):
    """A file that is written all the time does not keep numbered checkpoints from being complete."""
    write(tmp_path, "step-100/a")
    with (tmp_path / "events.log").open("w") as file:
        file.write("line")
        file.flush()
        now = look(tmp_path, [os.getpid()])
    assert names(candidate(now, now, Rules())) == (100, ["step-100/a"])


def test_files_without_numbers_go_together(tmp_path):
    """model and optimizer are one checkpoint: one of them open holds both up."""
    write(tmp_path, "model.pt")
    with (tmp_path / "optimizer.pt").open("w") as file:
        file.write("half")
        file.flush()
        now = look(tmp_path, [os.getpid()])
    assert candidate(now, now, Rules()) is None
    closed = look(tmp_path, [os.getpid()])
    assert names(candidate(closed, closed, Rules())) == (None, ["model.pt", "optimizer.pt"])


def test_a_marker_completes_and_nothing_else_does(tmp_path):
    """With --complete DONE a newer sibling is not enough."""
    write(tmp_path, "step-100/a", "step-100/DONE", "step-200/a", "step-300/a")
    now = look(tmp_path, [])
    assert names(candidate(now, now, Rules("DONE"))) == (100, ["step-100/DONE", "step-100/a"])


def test_a_glob_names_what_is_complete(tmp_path):
    """Names that match are complete the moment they are there."""
    write(tmp_path, "step-100.done.pt", "step-200.pt")
    now = look(tmp_path, [])
    assert names(candidate(now, None, Rules("*.done.pt"))) == (100, ["step-100.done.pt"])


def test_what_was_restored_is_no_new_checkpoint(tmp_path):
    """It is part of the next one as long as the trainer keeps it."""
    write(tmp_path, "step-100/a")
    rules = Rules(None, states(tmp_path))
    now = look(tmp_path, [])
    assert candidate(now, now, rules) is None
    write(tmp_path, "step-200/a")
    after = look(tmp_path, [])
    assert names(candidate(after, after, rules)) == (200, ["step-100/a", "step-200/a"])


def test_temporary_names_and_links_outwards_are_not_seen(tmp_path):
    """Hidden and passing names, and links that leave the directory."""
    inside = tmp_path / "in"
    inside.mkdir()
    write(tmp_path, "secret")
    write(inside, ".step-100", "step-100.tmp")
    (inside / "step-200").symlink_to(tmp_path / "secret")
    assert look(inside, None).entries == ()


def test_a_trainer_that_died_leaves_only_what_was_complete_before(tmp_path):
    """A file that changed since the last look may be torn; one that did not is complete."""
    write(tmp_path, "step-100")
    before = look(tmp_path, [])
    write(tmp_path, "step-200")
    dead = look(tmp_path, None)
    assert names(candidate(dead, before, Rules())) == (100, ["step-100"])
    assert names(candidate(dead, before, Rules(), ended=True)) == (200, ["step-100", "step-200"])
