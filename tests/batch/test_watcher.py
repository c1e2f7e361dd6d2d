"""Many training runs, one DescribeJobs."""

from __future__ import annotations

import threading

import pytest

from airflow_spot.batch.watcher import FORGET_AFTER_SECONDS, Watcher
from airflow_spot.core.seen import JobSeen, JobStatus
from airflow_spot.errors import BatchUnavailable


class Cloud:
    """Describes jobs, counts calls, and has a clock that is set by hand."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobStatus] = {}
        self.calls: list[list[str]] = []
        self.now = 0.0
        self.error: BatchUnavailable | None = None

    def fetch(self, refs: list[str]) -> dict[str, JobSeen]:
        self.calls.append(refs)
        if self.error:
            raise self.error
        return {ref: JobSeen(ref=ref, name=ref, status=self.jobs[ref]) for ref in refs if ref in self.jobs}

    def watcher(self) -> Watcher:
        return Watcher(self.fetch, monotonic=lambda: self.now)


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


def test_fresh_answers_are_shared(cloud):
    """A second caller that accepts the age reads what the first one's call brought."""
    cloud.jobs = {"a": JobStatus.RUNNING, "b": JobStatus.RUNNING}
    watcher = cloud.watcher()
    watcher.describe(["a"])
    watcher.describe(["b"])
    assert cloud.calls == [["a"], ["b", "a"]]
    cloud.now = 10
    assert watcher.describe(["a"], max_age=15)["a"].status is JobStatus.RUNNING
    assert len(cloud.calls) == 2
    watcher.describe(["a"], max_age=5)
    assert len(cloud.calls) == 3


def test_unknown_ids_are_absent_and_not_asked_twice(cloud):
    """An id that Batch does not know is left out; that answer too may be shared."""
    watcher = cloud.watcher()
    assert watcher.describe(["gone"]) == {}
    assert watcher.describe(["gone"], max_age=5) == {}
    assert cloud.calls == [["gone"]]


def test_pages_hold_a_hundred(cloud):
    """More than a hundred jobs take more than one call, each job once."""
    refs = [f"j{number}" for number in range(250)]
    cloud.jobs = dict.fromkeys(refs, JobStatus.RUNNING)
    assert len(cloud.watcher().describe(refs, max_age=1)) == 250
    assert [len(page) for page in cloud.calls] == [100, 100, 100]
    assert {ref for page in cloud.calls for ref in page} == set(refs)


def test_terminal_jobs_are_forgotten(cloud):
    """A job that has ended is told once and no longer refreshed."""
    cloud.jobs = {"a": JobStatus.FAILED}
    watcher = cloud.watcher()
    assert watcher.describe(["a"])["a"].terminal
    assert watcher.watched == frozenset()


def test_unwatched_jobs_are_forgotten(cloud):
    """A job that nobody asks for any more costs nothing after ten minutes."""
    cloud.jobs = {"a": JobStatus.RUNNING, "b": JobStatus.RUNNING}
    watcher = cloud.watcher()
    watcher.describe(["a"])
    cloud.now = FORGET_AFTER_SECONDS + 1
    watcher.describe(["b"])
    assert watcher.watched == {"b"}
    assert cloud.calls[-1] == ["b"]


def test_failure_is_raised_and_forgotten(cloud):
    """An outage is told to the caller; the next call asks again."""
    cloud.error = BatchUnavailable("throttled", code="x")
    watcher = cloud.watcher()
    with pytest.raises(BatchUnavailable, match="throttled"):
        watcher.describe(["a"])
    cloud.error, cloud.now = None, 1
    assert watcher.describe(["a"]) == {}


@pytest.mark.parametrize("fails", [False, True], ids=["answer", "outage"])
def test_waiting_threads_share_one_call(fails):
    """Whoever waits while a call is under way needs at most one more call together, in an outage as well."""
    entered, go = threading.Event(), threading.Event()
    calls: list[list[str]] = []

    def fetch(refs: list[str]) -> dict[str, JobSeen]:
        calls.append(refs)
        entered.set()
        go.wait(10)
        if fails:
            raise BatchUnavailable("down", code="x")
        return {ref: JobSeen(ref=ref, name=ref, status=JobStatus.RUNNING) for ref in refs}

    watcher, results = Watcher(fetch), []

    def ask() -> None:
        try:
            results.append(watcher.describe(["a"])["a"].status)
        except BatchUnavailable as error:
            results.append(error.code)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    threads[0].start()
    entered.wait(10)
    for thread in threads[1:]:
        thread.start()
    waiting = threading.Event()
    waiting.wait(0.2)
    go.set()
    for thread in threads:
        thread.join(10)
    assert results == ["x" if fails else JobStatus.RUNNING] * 8
    assert len(calls) == 2
