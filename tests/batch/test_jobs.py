"""Every shape of DescribeJobs in our words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_spot.batch.jobs import attempts_of, instance_in, job_seen
from airflow_spot.core.seen import JobStatus

from .conftest import ARNS, ESSENTIAL, HOST_LOST, INSTANCE, as_tasks, attempt, detail, lost_host

OURS = [{"name": "AIRFLOW_SPOT_RUN", "value": "s3://b/r"}, {"name": "AIRFLOW_SPOT_ATTEMPT", "value": "2"}]


@pytest.mark.parametrize("shape", [dict, as_tasks], ids=["container", "taskProperties"])
def test_lost_host(shape):
    """A lost host has arns and a log stream, but neither exit code nor container reason: None stays None."""
    job = job_seen(shape(lost_host()))
    assert (job.status, job.status_reason, job.container_reason, job.exit_code) == (
        JobStatus.FAILED,
        HOST_LOST,
        "",
        None,
    )
    assert job.instance == INSTANCE
    assert job.placement_arn == ARNS["containerInstanceArn"]
    assert job.log_streams == (ARNS["logStreamName"],)
    assert job.attempts == 1
    assert job.stopped_at == datetime(2025, 12, 6, 17, 4, 31, 155000, UTC)


@pytest.mark.parametrize("shape", [dict, as_tasks], ids=["container", "taskProperties"])
def test_exit_code_and_reason(shape):
    """Exit code and container reason are those of the last try."""
    tries = [attempt(HOST_LOST), attempt(ESSENTIAL, exitCode=137, reason="OutOfMemoryError: Container killed")]
    job = job_seen(shape(detail("FAILED", ESSENTIAL, tries)))
    assert (job.exit_code, job.container_reason, job.attempts) == (137, "OutOfMemoryError: Container killed", 2)


def test_several_containers():
    """Of several containers the one that failed says how the try ended; all log streams are kept."""
    containers = [
        {"name": "main", "exitCode": 0, "logStreamName": "a"},
        {"name": "side", "exitCode": 3, "reason": "bad", "logStreamName": "b"},
    ]
    job = job_seen(detail("FAILED", ESSENTIAL, [{"taskProperties": [{"taskArn": "t", "containers": containers}]}]))
    assert (job.exit_code, job.container_reason, job.log_streams, job.placement_arn) == (3, "bad", ("a", "b"), "t")


def test_running_container_job():
    """While it runs, stream and environment come from the job's own container."""
    container = {
        "logStreamName": "s",
        "taskArn": "t",
        "environment": OURS,
        "logConfiguration": {"options": {"awslogs-group": "/mine"}},
    }
    job = job_seen(detail("RUNNING", container=container))
    assert (job.log_streams, job.log_group, job.placement_arn) == (("s",), "/mine", "t")
    assert job.environment == {"AIRFLOW_SPOT_RUN": "s3://b/r", "AIRFLOW_SPOT_ATTEMPT": "2"}
    assert not job.terminal


def test_running_ecs_properties_job():
    """The environment is that of the container which bears the training run, not simply the first one's."""
    containers = [
        {"name": "side", "environment": [{"name": "X", "value": "1"}]},
        {"name": "main", "environment": OURS, "logStreamName": "m"},
    ]
    job = job_seen(
        detail("RUNNING", container={}, ecsProperties={"taskProperties": [{"taskArn": "t", "containers": containers}]})
    )
    assert job.environment["AIRFLOW_SPOT_ATTEMPT"] == "2"
    assert (job.log_streams, job.placement_arn) == (("m",), "t")


def test_eks_job():
    """A pod's containers give the exit code, its node is kept, and there is no log stream."""
    tries = [
        {
            "podName": "p",
            "nodeName": "ip-10-0-0-1.ec2.internal",
            "statusReason": "x",
            "containers": [{"name": "m", "exitCode": 137, "reason": "Error"}],
        }
    ]
    job = detail(
        "FAILED", "x", eksAttempts=tries, eksProperties={"podProperties": {"containers": [{"name": "m", "env": OURS}]}}
    )
    del job["attempts"]
    seen = job_seen(job)
    assert (seen.exit_code, seen.container_reason, seen.log_streams, seen.attempts) == (137, "Error", (), 1)
    assert seen.environment["AIRFLOW_SPOT_RUN"] == "s3://b/r"
    assert attempts_of(job)[0].node == "ip-10-0-0-1.ec2.internal"


def test_multi_node_job():
    """A multi-node parent shows its environment under its nodes."""
    nodes = {"numNodes": 2, "nodeRangeProperties": [{"targetNodes": "0:1", "container": {"environment": OURS}}]}
    assert job_seen(detail("RUNNABLE", nodeProperties=nodes)).environment["AIRFLOW_SPOT_RUN"] == "s3://b/r"


def test_array_parent_has_no_attempts():
    """An array parent is PENDING and has no attempts of its own."""
    job = job_seen(detail("PENDING", arrayProperties={"statusSummary": {"RUNNING": 2}}))
    assert (job.status, job.attempts, job.log_streams, job.exit_code) == (JobStatus.PENDING, 0, (), None)


def test_attempt_in_progress_is_tolerated():
    """An element of attempts[] may lack stoppedAt and everything else."""
    job = job_seen(detail("RUNNING", None, [{"startedAt": 1}]))
    assert (job.attempts, job.stopped_at, job.placement_arn) == (1, None, None)


def test_flags():
    """isTerminated and isCancelled are there only when true."""
    job = job_seen(detail("FAILED", "mine", isTerminated=True))
    assert (job.is_terminated, job.is_cancelled) == (True, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HOST_LOST, INSTANCE),
        ("Host EC2 (instance i-1a2b3c4d) stopped.", "i-1a2b3c4d"),
        ("semi-automatic i-x", None),
        ("", None),
    ],
)
def test_instance_in(text, expected):
    """Old and new instance ids are read out of a text."""
    assert expected == instance_in(text)
