"""The backend over the fake Batch, through botocore: from a submit to a verdict with EC2's evidence."""

from __future__ import annotations

import pytest

from airflow_spot.batch.aws import AwsClock, Clients
from airflow_spot.batch.client import BatchBackend
from airflow_spot.batch.requests import job_name, stop_reason, submit_request
from airflow_spot.batch.watcher import Watcher
from airflow_spot.core.model import Tier
from airflow_spot.core.outcomes import Outcome
from airflow_spot.core.seen import JobSeen, JobStatus
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.errors import SubmitRefused
from airflow_spot.testing import Behaviour, FakeBatch

RUN = {"run_uri": "s3://bucket/root/dag/run/train/-1", "run_key": "dag/run/train/-1"}
SPOT, ON_DEMAND = Tier.spot("spot"), Tier.on_demand("on-demand")
SPEC = TrainingSpec(job_definition="airflow-spot", tiers=(SPOT, ON_DEMAND), command=("true",))


class World:
    """A fake Batch and a backend on it."""

    def __init__(self) -> None:
        self.batch = FakeBatch()
        self.batch.script(Behaviour(after=None))
        client = self.batch.client
        made = Clients(batch=client("batch"), batch_once=client("batch"), ec2=client("ec2"), ecs=client("ecs"))
        clock = self.batch.clock
        self.backend = BatchBackend(made, clock=AwsClock(monotonic=clock.monotonic, wall=clock.now))
        self.backend.watcher = Watcher(self.backend._describe_page, monotonic=clock.monotonic)

    def start(self, tier: Tier) -> str:
        """Submit attempt 1 and let it run."""
        definition = self.backend.definition(SPEC.job_definition)
        ref = self.backend.submit(submit_request(SPEC, tier, attempt=1, definition=definition, **RUN))
        self.batch.advance(10)
        return ref

    def ended(self, ref: str) -> JobSeen:
        """Let time pass until the job is terminal."""
        for _ in range(60):
            job = self.backend.describe([ref])[ref]
            if job.terminal:
                return job
            self.batch.advance(5)
        raise AssertionError("never ended")

    def outcome(self, job: JobSeen, **options) -> str:
        return self.backend.verdict(
            job, **{"market": "spot", "end": None, "agent": True, "trusted": False} | options
        ).outcome


@pytest.fixture
def world() -> World:
    return World()


def test_reclaim_is_told_from_a_failed_host(world):
    """The same text of Batch means a reclaim on one machine and a failure on another: EC2's evidence decides."""
    reclaimed, failed = world.start(SPOT), world.start(ON_DEMAND)
    world.batch.reclaim(reclaimed)
    world.batch.fail_host(failed)
    jobs = world.ended(reclaimed), world.ended(failed)
    assert [job.status_reason.split()[:2] for job in jobs] == [["Host", "EC2"]] * 2
    found = world.backend.verdict(jobs[0], market="spot", end=None, agent=True, trusted=False)
    assert (found.outcome, found.confidence) == (Outcome.RECLAIMED, "high")
    assert found.instance in found.sentence
    assert world.outcome(jobs[1], market="on_demand") == Outcome.HOST_LOST


def test_own_and_foreign_stops(world):
    """Our own stop is known by its token, anybody else's is not taken for it."""
    ours, foreign = world.start(SPOT), world.start(SPOT)
    world.backend.terminate(ours, stop_reason(RUN["run_uri"], "moved"))
    world.batch.terminate_job(jobId=foreign, reason="cost control")
    assert world.outcome(world.ended(ours)) == Outcome.STOPPED_BY_US
    assert world.outcome(world.ended(foreign)) == Outcome.STOPPED_BY_OTHERS


def test_found_by_name(world):
    """A job whose submit got no answer is found by its name, with its training run in its environment."""
    ref = world.start(SPOT)
    (job,) = world.backend.find(job_name(attempt=1, **RUN), "spot")
    assert (job.ref, job.status) == (ref, JobStatus.RUNNING)
    assert job.environment["AIRFLOW_SPOT_RUN"] == RUN["run_uri"]
    assert world.backend.find(job_name(attempt=2, **RUN), "spot") == []


def test_refused_submit(world):
    """A queue that does not exist is refused: no job exists."""
    with pytest.raises(SubmitRefused):
        world.start(Tier.spot("nowhere"))


def test_plain_image(world):
    """Exit 0 of a plain image is success only where the user trusts it."""
    world.batch.script(Behaviour(after=1))
    job = world.ended(world.start(ON_DEMAND))
    assert world.outcome(job, agent=False, trusted=True) == Outcome.SUCCEEDED
    assert world.outcome(job, agent=False) == Outcome.INCOMPLETE


def test_preflight_of_the_usual_set_up(world):
    """The local cloud's own queues pass without a word on their markets."""
    assert [text for text in world.backend.preflight(SPEC, RUN["run_uri"]) if "Tier" in text] == []
