"""The fakes that users import."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ParamValidationError

import airflow_spot.testing as testing
from airflow_spot.testing import Behaviour, FakeBatch, FakeClock


def test_everything_public_is_there() -> None:
    """``__all__`` names what exists."""
    assert [name for name in testing.__all__ if not hasattr(testing, name)] == []


class TestClock:
    def test_it_stands_still(self) -> None:
        """Time passes by ``advance`` and ``sleep`` only."""
        clock = FakeClock(datetime(2026, 5, 1, tzinfo=UTC))
        assert clock.now() == clock.now() == datetime(2026, 5, 1, tzinfo=UTC)
        clock.sleep(1.5)
        clock.advance(timedelta(minutes=1))
        assert (clock.monotonic(), clock.now().second) == (61.5, 1)

    def test_it_does_not_go_back(self) -> None:
        """A negative span is refused."""
        with pytest.raises(ValueError, match="goes forwards"):
            FakeClock().advance(-1)


class TestBatch:
    def test_arguments_are_checked_as_by_boto3(self) -> None:
        """It is boto3's client: a wrong name is found before anything is sent."""
        with pytest.raises(ParamValidationError):
            FakeBatch().describe_jobs(job=["a"])

    def test_dates_follow_the_clock(self) -> None:
        """The ``Date`` of a reply is where the clock stands."""
        batch = FakeBatch(FakeClock(datetime(2026, 5, 1, 12, tzinfo=UTC)))
        batch.clock.advance(30)
        headers = batch.describe_job_queues()["ResponseMetadata"]["HTTPHeaders"]
        assert headers["date"] == "Fri, 01 May 2026 12:00:30 GMT"

    def test_another_client_may_retry(self) -> None:
        """Each client has its own configuration, over the same jobs."""
        batch = FakeBatch()
        patient = batch.new_client(config=Config(retries={"total_max_attempts": 2, "mode": "standard"}))
        batch.faults.throttle["DescribeJobs"] = 1
        assert patient.describe_jobs(jobs=["a"])["jobs"] == []
        assert batch.calls.count("DescribeJobs") == 2

    def test_jobs_can_be_chosen_for(self) -> None:
        """A function may say what each job does."""
        batch = FakeBatch()
        batch.script(choose=lambda launch: Behaviour(after=1, exit_code=int(launch.environment["CODE"])))
        overrides = {"environment": [{"name": "CODE", "value": "4"}]}
        job = batch.submit_job(
            jobName="a", jobQueue="spot", jobDefinition="airflow-spot", containerOverrides=overrides
        )["jobId"]
        batch.advance(10)
        assert batch.describe_jobs(jobs=[job])["jobs"][0]["container"]["exitCode"] == 4

    def test_a_job_on_no_host_cannot_be_reclaimed(self) -> None:
        """The sentence says what the job is doing."""
        batch = FakeBatch()
        job = batch.submit_job(jobName="a", jobQueue="spot", jobDefinition="airflow-spot")["jobId"]
        with pytest.raises(testing.ApiError, match="is on no host; it is SUBMITTED"):
            batch.reclaim(job)

    def test_what_the_fake_does_not_serve(self) -> None:
        """Another call of EC2 is refused, and says where to go."""
        with pytest.raises(ClientError, match="use a LocalCloud"):
            FakeBatch().client("ec2").describe_vpcs()
