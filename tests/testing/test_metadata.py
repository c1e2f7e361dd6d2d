"""The metadata service as a job meets it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from airflow_spot.testing import FakeMetadata

TOKEN, TTL = "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds"


@pytest.fixture
def metadata() -> Iterator[FakeMetadata]:
    with FakeMetadata() as metadata:
        yield metadata


def ask(url: str, *, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Return status and body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method, headers=named), timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def get(metadata: FakeMetadata, path: str) -> tuple[int, str]:
    """Ask with a fresh token."""
    _, token = ask(f"{metadata.url}/latest/api/token", method="PUT", **{TTL: "60"})
    return ask(f"{metadata.url}/latest/{path}", **{TOKEN: token})


def test_without_a_token_it_says_nothing(metadata: FakeMetadata) -> None:
    """IMDSv2 answers 401 to who has no token, or an old one."""
    url = f"{metadata.url}/latest/meta-data/instance-id"
    assert ask(url) == (401, "")
    assert ask(url, **{TOKEN: "made-up"}) == (401, "")
    _, token = ask(f"{metadata.url}/latest/api/token", method="PUT", **{TTL: "60"})
    assert ask(url, **{TOKEN: token})[0] == 200
    metadata.expire_tokens()
    assert ask(url, **{TOKEN: token}) == (401, "")


@pytest.mark.parametrize("ttl", ["", "0", "21601", "soon"])
def test_a_token_needs_a_lifetime(metadata: FakeMetadata, ttl: str) -> None:
    """Between a second and six hours."""
    assert ask(f"{metadata.url}/latest/api/token", method="PUT", **{TTL: ttl})[0] == 400


def test_the_host_tells_what_it_is(metadata: FakeMetadata) -> None:
    """Instance, type, zone and how it was bought."""
    paths = ("instance-id", "instance-type", "instance-life-cycle", "placement/availability-zone")
    seen = [get(metadata, f"meta-data/{path}")[1] for path in paths]
    assert seen == ["i-0123456789abcdef0", "g5.xlarge", "spot", "us-east-1a"]


def test_no_notice_is_a_404(metadata: FakeMetadata) -> None:
    """Until there is one, and then it has the action and its time."""
    assert get(metadata, "meta-data/spot/instance-action")[0] == 404
    at = metadata.notice(seconds=30)
    status, body = get(metadata, "meta-data/spot/instance-action")
    assert (status, json.loads(body)) == (200, {"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")})
    assert get(metadata, "meta-data/spot/termination-time")[0] == 200


def test_a_rebalance_recommendation(metadata: FakeMetadata) -> None:
    """It is a 404, and then a time."""
    assert get(metadata, "meta-data/events/recommendations/rebalance")[0] == 404
    metadata.rebalance()
    assert "noticeTime" in json.loads(get(metadata, "meta-data/events/recommendations/rebalance")[1])


def test_anything_else_is_a_404(metadata: FakeMetadata) -> None:
    """Unknown paths and other places to put a token."""
    assert get(metadata, "meta-data/no-such-thing")[0] == 404
    assert ask(f"{metadata.url}/latest/other", method="PUT")[0] == 404
