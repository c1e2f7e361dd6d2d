"""Jobs that nobody waits for, and stops by a person, over the fake Batch."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_spot import engine, opening
from airflow_spot.batch.aws import AwsClock
from airflow_spot.batch.client import BatchBackend, Clients
from airflow_spot.batch.requests import submit_request
from airflow_spot.batch.watcher import Watcher
from airflow_spot.core.model import Tier
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.errors import StoreDenied
from airflow_spot.rundir import attempts, codec, record, requests
from airflow_spot.rundir.store import Store, open_store
from airflow_spot.rundir.values import AttemptState, Claim, Record, Result
from airflow_spot.testing import Behaviour, FakeBatch, FakeClock

from .conftest import NOW, Place, a_record, reclaimed, training

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

SPOT = Tier.spot("spot")
SPEC = TrainingSpec(job_definition="airflow-spot", tiers=(SPOT, Tier.on_demand("on-demand")))
OLD = NOW - timedelta(hours=3)
SUCCEEDED = Result(outcome="SUCCEEDED", message="the training completed", generation=1, at=NOW)


@pytest.fixture
def batch() -> FakeBatch:
    """A Batch at NOW whose jobs run until they are ended."""
    batch = FakeBatch(FakeClock(NOW))
    batch.script(Behaviour())
    return batch


@pytest.fixture
def place(name: str, batch: FakeBatch) -> Place:
    """A run root with that Batch behind it."""
    clock = AwsClock(monotonic=batch.clock.monotonic, wall=batch.clock.now)
    backend = BatchBackend(Clients(batch=batch, batch_once=batch), clock=clock)
    backend.watcher = Watcher(backend._describe_page, monotonic=batch.clock.monotonic)
    return Place(root=open_store(f"memory://{name}/runs"), backend=backend)


def submit(place: Place, batch: FakeBatch, key: str, attempt: int = 2, **changes: Any) -> str:
    """Start a job as the loop does, and return its id."""
    uri = f"{place.uri}/{key}"
    request = submit_request(SPEC, SPOT, run_uri=uri, run_key=key, attempt=attempt)
    job: str = batch.submit_job(**{**request, **changes})["jobId"]
    batch.advance(5)
    return job


def a_training_run(place: Place, batch: FakeBatch, **changes: Any) -> tuple[str, Record]:
    """Lay down a training run whose second attempt has a real job, and return the job."""
    value = a_record(spec=codec.encode(SPEC), **changes)
    job = submit(place, batch, value.run_key)
    value = replace(value, attempts=(reclaimed(), training(ref=job, job_queue="spot")))
    place.put(value)
    return job, value


def orphans(place: Place, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, Any]]]:
    code = place("orphans", "--run-root", place.uri, "--json", *words)
    return code, json.loads(capsys.readouterr().out)


def status(batch: FakeBatch, job: str) -> str:
    batch.advance(60)
    found: str = batch.describe_jobs(jobs=[job])["jobs"][0]["status"]
    return found


def test_a_job_with_a_young_lease_is_no_orphan(place: Place, batch: FakeBatch, capsys) -> None:
    """While somebody waits in Airflow nothing is listed."""
    a_training_run(place, batch)
    assert orphans(place, capsys) == (0, [])


def test_an_old_lease_makes_an_orphan(
    place: Place, batch: FakeBatch, capsys, set_clock: Callable[[datetime], None]
) -> None:
    """A job whose lease nobody renews is listed with the lease's age, and left alone without --end."""
    set_clock(OLD)
    job, value = a_training_run(place, batch)
    code, (row,) = orphans(place, capsys)
    assert code == 4
    assert (row["job"], row["attempt"], row["uri"], row["lives"]) == (job, 2, f"{place.uri}/{value.run_key}", True)
    assert row["why"].startswith("nobody in Airflow has waited for it for 3 h")
    assert orphans(place, capsys, "--older-than", "4h") == (0, [])
    assert status(batch, job) == "RUNNING"


def test_end_stops_the_training_run_and_terminates_its_job(
    place: Place, batch: FakeBatch, capsys, set_clock: Callable[[datetime], None]
) -> None:
    """--end writes that it is stopped, not by a person, and ends the job with our token in the reason."""
    set_clock(OLD)
    job, value = a_training_run(place, batch)
    code, (row,) = orphans(place, capsys, "--end")
    assert (code, row["done"], row["lives"]) == (0, "terminated", False)
    loaded = record.load(place.at(value))
    assert loaded is not None
    assert (loaded.record.desired.state, loaded.record.desired.by_person) == ("stopped", False)
    assert status(batch, job) == "FAILED"
    assert batch.describe_jobs(jobs=[job])["jobs"][0]["statusReason"].startswith("airflow-spot ")
    assert orphans(place, capsys) == (0, [])


def test_a_job_of_an_ended_training_run(place: Place, batch: FakeBatch, capsys) -> None:
    """A result with a living job is listed, and --end ends the job and keeps the result."""
    job, value = a_training_run(place, batch, result=SUCCEEDED)
    _, (row,) = orphans(place, capsys)
    assert row["why"] == "the training run has ended SUCCEEDED"
    assert orphans(place, capsys, "--end")[0] == 0
    assert status(batch, job) == "FAILED"
    loaded = record.load(place.at(value))
    assert loaded is not None
    assert (loaded.record.result, loaded.record.desired.state) == (SUCCEEDED, "running")


def test_stop_ends_what_an_ended_training_run_left(place: Place, batch: FakeBatch, capsys) -> None:
    """A job that outlived the result is ended by stop as well."""
    job, _ = a_training_run(place, batch, result=SUCCEEDED)
    assert place("stop", "final", "manual__1", "train", "--run-root", place.uri) == 0
    assert capsys.readouterr().out == (f"it had ended SUCCEEDED: the training completed; told to end: {job}\n")


def test_a_job_whose_record_is_gone(place: Place, batch: FakeBatch, capsys) -> None:
    """A job in a given queue that names a run directory without a record is listed and ended."""
    job = submit(place, batch, "gone/r/train/-1")
    submit_of_others = batch.submit_job(jobName="other", jobQueue="spot", jobDefinition="airflow-spot")["jobId"]
    code, (row,) = orphans(place, capsys, "--queue", "spot")
    assert (code, row["job"], row["why"]) == (4, job, "its run directory holds no record")
    assert orphans(place, capsys, "--queue", "spot", "--end")[0] == 0
    assert status(batch, job) == "FAILED"
    assert status(batch, submit_of_others) == "RUNNING"


def test_jobs_below_another_run_root_are_not_ours(place: Place, batch: FakeBatch, capsys) -> None:
    """Two deployments may share a queue: only jobs below the run root are looked at."""
    uri = f"{place.uri}-2/x/r/train/-1"
    batch.submit_job(**submit_request(SPEC, SPOT, run_uri=uri, run_key="x/r/train/-1", attempt=1))
    assert orphans(place, capsys, "--queue", "spot") == (0, [])


def test_a_second_job_of_one_attempt(place: Place, batch: FakeBatch, capsys) -> None:
    """A double of an attempt's job is listed, unless it is the one that claimed the attempt."""
    job, value = a_training_run(place, batch)
    double = submit(place, batch, value.run_key)
    _, (row,) = orphans(place, capsys)
    assert (row["job"], row["why"]) == (double, f"attempt 2 is job {job}, not this one")
    attempts.claim(place.at(value), Claim(attempt=2, job=double, incarnation=1))
    assert orphans(place, capsys) == (0, [])


def test_an_attempt_that_is_being_submitted_is_no_orphan(place: Place, batch: FakeBatch, capsys) -> None:
    """Between SubmitJob and the record's next write a job has no id there yet, or not even an intent when we read."""
    value = a_record(spec=codec.encode(SPEC), attempts=(training(3, state=AttemptState.INTENDED, ref=None),))
    place.put(value)
    submit(place, batch, value.run_key, attempt=3)
    submit(place, batch, value.run_key, attempt=4)
    assert orphans(place, capsys) == (0, [])


def test_an_attempt_whose_id_was_never_learnt_is_found_by_name(
    place: Place, batch: FakeBatch, capsys, set_clock: Callable[[datetime], None]
) -> None:
    """An unresolved attempt of an abandoned training run is looked up by its job's name."""
    set_clock(OLD)
    key = a_record().run_key
    job = submit(place, batch, key, attempt=3)
    name = batch.describe_jobs(jobs=[job])["jobs"][0]["jobName"]
    lost = training(3, state=AttemptState.UNRESOLVED, ref=None, job_name=name, job_queue="spot")
    place.put(a_record(spec=codec.encode(SPEC), attempts=(reclaimed(), lost), next_attempt=4))
    _, (row,) = orphans(place, capsys)
    assert (row["job"], row["attempt"]) == (job, 3)


@pytest.mark.parametrize("written", ["", "train-3"])
def test_a_name_that_was_never_written_follows_from_the_attempt(
    place: Place, batch: FakeBatch, capsys, set_clock: Callable[[datetime], None], written: str
) -> None:
    """A job without a name in the record, or under another one than there, is found and ended all the same."""
    set_clock(OLD)
    key = a_record().run_key
    job = submit(place, batch, key, attempt=3)
    lost = training(3, state=AttemptState.INTENDED, ref=None, job_name=written, job_queue="spot")
    value = a_record(spec=codec.encode(SPEC), attempts=(reclaimed(), lost), next_attempt=4)
    place.put(value)
    code, (row,) = orphans(place, capsys, "--end")
    assert (code, row["job"], row["done"]) == (0, job, "terminated")
    assert row["why"].startswith("nobody in Airflow has waited for it")
    assert status(batch, job) == "FAILED"
    loaded = record.load(place.at(value))
    assert loaded is not None
    assert loaded.record.desired.state == "stopped"


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (AttemptState.UNRESOLVED, "the reply to the submit of attempt 3 was lost, and training went on without it"),
        (AttemptState.ENDED, "the record holds no job of attempt 3, which has ended"),
    ],
)
def test_a_job_that_came_to_light_late_is_an_orphan_though_somebody_waits(
    place: Place, batch: FakeBatch, capsys, state: AttemptState, why: str
) -> None:
    """The job of an attempt that was given up is not adopted any more: it is ended, and the training run goes on."""
    value = a_record(spec=codec.encode(SPEC))
    job = submit(place, batch, value.run_key, attempt=3)
    lost = training(3, state=state, ref=None, job_queue="spot", terminal=state is AttemptState.ENDED)
    value = replace(value, attempts=(reclaimed(), lost), next_attempt=4)
    place.put(value)
    code, (row,) = orphans(place, capsys, "--end")
    assert (code, row["job"], row["why"]) == (0, job, why)
    assert status(batch, job) == "FAILED"
    loaded = record.load(place.at(value))
    assert loaded is not None
    assert loaded.record.desired.state == "running"


def test_a_job_that_does_not_name_its_attempt_is_left_alone(
    place: Place, batch: FakeBatch, capsys, set_clock: Callable[[datetime], None]
) -> None:
    """A record that points at somebody else's job ends nothing."""
    set_clock(OLD)
    stranger = batch.submit_job(jobName="other", jobQueue="spot", jobDefinition="airflow-spot")["jobId"]
    batch.advance(5)
    place.put(a_record(spec=codec.encode(SPEC), attempts=(training(ref=stranger, job_queue="spot"),)))
    code, (row,) = orphans(place, capsys, "--end")
    assert (code, row["ours"], row["lives"]) == (4, False, True)
    assert row["done"] == "left alone: its environment does not name this attempt"
    assert status(batch, stranger) == "RUNNING"


def test_orphans_as_a_table(place: Place, batch: FakeBatch, capsys) -> None:
    """Without --json the jobs stand in a table."""
    job = submit(place, batch, "gone/r/train/-1")
    assert place("orphans", "--run-root", place.uri, "--queue", "spot") == 4
    shown = capsys.readouterr().out
    assert job[:8] in shown
    assert "its run directory holds no record" in shown


def test_a_queue_that_does_not_exist_is_told(place: Place, capsys) -> None:
    """AWS's refusal of a queue is one sentence and exit code 1."""
    assert place("orphans", "--run-root", place.uri, "--queue", "nowhere") == 1
    assert "batch:ListJobs of queue nowhere failed" in capsys.readouterr().err


def test_stop_is_by_a_person_and_ends_the_jobs(place: Place, batch: FakeBatch, capsys) -> None:
    """stop writes who and why into the record, and terminates at once; a second stop does no harm."""
    job, value = a_training_run(place, batch)
    words = ["stop", "final", "manual__1", "train", "--run-root", place.uri, "--why", "wrong data"]
    assert place(*words) == 0
    assert capsys.readouterr().out == f"stopped; told to end: {job}\n"
    loaded = record.load(place.at(value))
    assert loaded is not None
    desired = loaded.record.desired
    assert (desired.state, desired.by_person, desired.why) == ("stopped", True, "wrong data")
    assert status(batch, job) == "FAILED"
    assert place(*words, "--json") == 0
    assert json.loads(capsys.readouterr().out)["stopped"] is True


def test_stop_between_two_tries_forbids_the_next(place: Place, capsys) -> None:
    """A person also stops a failure that the task would retry; asked again there is nothing to do."""
    failed = Result(outcome="USER_ERROR", message="exit code 1", generation=1, retryable=True)
    value = a_record(spec=codec.encode(SPEC), attempts=(reclaimed(),), result=failed)
    store = place.put(value)
    words = ["stop", "final", "manual__1", "train", "--run-root", place.uri]
    assert place(*words) == 0
    assert "the task's own retries will not go on with it" in capsys.readouterr().out
    loaded = record.load(store)
    assert loaded is not None
    assert (loaded.record.desired.state, loaded.record.desired.by_person) == ("stopped", True)
    assert place(*words) == 4


class ReadOnly(Store):
    """A store whose record we may read and not write."""

    def swap(self, key: str, data: bytes, etag: str) -> str:
        raise StoreDenied(f"403 for {key}")


def test_stop_leaves_a_request_where_the_record_cannot_be_written(
    place: Place, batch: FakeBatch, capsys, monkeypatch
) -> None:
    """Without the right to write run.json a stop request is posted, for the loop to apply."""
    _, value = a_training_run(place, batch)
    store = place.at(value)

    def connect(uri: str, access: Any) -> Any:
        reach = Place.connect(place, uri, access)
        return replace(reach, store=ReadOnly(store.client, store.uri, store.prefix))

    monkeypatch.setattr(place, "connect", connect)
    assert place("stop", "final", "manual__1", "train", "--run-root", place.uri) == 0
    assert "a request was left" in capsys.readouterr().out
    (request,) = requests.pending(store, ())
    assert (request.kind, request.generation) == ("stop", 1)


class Waiting:
    """Somebody who waits in Airflow: the real loop."""

    def __init__(self, place: Place, batch: FakeBatch, set_clock: Callable[[datetime], None]) -> None:
        value = a_record()
        self.batch, self.set_clock = batch, set_clock
        self.store = place.at(value)
        opening.open_training_run(
            self.store,
            place.backend,
            run_key=value.run_key,
            who=value.owner,
            spec=SPEC,
            try_number=1,
            max_tries=0,
            began=NOW,
        )
        self.loop = engine.Loop(store=self.store, backend=place.backend, generation=1)

    def look(self, times: int = 4) -> Any:
        for _ in range(times):
            self.batch.advance(5)
            self.set_clock(self.batch.clock.now())
            answer = engine.advance(self.loop)
        return answer

    def jobs(self) -> list[tuple[str, str]]:
        states = self.batch.model.state.jobs.values()
        return [(job.queue, "ended" if job.terminal else "lives") for job in states]


def test_the_loop_does_what_a_person_asks(
    place: Place, batch: FakeBatch, capsys, set_clock: Callable[[datetime], None]
) -> None:
    """A promotion that was posted leads to a job on dependable capacity; a stop ends all jobs and the loop."""
    waiting = Waiting(place, batch, set_clock)
    waiting.look()
    assert waiting.jobs() == [("spot", "lives")]
    names = ["final", "manual__1", "train", "--run-root", place.uri]
    assert place("promote", *names, "--why", "demo tomorrow") == 0
    waiting.look()
    assert ("on-demand", "lives") in waiting.jobs()
    capsys.readouterr()
    assert orphans(place, capsys) == (0, [])
    assert place("show", *names) == 0
    assert "attempt 2 on on_demand" in capsys.readouterr().out
    assert place("stop", *names, "--why", "wrong data") == 0
    answer = waiting.look(6)
    assert {state for _, state in waiting.jobs()} == {"ended"}
    assert isinstance(answer, engine.Finished)
    assert place("watch", *names, "--json") == 4
    assert "STOPPED_BY_US" in capsys.readouterr().out


@pytest.mark.parametrize("result", [None, SUCCEEDED])
def test_a_lost_reply_and_a_loop_that_died(
    place: Place, batch: FakeBatch, capsys, set_clock: Callable[[datetime], None], result: Result | None
) -> None:
    """A job that ListJobs showed too late is found a day after the last look, with and without a result."""
    waiting = Waiting(place, batch, set_clock)
    batch.faults.lose_reply["SubmitJob"] = 1
    batch.faults.list_delay = 3600
    waiting.look(20)
    loaded = record.load(waiting.store)
    assert loaded is not None
    first, second = loaded.record.attempts
    assert (first.state, first.ref, second.ref is None) == (AttemptState.UNRESOLVED, None, False)
    record.save(waiting.store, replace(loaded.record, result=result), loaded.etag)
    batch.advance(24 * 3600)
    batch.faults.list_delay = 0
    code, rows = orphans(place, capsys)
    assert (code, [row["attempt"] for row in rows]) == (4, [1, 2])
    assert {row["ours"] for row in rows} == {True}
    assert orphans(place, capsys, "--end")[0] == 0
    batch.advance(60)
    assert {state for _, state in waiting.jobs()} == {"ended"}
    assert orphans(place, capsys) == (0, [])
