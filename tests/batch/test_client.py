"""The backend that the loop holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from airflow_spot.batch.aws import AwsClock
from airflow_spot.batch.client import BatchBackend
from airflow_spot.batch.requests import stop_reason, stop_token
from airflow_spot.core.outcomes import Outcome
from airflow_spot.core.seen import JobStatus
from airflow_spot.errors import BatchUnavailable, SubmitRefused, SubmitThrottled, SubmitUnknown
from airflow_spot.rundir.values import End

from .conftest import HOST_LOST, Recorded, client_error, clients, detail, lost_host

RUN = "s3://bucket/root/key"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ENVIRONMENT = {"container": {"environment": [{"name": "AIRFLOW_SPOT_RUN", "value": RUN}]}}


def dated(reply: dict, date: str = "Thu, 01 Jan 2026 12:00:00 GMT") -> dict:
    return {**reply, "ResponseMetadata": {"HTTPHeaders": {"date": date}}}


def backend(**replies) -> tuple[BatchBackend, Recorded]:
    batch = Recorded(**replies)
    return BatchBackend(clients(batch), clock=AwsClock(monotonic=lambda: 0.0)), batch


def describes(*jobs: dict):
    """A DescribeJobs over these jobs."""
    return lambda jobs_by_id={job["jobId"]: job for job in jobs}, **arguments: {
        "jobs": [jobs_by_id[ref] for ref in arguments["jobs"] if ref in jobs_by_id]
    }


def test_now_asks_once():
    """The first look at the clock makes one cheap read; later ones make none."""
    made, batch = backend(describe_jobs=dated({"jobs": []}))
    assert made.now() == NOW == made.now()
    assert len(batch.calls["describe_jobs"]) == 1


def test_now_without_an_answer():
    """Without AWS there is no time, and the loop is told so."""
    made, _ = backend(describe_jobs=EndpointConnectionError(endpoint_url="x"))
    with pytest.raises(BatchUnavailable):
        made.now()


def test_an_error_sets_the_clock_as_well():
    """A refusal bears AWS's date too."""
    made, _ = backend(describe_jobs=client_error("AccessDeniedException", 403))
    with pytest.raises(BatchUnavailable):
        made.describe(["J"])
    assert made.now() == datetime(2025, 12, 5, 10, tzinfo=UTC)


def test_describe():
    """Known jobs come as values; unknown ids are absent."""
    made, _ = backend(describe_jobs=describes(detail("RUNNING")))
    seen = made.describe(["J", "gone"])
    assert list(seen) == ["J"]
    assert seen["J"].status is JobStatus.RUNNING
    assert made.describe([]) == {}


def test_find_reads_all_pages_and_is_exact():
    """Batch's filter ignores case and pages its answer; the result is exact, whole and oldest first."""
    pages = {
        None: {
            "jobSummaryList": [{"jobId": "b", "jobName": "train"}, {"jobId": "x", "jobName": "Train"}],
            "nextToken": "2",
        },
        "2": {"jobSummaryList": [{"jobId": "a", "jobName": "train"}]},
    }
    jobs = [detail("RUNNING", jobId="b", createdAt=2000), detail("RUNNING", jobId="a", createdAt=1000)]
    made, batch = backend(list_jobs=lambda nextToken=None, **_: pages[nextToken], describe_jobs=describes(*jobs))  # noqa: N803
    assert [job.ref for job in made.find("train", "queue")] == ["a", "b"]
    assert batch.calls["list_jobs"][0] == {"jobQueue": "queue", "filters": [{"name": "JOB_NAME", "values": ["train"]}]}


def test_find_since():
    """Jobs of the same name from long before are left out; five minutes are allowed for clocks."""
    jobs = [
        detail("FAILED", jobId=str(age), createdAt=(NOW - timedelta(minutes=age)).timestamp() * 1000) for age in (3, 60)
    ]
    listed = {"jobSummaryList": [{"jobId": job["jobId"], "jobName": "train"} for job in jobs]}
    made, _ = backend(list_jobs=listed, describe_jobs=describes(*jobs))
    assert [job.ref for job in made.find("train", "queue", since=NOW)] == ["3"]


def test_find_without_an_answer():
    """Not having seen is not the same as not being there."""
    made, _ = backend(list_jobs=client_error("TooManyRequestsException", 429))
    with pytest.raises(BatchUnavailable):
        made.find("train", "queue")


def test_submit_uses_the_client_that_does_not_repeat():
    """SubmitJob goes through its own client."""
    once, batch = Recorded(submit_job={"jobId": "J"}), Recorded()
    assert BatchBackend(clients(batch, batch_once=once)).submit({"jobName": "n"}) == "J"
    assert not batch.calls


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (client_error("TooManyRequestsException", 429), SubmitThrottled),
        (client_error("ClientException", 400), SubmitRefused),
        (ReadTimeoutError(endpoint_url="x"), SubmitUnknown),
    ],
)
def test_submit_errors(error, kind):
    """The three things an error can prove reach the loop as three errors."""
    made, _ = backend(submit_job=error)
    with pytest.raises(kind):
        made.submit({"jobName": "n"})


def test_terminate_sends_our_token():
    """A reason without our token gets that of the job's own training run."""
    made, batch = backend(describe_jobs=describes(detail("RUNNING", **ENVIRONMENT)))
    made.describe(["J"])
    made.terminate("J", "deadline")
    made.terminate("J", stop_reason(RUN, "again"))
    reasons = [call["reason"] for call in batch.calls["terminate_job"]]
    assert reasons == [f"{stop_token(RUN)}: deadline", f"{stop_token(RUN)}: again"]


def test_terminate_is_idempotent():
    """A job that Batch does not know any more is as good as ended."""
    made, _ = backend(terminate_job=client_error("ClientException", 400, "Job J does not exist"))
    made.terminate("J", "x")


@pytest.mark.parametrize("code", ["AccessDeniedException", "TooManyRequestsException", "ServerException"])
def test_terminate_that_may_not_have_worked(code):
    """Whatever leaves the job alive is told, so that it is sent again."""
    made, _ = backend(terminate_job=client_error(code, 500 if code == "ServerException" else 400))
    with pytest.raises(BatchUnavailable):
        made.terminate("J", "x")


def test_own_stop_is_known_by_the_jobs_own_training_run():
    """A job that was terminated with our token and its own run URI was stopped by us."""
    job = detail("FAILED", stop_reason(RUN, "moved"), isTerminated=True, **ENVIRONMENT)
    made, _ = backend(describe_jobs=describes(job))
    found = made.verdict(made.describe(["J"])["J"], market="spot", end=None, agent=True, trusted=False)
    assert found.outcome == Outcome.STOPPED_BY_US


def test_verdict_gathers_evidence():
    """The backend asks AWS for the market of the machine by itself."""
    environments = [
        {
            "computeEnvironmentName": "ce",
            "ecsClusterArn": "arn:aws:ecs:us-west-2:1:cluster/AWSBatch-MySpotCE-34b9c50a-cf83-38e4-94f1-4b7b6119425a",
            "computeResources": {"type": "SPOT"},
        }
    ]
    made, _ = backend(
        describe_jobs=describes(lost_host()), describe_compute_environments={"computeEnvironments": environments}
    )
    found = made.verdict(made.describe(["J"])["J"], market="spot", end=None, agent=True, trusted=False)
    assert (found.outcome, found.confidence) == (Outcome.RECLAIMED, "low")
    assert "compute environment ce is of type SPOT" in found.evidence
    assert HOST_LOST in found.sentence


def test_completed_training_costs_no_look_ups():
    """Nobody asks what became of the machine of a training that was done."""
    made, batch = backend(describe_jobs=describes(lost_host()))
    done = End(attempt=1, job="J", incarnation=1, exit_code=0, interrupted=False, completed=True)
    found = made.verdict(made.describe(["J"])["J"], market="spot", end=done, agent=True, trusted=False)
    assert found.outcome == Outcome.SUCCEEDED
    assert set(batch.calls) == {"describe_jobs"}


def test_blocked_counts_from_the_first_sight_of_the_same_reason():
    """A job may have waited its turn for hours; what counts is how long it has been blocked for this reason."""
    made, _ = backend(
        describe_jobs=describes(
            {
                "jobId": "J",
                "status": "RUNNABLE",
                "statusReason": "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - x",
                "createdAt": 1,
            }
        )
    )
    job = made.describe(["J"])["J"]
    assert [made.blocked(job, NOW + timedelta(minutes=minutes)).settled for minutes in (0, 10, 16)] == [
        False,
        False,
        True,
    ]


def test_blocked_starts_afresh_after_it_has_passed():
    """A reason that went away and came back has not lasted."""
    blocked = {"jobId": "J", "status": "RUNNABLE", "statusReason": "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT"}
    answers = iter([blocked, {**blocked, "statusReason": ""}, blocked])
    made, _ = backend(describe_jobs=lambda **_: {"jobs": [next(answers)]})
    seen = [made.blocked(made.describe(["J"])["J"], NOW + timedelta(minutes=minutes)) for minutes in (0, 10, 20)]
    assert [one and one.settled for one in seen] == [False, None, False]


def test_definition_is_the_newest_active_and_kept():
    """The newest active revision is read once for many submits."""
    found = [
        {"revision": 9, "status": "ACTIVE"},
        {"revision": 10, "status": "ACTIVE"},
        {"revision": 11, "status": "INACTIVE"},
    ]
    made, batch = backend(describe_job_definitions={"jobDefinitions": found})
    assert made.definition("train")["revision"] == made.definition("train")["revision"] == 10
    assert batch.calls["describe_job_definitions"] == [{"jobDefinitionName": "train", "status": "ACTIVE"}]


def test_definition_missing_or_denied():
    """No definition and no permission both give None; an outage does not."""
    assert backend(describe_job_definitions={"jobDefinitions": []})[0].definition("x") is None
    assert backend(describe_job_definitions=client_error("AccessDeniedException", 403))[0].definition("x") is None
    with pytest.raises(BatchUnavailable):
        backend(describe_job_definitions=client_error("ServerException", 500))[0].definition("x")


def test_tail_without_a_client_for_logs():
    """A backend without logs has none to show."""
    made, _ = backend(describe_jobs=describes(lost_host()))
    assert made.tail(made.describe(["J"])["J"]) == []
