"""The last lines of a job, from a moto server's Logs."""

from __future__ import annotations

import time

import pytest

from airflow_spot.batch import logs
from airflow_spot.core.seen import JobSeen, JobStatus

from .conftest import Recorded


def job(*streams: str) -> JobSeen:
    return JobSeen(ref="J", name="n", status=JobStatus.FAILED, log_streams=streams)


@pytest.fixture(scope="module")
def client(moto_session):
    session, endpoint = moto_session
    made = session.client("logs", endpoint_url=endpoint)
    now = int(time.time() * 1000)  # CloudWatch refuses lines of the past
    made.create_log_group(logGroupName="/aws/batch/job")
    for stream in ("a", "b"):
        made.create_log_stream(logGroupName="/aws/batch/job", logStreamName=stream)
        events = [{"timestamp": now + number, "message": f"{stream}{number}"} for number in range(8)]
        made.put_log_events(logGroupName="/aws/batch/job", logStreamName=stream, logEvents=events)
    return made


def test_last_lines(client):
    """The last lines come in order."""
    assert logs.tail(client, job("a"), 3) == ["a5", "a6", "a7"]


def test_every_stream(client):
    """Each try of a job has a stream of its own; each is shown under its name."""
    assert logs.tail(client, job("a", "b"), 1) == ["[log stream a]", "a7", "[log stream b]", "b7"]


def test_more_than_there_are(client):
    """Asking for more lines than there are gives all, and ends."""
    assert logs.tail(client, job("a"), 5000) == [f"a{number}" for number in range(8)]


def test_missing_stream_is_a_note(client):
    """A stream that is not there is said, and the others are shown."""
    first, second, *rest = logs.tail(client, job("none", "b"), 1)
    assert first == "[log stream none]"
    assert "cannot be read" in second
    assert rest == ["[log stream b]", "b7"]


def test_job_without_a_stream(client):
    """A job whose container never began says so."""
    assert "no log stream" in logs.tail(client, job())[0]


def test_empty_page_is_not_the_last():
    """CloudWatch may give an empty page in between; only a repeated token ends the stream."""
    pages = {None: ([], "1"), "1": (["x"], "2"), "2": (["w"], "2")}

    def reply(nextToken=None, **_):  # noqa: N803
        lines, token = pages[nextToken]
        return {"events": [{"message": line} for line in lines], "nextBackwardToken": token}

    assert logs.tail(Recorded(get_log_events=reply), job("s"), 5) == ["w", "x"]
