"""Opening, clearing, taking over and stopping a training run."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_spot import engine, stopping
from airflow_spot.errors import OwnedByAnother, StoppedByPerson
from airflow_spot.rundir import requests
from airflow_spot.rundir.values import AttemptState

if TYPE_CHECKING:
    from conftest import World

from airflow_spot.rundir.values import Owner

ANOTHER = Owner(deployment="test", dag_id="dag", run_id="later", task_id="train")


def complete(world: World, number: int = 1, loop: engine.Loop | None = None) -> str:
    agent = world.go_live(number, loop)
    saved = agent.commit(100)
    agent.end(completed=True)
    world.until(lambda rec: rec.result is not None, loop)
    return saved


def test_execute_twice_adopts(world: World) -> None:
    """The worker died between submit and defer: the retry re-attaches, and there is one job (I20)."""
    world.open()
    world.advance()
    assert "adopted" == world.open(try_number=2).how
    world.advance(world.loop(try_number=2))
    assert 1 == len(world.jobs())


def test_an_older_try_does_nothing(world: World) -> None:
    """The trigger of an earlier try finds the record's try higher: superseded."""
    world.open()
    world.open(try_number=2)
    assert isinstance(world.advance(), engine.Superseded)
    assert {} == world.jobs()


def test_a_success_is_repeated_within_its_generation(world: World) -> None:
    """A retry after success returns the result and trains nothing."""
    world.open()
    complete(world)
    opened = world.open(try_number=2)
    assert ("finished", "SUCCEEDED") == (opened.how, opened.result and opened.result.outcome)


def test_clear_resumes_with_a_new_generation(world: World) -> None:
    """Clear while training: every open attempt closes, and the next one continues from its last save (I58)."""
    world.open()
    first = world.go_live(1)
    first.commit(30)
    assert "cleared" == world.open(try_number=2, max_tries=1).how
    assert (2, AttemptState.CLOSING) == (world.record.generation, world.entry(1).state)
    saved = first.commit(33)
    first.end(reason="closing")
    world.go_live(2, world.loop(generation=2, try_number=2))
    assert saved == world.entry(2).pin


def test_clear_after_success_starts_afresh(world: World) -> None:
    """A cleared success is a new decision, never the stale result (I08)."""
    world.open()
    complete(world)
    world.open(try_number=2, max_tries=1)
    loop = world.loop(generation=2, try_number=2)
    world.go_live(2, loop)
    assert (None, None) == (world.entry(2).pin, world.record.result)


def test_clear_fresh_leaves_the_line_behind(world: World) -> None:
    """on_clear="fresh": the next attempt starts from the beginning, and an old completed end counts for nothing."""
    world.open()
    first = world.go_live(1)
    first.commit(30)
    world.open(try_number=2, max_tries=1, on_clear="fresh")
    first.end(completed=True)
    loop = world.loop(generation=2, try_number=2)
    world.go_live(2, loop)
    assert (None, None) == (world.entry(2).pin, world.record.result)


def test_a_completed_end_that_lands_after_a_clear_counts_for_resume(world: World) -> None:
    """Clear in the very last second: the training had completed, so there is nothing to do again."""
    world.open()
    first = world.go_live(1)
    first.commit(100)
    world.open(try_number=2, max_tries=1)
    first.end(completed=True)
    loop = world.loop(generation=2, try_number=2)
    done = world.until(lambda rec: rec.result is not None, loop)
    assert "SUCCEEDED" == done.result.outcome


def test_a_deadline_counts_afresh_after_a_clear(world: World) -> None:
    """A duration counts from the DAG run's start, and from the Clear after one."""
    began = world.batch.clock.now()
    world.open(deadline="PT1H", expected_seconds=60)
    assert began + timedelta(hours=1) == world.record.deadline
    world.batch.advance(600, step=60)
    world.open(deadline="PT1H", expected_seconds=60, try_number=2, max_tries=1)
    assert began + timedelta(hours=1, minutes=10) == world.record.deadline


def test_a_live_owner_keeps_its_training_run(world: World) -> None:
    """A second task with the same run_key is refused by the name of the first, while that one waits."""
    world.open()
    world.advance()
    with pytest.raises(OwnedByAnother, match=r"task 'train' .* of 'dag', run 'run'"):
        world.open(who=ANOTHER)


def test_another_owner_takes_over_a_stale_one(world: World) -> None:
    """Thirty minutes without a sign of the owner: the next one takes over by the Clear rule, from the last save."""
    world.open()
    first = world.go_live(1)
    saved = first.commit(10)
    world.batch.reclaim(first.job)
    world.wait(timedelta(minutes=31))
    assert "taken over" == world.open(who=ANOTHER).how
    loop = world.loop(generation=2)
    world.go_live(2, loop)
    assert saved == world.record.attempts[-1].pin


def test_another_owner_goes_on_after_a_success(world: World) -> None:
    """run_key= across DAG runs: after a success the next DAG run trains on from the final checkpoint."""
    world.open()
    saved = complete(world)
    opened = world.open(who=ANOTHER)
    assert ("taken over", None) == (opened.how, opened.result)
    world.go_live(2, world.loop(generation=2))
    assert saved == world.entry(2).pin


def test_stop_ends_the_job_and_writes_a_result(world: World) -> None:
    """Marked failed: desired stopped, the job terminated with our token, and the loop writes the result (B61)."""
    world.open()
    agent = world.go_live(1)
    report = stopping.stop(world.store, world.backend, who="listener", why="marked failed", generation=1, try_number=1)
    assert (True, (agent.job,)) == (report.stopped, report.terminated)
    done = world.until(lambda rec: rec.result is not None)
    assert ("STOPPED_BY_US", False) == (done.result.outcome, done.result.retryable)
    reason = world.batch.describe_jobs(jobs=[agent.job])["jobs"][0]["statusReason"]
    assert reason.startswith("airflow-spot ")


def test_a_late_stop_does_not_touch_the_next_generation(world: World) -> None:
    """The old trigger's on_kill comes after the Clear: the stop carries its generation and does nothing."""
    world.open()
    world.go_live(1)
    world.open(try_number=2, max_tries=1)
    report = stopping.stop(world.store, world.backend, who="on_kill", why="late", generation=1, try_number=1)
    assert (False, "running") == (report.stopped, world.record.desired.state)


def test_a_retry_reopens_our_stop_but_not_a_persons(world: World) -> None:
    """execute undoes a stop that came from Airflow; a person's stop holds until the task is cleared."""
    world.open()
    world.advance()
    stopping.stop(world.store, world.backend, who="deferral time-out", why="too long")
    assert "running" == world.open(try_number=2).record.desired.state
    stopping.stop(world.store, world.backend, who="ann", why="no budget", by_person=True)
    with pytest.raises(StoppedByPerson, match="ann: no budget"):
        world.open(try_number=3)
    assert "cleared" == world.open(try_number=3, max_tries=3).how


def test_a_stop_finds_a_job_that_nobody_noted(world: World) -> None:
    """Stopped between SubmitJob and its write: the job is found by name and ended."""
    world.batch.faults.lose_reply["SubmitJob"] = 1
    world.open()
    world.advance()
    report = stopping.stop(world.store, world.backend, who="ann", why="enough")
    assert 1 == len(report.terminated)
    world.batch.advance(60)
    assert ["FAILED"] == list(world.jobs().values())


def test_a_stop_request_is_applied_once(world: World) -> None:
    """A stop left as a request file is applied by the loop, in the write that notes its id."""
    world.open()
    world.advance()
    posted = requests.post(world.store, requests.new_request("stop", who="ann", why="enough"))
    done = world.until(lambda rec: rec.result is not None)
    assert ((posted,), "STOPPED_BY_US") == (done.applied, done.result.outcome)


def test_a_request_of_another_generation_is_ignored(world: World) -> None:
    """A promotion made for generation 1 does nothing in generation 2, and is not looked at again."""
    world.open()
    requests.post(world.store, requests.new_request("promote", who="ann", generation=1))
    world.open(try_number=2, max_tries=1)
    world.advance(world.loop(generation=2, try_number=2))
    assert (None, 1) == (world.record.promotion, len(world.record.applied))


def test_a_posted_deadline_wins_when_it_is_earlier(world: World) -> None:
    """The sensor's deadline, less the tasks that follow, replaces a later one and never an earlier one."""
    now = world.batch.clock.now()
    world.open(deadline="PT3H", expected_seconds=60, downstream_seconds=600.0)
    post = requests.new_request("deadline", who="sensor", deadline=now + timedelta(hours=2), downstream_seconds=1800.0)
    requests.post(world.store, post)
    world.advance()
    assert now + timedelta(hours=2, seconds=600 - 1800) == world.record.deadline
    requests.post(world.store, replace(post, id="later", deadline=now + timedelta(hours=9)))
    world.advance()
    assert now + timedelta(hours=2, seconds=600 - 1800) == world.record.deadline


def test_old_attempts_leave_the_record(world: World) -> None:
    """The record keeps twenty attempts; older ones become outcome files and counters."""
    from airflow_spot.rundir import attempts

    world.open(max_infrastructure_failures=100)
    for number in range(1, 25):
        agent = world.go_live(number)
        agent.commit(number)
        world.batch.reclaim(agent.job)
    world.until(lambda rec: rec.next_attempt == 26)
    assert len(world.record.attempts) <= 21
    assert attempts.outcome(world.store, 1) is not None
    assert 24 == world.record.counters.total_reclaims


def test_a_persons_stop_stands_over_an_automatic_one(world: World) -> None:
    """Stopped by Airflow, then by a person: the next try does not undo it."""
    world.open()
    world.advance()
    stopping.stop(world.store, world.backend, who="trigger", why="time-out")
    report = stopping.stop(world.store, world.backend, who="ann", why="no budget", by_person=True)
    assert (True, True) == (report.stopped, world.record.desired.by_person)
    with pytest.raises(StoppedByPerson):
        world.open(try_number=2)


def test_a_persons_stop_between_two_tries_is_heeded(world: World) -> None:
    """The trainer failed and Airflow will retry; a stop in between holds."""
    world.open()
    agent = world.go_live(1)
    agent.end(exit_code=1, new_steps=1)
    world.until(lambda rec: rec.result is not None)
    stopping.stop(world.store, world.backend, who="ann", why="enough", by_person=True)
    with pytest.raises(StoppedByPerson):
        world.open(try_number=2)


def test_a_stop_request_of_an_older_try_is_ignored(world: World) -> None:
    """A stop that was left for try 1 does not stop try 2, and one that no person made is no person's."""
    world.open()
    requests.post(world.store, requests.new_request("stop", who="trigger", try_number=1))
    world.open(try_number=2)
    world.advance(world.loop(try_number=2))
    assert "running" == world.record.desired.state
    requests.post(world.store, requests.new_request("stop", who="trigger", try_number=2))
    world.advance(world.loop(try_number=2))
    assert ("stopped", False) == (world.record.desired.state, world.record.desired.by_person)
