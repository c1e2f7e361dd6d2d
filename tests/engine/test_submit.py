"""One SubmitJob per attempt number, whatever is lost, refused or repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_spot import engine, stopping
from airflow_spot.core.model import Tier
from airflow_spot.rundir import record
from airflow_spot.rundir.record import RecordMoved
from airflow_spot.rundir.values import AttemptState
from airflow_spot.testing import ApiError

if TYPE_CHECKING:
    from conftest import World


class Died(Exception):
    """The caller's process is gone."""


def test_a_lost_reply_is_found_by_name(world: World) -> None:
    """SubmitJob made a job and its reply was lost: the job is looked up by name and adopted; no second one."""
    world.batch.faults.lose_reply["SubmitJob"] = 1
    world.open()
    world.until(lambda rec: world.entry(1).state is AttemptState.SUBMITTED)
    assert [world.entry(1).ref] == list(world.jobs())
    assert 1 == world.batch.calls.count("SubmitJob")


def test_a_submit_that_made_no_job_is_followed_by_the_next_number(world: World) -> None:
    """Nothing found for 60 s: the attempt is unresolved, and the next number is opened (I48)."""
    world.batch.faults.fail["SubmitJob"] = [ApiError("ServerException", "oops", 500)]
    world.open()
    world.until(lambda rec: rec.next_attempt == 3)
    assert [AttemptState.UNRESOLVED, AttemptState.SUBMITTED] == [item.state for item in world.record.attempts]
    assert 1 == len(world.jobs())


def test_a_job_that_shows_up_late_is_ended(world: World) -> None:
    """A job that ListJobs shows only after its attempt was given up is terminated and never trains."""
    world.batch.faults.lose_reply["SubmitJob"] = 1
    world.batch.faults.list_delay = 100.0
    world.open()
    world.until(lambda rec: rec.next_attempt == 3)
    world.until(lambda rec: all(item.terminal for item in rec.attempts[:1]))
    late, true = world.jobs().values()
    assert "FAILED" == late
    assert true != "FAILED"


def test_throttling_sends_the_same_attempt_again(world: World) -> None:
    """429 proves that no job exists: the same number again after a back-off (B48)."""
    world.batch.faults.throttle["SubmitJob"] = 3
    world.open()
    world.until(lambda rec: world.entry(1).ref is not None)
    assert (1, 3) == (len(world.jobs()), world.entry(1).submit_tries)
    assert 2 == world.record.next_attempt


def test_a_refusal_is_misconfigured(world: World) -> None:
    """A 4xx that is no throttling ends the training run with AWS's words, retryable by nobody."""
    world.open(tiers=(Tier.spot("no-such-queue"),))
    done = world.until(lambda rec: rec.result is not None).result
    assert done is not None
    assert ("MISCONFIGURED", False) == (done.outcome, done.retryable)
    assert "no-such-queue" in done.message


def test_a_refusal_beside_a_queued_attempt_ends_only_the_new_one(world: World) -> None:
    """The next tier's queue does not exist: the queued spot attempt goes on waiting."""
    world.batch.drought("spot")
    world.open(tiers=(Tier.spot("spot", max_wait=30), Tier.on_demand("no-such-queue")))
    world.until(lambda rec: rec.next_attempt == 3)
    world.advance(seconds=60)
    assert [AttemptState.SUBMITTED, AttemptState.ENDED] == [item.state for item in world.record.attempts]
    assert (None, 3) == (world.record.result, world.record.next_attempt)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_caller_that_dies_around_submit_is_followed(world: World, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """kill -9 before or after SubmitJob: the next caller ends up with exactly one job that may train (I20)."""
    true = world.backend.submit

    def dying(request: dict[str, object]) -> str:
        if when == "after":
            true(request)
        raise Died

    world.open()
    monkeypatch.setattr(world.backend, "submit", dying)
    with pytest.raises(Died):
        world.advance()
    monkeypatch.setattr(world.backend, "submit", true)
    world.until(lambda rec: any(item.state is AttemptState.SUBMITTED for item in rec.attempts))
    assert 1 == len(world.jobs())


def test_a_stop_between_submit_and_its_write_ends_the_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller re-reads the record after SubmitJob: with desired stopped it ends its own job."""
    true = world.backend.submit

    def stopped_meanwhile(request: dict[str, object]) -> str:
        ref = true(request)
        stopping.stop(world.store, world.new_backend(), who="ann", why="enough", generation=1, try_number=1)
        return ref

    world.open()
    monkeypatch.setattr(world.backend, "submit", stopped_meanwhile)
    world.advance()
    world.batch.advance(60)
    assert ["FAILED"] == list(world.jobs().values())


def test_a_second_job_that_claimed_first_wins(world: World) -> None:
    """Two jobs of one attempt: the claimed one is the attempt's, the loser is terminated."""
    world.open()
    world.advance()
    first = world.entry(1).ref
    environment = world.batch.describe_jobs(jobs=[first])["jobs"][0]["container"]["environment"]
    second = world.batch.submit_job(
        jobName=world.entry(1).job_name, jobQueue="spot", jobDefinition="train",
        containerOverrides={"environment": environment},
    )["jobId"]  # fmt: skip
    world.batch.advance(20)
    agent = world.agent(1)
    agent.job = second
    agent.claim()
    world.until(lambda rec: world.entry(1).ref == second)
    world.until(lambda rec: world.status(str(first)) == "FAILED")
    assert world.status(second) == "RUNNING"


def test_a_claim_by_a_job_that_is_not_ours_is_ignored(world: World) -> None:
    """A claim that names a job whose environment is not this training run's changes nothing (§3, Trust)."""
    world.open()
    world.advance()
    foreign = world.batch.submit_job(jobName="other", jobQueue="spot", jobDefinition="train")["jobId"]
    world.batch.advance(20)
    agent = world.agent(1)
    agent.job = foreign
    agent.claim()
    before = world.entry(1).ref
    world.advance(seconds=20)
    assert (before, "RUNNING") == (world.entry(1).ref, world.status(foreign))


def test_two_callers_at_once_are_harmless(world: World) -> None:
    """An old triggerer that wakes up beside its replacement: one attempt, one job, one result (I02)."""
    world.open()
    one, two = world.loop(), world.loop()
    for _ in range(6):
        world.batch.advance(5)
        world.advance(one)
        world.advance(two)
    assert (1, 2) == (len(world.jobs()), world.record.next_attempt)


def test_a_lost_race_for_the_record_submits_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An intent whose write is refused has no effect: SubmitJob follows only a write that went through."""
    world.open()
    loop, true = world.loop(), record.save
    calls = []

    def refused(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            raise RecordMoved("moved")
        return true(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.record, "save", refused)
    world.advance(loop)
    assert (1, 2) == (len(world.jobs()), world.record.next_attempt)
