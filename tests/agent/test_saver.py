"""Saves in the background, over a store that fails in every way."""

from __future__ import annotations

import threading

import pytest

from airflow_spot.agent import saver as saving
from airflow_spot.agent.saver import Saver
from airflow_spot.agent.staging import Stage
from airflow_spot.errors import CheckpointDamaged, ConfigurationError, StoreDenied, StoreUnavailable
from airflow_spot.rundir import checkpoints
from airflow_spot.rundir.checkpoints import Fenced
from airflow_spot.rundir.store import open_store


class Bench:
    """A saver over a store in memory; the next commits fail as scripted."""

    def __init__(self, tmp_path, name) -> None:
        self.store = open_store(f"memory://{name}/run")
        self.failures, self.fenced = [], False
        self.stage = Stage(tmp_path / "checkpoints")
        self.directory = tmp_path / "save"
        self.directory.mkdir()
        self.done = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.saver = Saver(self.commit, self.stage, may_commit=self.may_commit, on_done=self.done.release)

    def may_commit(self):
        if self.fenced:
            raise Fenced("ended")

    def commit(self, directory, **options):
        self.gate.wait(5)
        if self.failures:
            raise self.failures.pop(0)
        return checkpoints.commit(self.store, directory, attempt=1, job="j", **options)

    def save(self, step):
        (self.directory / "state").write_text(str(step))
        (self.directory / "same").write_text("same")
        self.saver.take(self.directory, step=step)

    def wait(self):
        assert self.done.acquire(timeout=5)

    @property
    def steps(self):
        return [found.manifest.step for found in checkpoints.present(self.store)]


@pytest.fixture
def bench(tmp_path, request, monkeypatch):
    monkeypatch.setattr(saving, "FIRST_WAIT_SECONDS", 0.01)
    found = Bench(tmp_path, request.node.name.replace("_", "-"))
    yield found
    found.saver.close()
    found.stage.close()


def test_saves_follow_each_other(bench):
    """Each is the ancestor of the next, and unchanged files stay where they are."""
    for step in (1, 2):
        bench.save(step)
        bench.wait()
    first, second = (found.manifest for found in checkpoints.present(bench.store))
    assert second.ancestors == (first.checkpoint,)
    keys = [{entry.name: entry.key for entry in manifest.files}["same"] for manifest in (first, second)]
    assert keys[0] == keys[1]
    assert (bench.saver.tally.saves, bench.saver.busy) == (2, False)


def test_only_the_newest_waits(bench):
    """Saves that come faster than they can be stored are overtaken."""
    bench.gate.clear()
    bench.save(1)
    while bench.saver._current is None:
        pass
    bench.save(2)
    bench.save(3)
    bench.gate.set()
    bench.wait()
    bench.wait()
    assert bench.steps == [1, 3]


def test_a_store_that_gives_no_answer_is_asked_again(bench):
    """The save is kept; failures are counted; nothing is raised at the trainer."""
    bench.failures = [StoreUnavailable("no answer")] * 3
    bench.save(1)
    bench.wait()
    assert (bench.steps, bench.saver.tally.failed, bench.saver.tally.last_error) == ([1], 3, "no answer")
    bench.saver.raise_failure()


def test_a_save_that_fails_for_good_is_raised_once(bench):
    """At the next call, which is taken all the same."""
    bench.failures = [StoreDenied("403")]
    bench.save(1)
    bench.wait()
    with pytest.raises(StoreDenied, match="403"):
        bench.save(2)
    bench.wait()
    bench.save(3)
    bench.wait()
    assert bench.steps == [2, 3]


def test_the_newest_save_is_lost_until_a_later_one_is_stored(bench):
    """What failed for good is named, with its step; a commit of a later save settles it."""
    bench.failures = [StoreDenied("403")]
    bench.save(1)
    bench.wait()
    assert bench.saver.lost == "step 1: 403"
    with pytest.raises(StoreDenied):
        bench.save(2)
    bench.wait()
    assert bench.saver.lost == ""


def test_a_save_that_cannot_be_staged_is_lost_too(bench, tmp_path):
    """It counts as failed, and the commit of an earlier save does not hide it."""
    bench.gate.clear()
    bench.save(1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError):
        bench.saver.take(tmp_path / "empty", step=2)
    bench.gate.set()
    bench.wait()
    assert bench.steps == [1]
    assert bench.saver.tally.failed == 1
    assert bench.saver.lost.startswith("step 2: ")


def test_a_fenced_save_is_not_lost(bench):
    """Another attempt goes on with the training: nothing to say."""
    bench.fenced = True
    bench.save(1)
    bench.wait()
    assert bench.saver.lost == ""


def test_a_fault_of_ours_surfaces_too(bench):
    """Whatever ends a save, the thread lives on and the trainer hears of it."""
    bench.failures = [RuntimeError("surprise")]
    bench.save(1)
    bench.wait()
    with pytest.raises(Exception, match="surprise"):
        bench.save(2)
    bench.wait()
    assert bench.steps == [2]


def test_a_fenced_save_does_not_exist(bench):
    """No manifest, and no error for a trainer that is about to be stopped."""
    bench.fenced = True
    bench.save(1)
    bench.wait()
    assert (bench.steps, bench.store.list("checkpoints/")) == ([], [])
    bench.saver.raise_failure()


def test_after_a_rewrite_in_place_everything_is_copied(bench):
    """The damaged save does not count; the next one cannot be damaged so."""
    bench.failures = [CheckpointDamaged("changed")]
    bench.save(1)
    bench.wait()
    assert bench.stage.copy_all
    bench.save(2)
    bench.wait()
    assert bench.steps == [2]


def test_staged_files_are_given_back(bench):
    """Nothing stays on the disk after a save."""
    bench.save(1)
    bench.wait()
    assert list(bench.stage.root.iterdir()) == []
