"""The loop from the first submit to the result."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_spot import engine
from airflow_spot.core.model import Tier
from airflow_spot.errors import StoreDenied, StoreUnavailable
from airflow_spot.rundir import requests
from airflow_spot.rundir.values import AttemptState
from airflow_spot.testing import ApiError

if TYPE_CHECKING:
    from conftest import World


def outcomes(world: World) -> list[str]:
    return [item.verdict.outcome for item in world.record.attempts if item.verdict]


def finished(world: World) -> engine.Finished:
    world.until(lambda rec: rec.result is not None)
    done = world.advance(seconds=120)
    assert isinstance(done, engine.Finished)
    return done


def test_trains_to_the_end(world: World) -> None:
    """One attempt: submitted, claimed, live, completed; its job ends and the summary is JSON for XCom."""
    world.open()
    agent = world.go_live(1)
    agent.commit(100)
    agent.end(completed=True, metrics={"accuracy": 0.9})
    done = finished(world)
    assert (done.result.outcome, done.result.retryable) == ("SUCCEEDED", False)
    assert {"accuracy": 0.9} == done.result.summary["metrics"]
    assert {"SUCCEEDED"} == set(world.jobs().values())
    assert agent.committed == done.result.summary["checkpoint"]


def test_the_request_is_ours(world: World) -> None:
    """The job carries the run directory and attempt, the agent's prefix, one Batch attempt and a time-out."""
    world.open()
    world.advance()
    job = world.batch.describe_jobs(jobs=[world.entry(1).ref])["jobs"][0]
    environment = {item["name"]: item["value"] for item in job["container"]["environment"]}
    assert (world.store.uri, "1") == (environment["AIRFLOW_SPOT_RUN"], environment["AIRFLOW_SPOT_ATTEMPT"])
    assert ["spot-agent", "run", "--", "python", "train.py"] == job["container"]["command"]
    assert 1 == job["retryStrategy"]["attempts"]
    assert job["timeout"]["attemptDurationSeconds"] > 0


def test_resumes_from_the_latest_checkpoint_after_a_reclaim(world: World) -> None:
    """A reclaim costs the steps since the last commit, is charged once, and the next attempt continues from there."""
    world.open()
    first = world.go_live(1)
    saved = first.commit(40)
    first.train(55)
    world.batch.reclaim(first.job)
    second = world.go_live(2)
    assert saved == world.entry(2).pin
    verdict = world.entry(1).verdict
    assert verdict is not None
    assert ("RECLAIMED", "high", 15) == (verdict.outcome, verdict.confidence, verdict.lost_steps)
    assert 1 == world.record.counters.reclaims
    second.commit(100)
    second.end(completed=True)
    assert 1 == finished(world).result.summary["reclaims"]


def test_a_host_failure_is_not_a_reclaim(world: World) -> None:
    """Host loss that EC2 does not call a reclaim counts against its own budget (aws-facts 12, row 3)."""
    world.open()
    agent = world.go_live(1)
    world.batch.fail_host(agent.job)
    world.until(lambda rec: rec.next_attempt == 3)
    assert ["HOST_LOST"] == outcomes(world)
    assert (0, 1) == (world.record.counters.reclaims, world.record.counters.infrastructure)


def test_twelve_reclaims_are_no_failure(world: World) -> None:
    """Reclaims never use up the task's own retries, and Batch's limit of ten attempts is not ours (I62, I63)."""
    world.open()
    for number in range(1, 13):
        agent = world.go_live(number)
        agent.commit(number)
        world.batch.reclaim(agent.job)
    last = world.go_live(13)
    last.commit(100)
    last.end(completed=True)
    assert ("SUCCEEDED", 12) == (finished(world).result.outcome, world.record.counters.total_reclaims)


def test_max_reclaims_ends_the_training_run(world: World) -> None:
    """One more reclaim than max_reclaims is final, not retryable, and names the setting (I35)."""
    world.open(max_reclaims=1)
    for number in (1, 2):
        agent = world.go_live(number)
        world.batch.reclaim(agent.job)
    result = finished(world).result
    assert ("RECLAIMED", False) == (result.outcome, result.retryable)
    assert "max_reclaims=1" in result.message


def test_a_user_error_is_retryable_and_the_next_try_resumes(world: World) -> None:
    """The trainer's failure goes to Airflow's retries; the next try goes on from the last checkpoint (I63)."""
    world.open()
    agent = world.go_live(1)
    saved = agent.commit(10)
    agent.end(exit_code=1, new_steps=10)
    result = finished(world).result
    assert ("USER_ERROR", True) == (result.outcome, result.retryable)
    assert "adopted" == world.open(try_number=2).how
    loop = world.loop(try_number=2)
    world.go_live(2, loop)
    assert saved == world.entry(2).pin


def test_exit_zero_without_an_end_is_incomplete(world: World) -> None:
    """A container that exits 0 without the agent's completed end is no success (aws-facts 0.2)."""
    world.open(max_infrastructure_failures=0)
    agent = world.go_live(1)
    world.batch.finish(agent.job, 0)
    assert "INCOMPLETE" == finished(world).result.outcome


def test_a_foreign_termination_is_final(world: World) -> None:
    """A job that someone terminated in the console: no success, no retry, no promotion (I13)."""
    world.open()
    agent = world.go_live(1)
    world.batch.terminate_job(jobId=agent.job, reason="Terminated by ops")
    result = finished(world).result
    assert ("STOPPED_BY_OTHERS", False) == (result.outcome, result.retryable)
    assert 1 == len(world.jobs())


def test_a_drought_promotes_before_the_deadline(world: World) -> None:
    """With nothing live and time left below the ratio, the dependable tier is asked beside the queued spot attempt,
    goes live, and the queued one is ended.
    """
    world.batch.drought("spot")
    world.open(deadline="PT2H", expected_seconds=3600, changeover_seconds=60)
    world.until(lambda rec: rec.next_attempt == 3, polls=1000)
    waited = world.batch.clock.now() - world.record.began_at
    assert timedelta(minutes=47.5) < waited < timedelta(minutes=48.5)
    agent = world.go_live(2)
    assert (AttemptState.LIVE, "on_demand") == (world.entry(2).state, world.entry(2).tier)
    world.until(lambda rec: world.entry(1).terminal)
    agent.commit(100)
    agent.end(completed=True)
    result = finished(world).result
    assert ("SUCCEEDED", 1) == (result.outcome, result.summary["promotions"])
    assert result.summary["slack_seconds"] > 0


def test_a_promotion_brings_a_standby_first(world: World) -> None:
    """A person's promotion: the next attempt stands by on the dependable tier before the live one saves and leaves."""
    world.open()
    first = world.go_live(1)
    first.commit(10)
    requests.post(world.store, requests.new_request("promote", who="ann", why="demo", generation=1))
    world.until(lambda rec: rec.next_attempt == 3 and world.runs(2))
    assert AttemptState.LIVE is world.entry(1).state
    world.agent(2).claim()
    world.until(lambda rec: world.entry(1).state is AttemptState.CLOSING)
    saved = first.commit(12)
    first.end(reason="closing")
    world.until(lambda rec: world.entry(2).state is AttemptState.LIVE)
    assert (saved, "on_demand") == (world.entry(2).pin, world.entry(2).tier)
    assert ["SUPERSEDED"] == outcomes(world)
    assert world.record.promotion is None
    assert 1 == len(world.record.applied)


def test_a_promotion_to_empty_capacity_costs_nothing(world: World) -> None:
    """On-demand has no machine either: spot trains on, and completes."""
    world.batch.drought("on-demand")
    world.open()
    first = world.go_live(1)
    requests.post(world.store, requests.new_request("promote", who="ann", generation=1))
    world.until(lambda rec: rec.next_attempt == 3)
    world.advance(seconds=600)
    assert AttemptState.LIVE is world.entry(1).state
    first.commit(100)
    first.end(completed=True)
    assert ("SUCCEEDED", {"SUCCEEDED", "FAILED"}) == (finished(world).result.outcome, set(world.jobs().values()))


def test_a_promotion_that_batch_refuses_leaves_spot_alone(world: World) -> None:
    """The dependable queue does not exist: one SubmitJob, one sentence, and the spot training goes on to its end."""
    world.open(tiers=(Tier.spot("spot"), Tier.on_demand("no-such-queue")))
    first = world.go_live(1)
    requests.post(world.store, requests.new_request("promote", who="ann", generation=1))
    world.advance(seconds=30)
    world.advance(seconds=30)
    assert (AttemptState.LIVE, 2) == (world.entry(1).state, world.batch.calls.count("SubmitJob"))
    first.commit(50)
    world.batch.reclaim(first.job)
    third = world.go_live(3)
    third.commit(100)
    third.end(completed=True)
    assert "SUCCEEDED" == finished(world).result.outcome


def test_max_wait_runs_beside_and_the_first_to_start_wins(world: World) -> None:
    """A queued spot attempt stays open beside the next tier's until one is claimed; the loser never trains."""
    world.batch.drought("on-demand")
    world.batch.drought("spot")
    world.open(tiers=(Tier.spot("spot", max_wait=60), Tier.on_demand("on-demand")))
    world.until(lambda rec: rec.next_attempt == 3)
    world.batch.drought("spot", on=False)
    world.go_live(1)
    world.until(lambda rec: world.entry(2).terminal)
    assert (AttemptState.LIVE, AttemptState.ENDED) == (world.entry(1).state, world.entry(2).state)
    assert world.entry(2).live_at is None


def test_no_first_heartbeat_is_misconfigured(world: World) -> None:
    """A container that runs for 15 minutes without a heartbeat ends the training run, naming what to look at."""
    world.open()
    loop = world.loop()
    world.until(lambda rec: rec.next_attempt == 2 and world.runs(1), loop)
    world.wait(timedelta(minutes=16))
    world.until(lambda rec: rec.result is not None, loop)
    result = finished(world).result
    assert "MISCONFIGURED" == result.outcome
    assert "spot-agent run" in result.message


def test_silence_is_a_stall_and_restarts(world: World) -> None:
    """A heartbeat that grows old while the store can be read: the attempt is closed, fenced, and followed (B25)."""
    world.open()
    loop = world.loop()
    agent = world.go_live(1, loop)
    saved = agent.commit(10)
    world.wait(timedelta(minutes=17))
    world.go_live(2, loop)
    assert ["STALLED"] == outcomes(world)
    assert saved == world.entry(2).pin


def test_a_suspect_checkpoint_is_stepped_over_once(world: World) -> None:
    """A user error before the first new step: the checkpoint before is tried once, then it is the program."""
    world.open()
    first = world.go_live(1)
    before = first.commit(10)
    newest = first.commit(20)
    world.batch.reclaim(first.job)
    second = world.go_live(2)
    assert newest == world.entry(2).pin
    second.end(exit_code=1, new_steps=0)
    third = world.go_live(3)
    assert before == world.entry(3).pin
    third.end(exit_code=1, new_steps=0)
    assert ("USER_ERROR", True) == (finished(world).result.outcome, world.record.result.retryable)


def test_ten_thousand_polls_use_up_nothing(world: World) -> None:
    """Waiting in RUNNABLE costs no budget, however long (I05)."""
    world.batch.drought("spot")
    world.open()
    loop = world.loop()
    for _ in range(300):
        world.batch.clock.advance(600)
        world.advance(loop)
    assert (AttemptState.SUBMITTED, 0, 0) == (
        world.entry(1).state, world.record.counters.infrastructure, world.record.counters.reclaims,
    )  # fmt: skip


def test_a_lack_of_memory_is_told_from_an_error_of_the_program(world: World) -> None:
    """The agent's end file says exit 137; Batch's own words, which come later, say that memory ran out."""
    world.open()
    agent = world.go_live(1)
    world.wait(timedelta(minutes=12))
    agent.train(5)
    agent.end(exit_code=137, finish=False)
    world.batch.finish(agent.job, 137, "OutOfMemoryError: Container killed due to memory usage")
    assert ("OUT_OF_MEMORY", True) == (finished(world).result.outcome, world.record.result.retryable)


def test_a_sigterm_by_somebody_else_waits_for_batchs_words(world: World) -> None:
    """A job that was terminated in the console while its agent saved: stopped by others, not submitted again (I13)."""
    from airflow_spot.rundir.values import Notice

    world.open()
    agent = world.go_live(1)
    agent.commit(10)
    agent.end(reason="notice", exit_code=143, notice=Notice(source="sigterm"), finish=False)
    world.advance(seconds=20)
    assert AttemptState.LIVE is world.entry(1).state
    world.batch.terminate_job(jobId=agent.job, reason="Terminated by ops")
    assert "STOPPED_BY_OTHERS" == finished(world).result.outcome


def test_an_outage_of_the_store_is_no_stall(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store gave no answer for an hour: heartbeats are old, and the attempt is given time to be heard again."""
    world.open()
    loop = world.loop()
    agent = world.go_live(1, loop)
    true = world.store.list

    def silent(prefix: str = "") -> object:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(world.store, "list", silent)
    with pytest.raises(StoreUnavailable):
        world.advance(loop, seconds=60)
    world.wait(timedelta(hours=1))
    monkeypatch.setattr(world.store, "list", true)
    world.advance(loop, seconds=10)
    agent.beat()
    world.advance(loop, seconds=60)
    assert AttemptState.LIVE is world.entry(1).state


def test_a_refused_delete_does_not_end_a_training(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Airflow role may not delete: said once, and the training goes on to its end."""

    def denied(*_: object, **__: object) -> object:
        raise StoreDenied("s3:DeleteObject is denied")

    monkeypatch.setattr(engine.checkpoints, "delete", denied)
    world.open()
    loop = world.loop()
    agent = world.go_live(1, loop)
    agent.commit(100)
    agent.end(completed=True)
    world.until(lambda rec: rec.result is not None, loop)
    assert 1 == sum("could not be deleted" in line for line in world.said)


def test_a_checkpoint_with_none_before_it_ends_after_two_failures(world: World) -> None:
    """The program fails at its first step from the only checkpoint: tried twice, then it is the user's error."""
    world.open()
    first = world.go_live(1)
    first.commit(10)
    world.batch.reclaim(first.job)
    for number in (2, 3):
        world.go_live(number).end(exit_code=1, new_steps=0)
    assert ("USER_ERROR", 4) == (finished(world).result.outcome, world.record.next_attempt)


def test_a_trainer_without_steps_that_fails_late_is_no_suspect(world: World) -> None:
    """Hours of training and no step reported: the failure goes to the task's retries, and no checkpoint is suspect."""
    world.open()
    first = world.go_live(1)
    first.commit(10)
    world.batch.reclaim(first.job)
    second = world.go_live(2)
    second.beat(step=None, training_seconds=7200.0)
    second.end(exit_code=1, new_steps=None)
    assert ("USER_ERROR", ()) == (finished(world).result.outcome, world.record.suspect)


def test_a_plain_image_trusts_its_exit_code_when_told_to(world: World) -> None:
    """agent=False, trust_exit_code=True: exit 0 is success, a reclaim is followed by a fresh start."""
    world.open(agent=False, trust_exit_code=True)
    world.until(lambda rec: world.entry(1).live_at is not None)
    world.batch.reclaim(str(world.entry(1).ref))
    world.until(lambda rec: rec.next_attempt == 3 and world.entry(2).live_at is not None)
    world.batch.finish(str(world.entry(2).ref), 0)
    assert ("SUCCEEDED", 1) == (finished(world).result.outcome, world.record.counters.total_reclaims)


def test_a_plain_image_never_has_two_jobs(world: World) -> None:
    """max_wait with a plain image: the queued job is ended, and only when it is terminal the next tier is asked."""
    world.batch.drought("spot")
    world.open(agent=False, trust_exit_code=True, tiers=(Tier.spot("spot", max_wait=30), Tier.on_demand("on-demand")))
    world.until(lambda rec: rec.next_attempt == 3 and world.entry(2).ref is not None)
    assert "FAILED" == world.status(str(world.entry(1).ref))
    assert "NO_CAPACITY" == world.entry(1).verdict.outcome


def test_a_plain_images_lost_submit_is_given_up_in_time(world: World) -> None:
    """No job shows up for 15 minutes after a submit without an answer: UNKNOWN, charged, and followed by the next."""
    world.batch.faults.fail["SubmitJob"] = [ApiError("ServerException", "oops", 500)]
    world.open(agent=False, trust_exit_code=True)
    world.advance()
    world.wait(timedelta(minutes=14))
    world.advance()
    assert 2 == world.record.next_attempt
    world.wait(timedelta(minutes=2))
    world.until(lambda rec: rec.next_attempt == 3)
    assert (["UNKNOWN"], 1) == (outcomes(world), world.record.counters.infrastructure)


def test_a_plain_image_goes_on_after_a_clear_while_throttled(world: World) -> None:
    """429 proves that no job exists, so a Clear of a throttled attempt leaves nothing to wait for."""
    world.batch.faults.throttle["SubmitJob"] = 1
    world.open(agent=False, trust_exit_code=True)
    world.advance()
    world.open(agent=False, trust_exit_code=True, try_number=2, max_tries=1)
    world.until(lambda rec: rec.next_attempt == 3, world.loop(generation=2, try_number=2))
    assert [AttemptState.ENDED] == [item.state for item in world.record.attempts[:1]]


def test_the_loop_moves_a_stalled_spot_attempt_before_the_deadline(world: World) -> None:
    """No sensor, no person: an attempt that commits nothing is moved one changeover before the work no longer fits."""
    world.open(deadline="PT2H", expected_seconds=3600, changeover_seconds=300, heartbeat_seconds=60.0)
    loop = world.loop()
    agent = world.go_live(1, loop)
    for minute in range(1, 60):
        world.batch.advance(60, step=30)
        agent.train(1, training_seconds=60.0 * minute, seconds_since_step=60.0)
        world.advance(loop)
        if world.record.next_attempt == 3:
            break
    assert 54 <= minute <= 56
    assert ("on_demand", AttemptState.LIVE) == (world.entry(2).tier, world.entry(1).state)
