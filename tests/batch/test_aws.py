"""Clients, AWS's clock, and errors in our words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import (
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from airflow_spot.batch.aws import AwsClock, Clients, submit_error, unavailable
from airflow_spot.errors import BatchUnavailable, SubmitRefused, SubmitThrottled, SubmitUnknown

from .conftest import client_error

URL = {"endpoint_url": "https://batch"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (client_error("TooManyRequestsException", 429), SubmitThrottled),
        (client_error("Throttling", 400), SubmitThrottled),
        (client_error("RequestLimitExceeded", 503), SubmitThrottled),
        (client_error("Anything", 429), SubmitThrottled),
        (client_error("ExpiredTokenException", 403), SubmitThrottled),
        (EndpointConnectionError(**URL), SubmitThrottled),
        (ConnectTimeoutError(**URL), SubmitThrottled),
        (NoCredentialsError(), SubmitThrottled),
        (client_error("ClientException", 400), SubmitRefused),
        (client_error("AccessDeniedException", 403), SubmitRefused),
        (ParamValidationError(report="x"), SubmitRefused),
        (client_error("ServerException", 500), SubmitUnknown),
        (client_error("ServiceUnavailable", 503), SubmitUnknown),
        (client_error("RequestTimeout", 408), SubmitUnknown),
        (ReadTimeoutError(**URL), SubmitUnknown),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:40],
)
def test_what_an_error_of_submit_proves(error, kind):
    """No job exists now, no job ever, or nobody knows: the code tells, not the class."""
    found = submit_error(error, "name")
    assert type(found) is kind
    assert "name" in found.message


def test_clients_error_without_a_status_is_refused():
    """A fake's error may lack an HTTP status; its code decides."""
    error = client_error("ClientException")
    error.response["ResponseMetadata"] = {}
    assert type(submit_error(error, "n")) is SubmitRefused


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (client_error("TooManyRequestsException", 429), "throttled"),
        (client_error("AccessDeniedException", 403), "batch:DescribeJobs is not allowed"),
        (EndpointConnectionError(**URL), "got no answer"),
        (client_error("ServerException", 500), "failed"),
    ],
)
def test_unavailable_says_what_to_do(error, words):
    """Whatever kept the answer away, nothing is decided; a missing permission is named."""
    found = unavailable(error, "batch:DescribeJobs")
    assert isinstance(found, BatchUnavailable)
    assert words in found.message
    assert "nothing is decided" in found.message


def test_clock_is_the_last_date_plus_monotonic_time():
    """The clock follows AWS's replies, whatever the machine's own says."""
    ticks = [100.0]
    clock = AwsClock(monotonic=lambda: ticks[0], wall=lambda: datetime(1999, 1, 1, tzinfo=UTC))
    assert clock.now().year == 1999
    clock.hear({"ResponseMetadata": {"HTTPHeaders": {"date": "Fri, 05 Dec 2025 10:00:00 GMT"}}})
    ticks[0] += 90
    assert clock.now() == datetime(2025, 12, 5, 10, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "reply", [{}, {"ResponseMetadata": {}}, {"ResponseMetadata": {"HTTPHeaders": {"date": "soon"}}}]
)
def test_clock_passes_over_replies_without_a_date(reply):
    """A fake's reply need not have headers."""
    clock = AwsClock()
    clock.hear(reply)
    assert not clock.heard


def test_only_submit_has_a_client_that_does_not_repeat():
    """SubmitJob is sent once whatever the user's configuration says; the rest is repeated."""
    session = boto3.session.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name="us-west-2")
    config = Config(retries={"total_max_attempts": 7}, user_agent_extra="mine")
    made = Clients.from_session(session, "eu-west-1", "http://localhost:1", True, config)
    assert made.batch_once.meta.config.retries["total_max_attempts"] == 1
    assert made.batch.meta.config.retries["total_max_attempts"] == 7
    assert made.batch.meta.region_name == "eu-west-1"
    assert made.logs.meta.endpoint_url == "http://localhost:1"


def test_clients_are_made_once(moto_session):
    """A client is made at its first use and kept."""
    session, endpoint = moto_session
    made = Clients.from_session(session, endpoint_url=endpoint)
    assert made.ec2.meta is made.ec2.meta
    assert timedelta(0) < made.batch.meta.config.read_timeout * timedelta(seconds=1) <= timedelta(seconds=60)
