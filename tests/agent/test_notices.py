"""Instance metadata: answers, refusals and silence, from a real server."""

from __future__ import annotations

import logging
import socket
import threading
from datetime import UTC, datetime, timedelta

import pytest

from airflow_spot.agent.notices import Instance, Metadata, MetadataUnavailable, Watch


def test_an_instance_says_what_it_is(metadata):
    """Market, id, type and zone; the market in our words."""
    assert Metadata(metadata.url).instance() == Instance(
        market="spot", instance="i-0123456789abcdef0", instance_type="m5.large", zone="us-east-1a"
    )


def test_no_notice_is_normal(metadata):
    """A 404 is no error."""
    assert (Metadata(metadata.url).notice(datetime.now(UTC)), Metadata(metadata.url).rebalance()) == (None, None)


def test_a_notice_says_how_long(metadata):
    """The time left is counted from now and never more than two minutes."""
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    client = Metadata(metadata.url)
    metadata.notice(now + timedelta(seconds=45))
    assert (client.notice(now).action, client.notice(now).seconds_left) == ("terminate", 45.0)
    metadata.notice(now + timedelta(hours=2))
    assert client.notice(now).seconds_left == 120.0
    metadata.notice(now - timedelta(hours=2))
    assert client.notice(now).seconds_left == 0.0


def test_an_expired_token_is_renewed(metadata):
    """A 401 costs one more request, no warning."""
    client = Metadata(metadata.url)
    client.get("instance-id")
    metadata.expire_tokens()
    assert client.get("instance-id") == "i-0123456789abcdef0"


def test_a_proxy_is_never_asked(metadata, monkeypatch):
    """The address is link-local."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert Metadata(metadata.url).get("instance-id") is not None


def test_silence_is_unavailable():
    """A service that takes the connection and says nothing costs the time-out, no more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = Metadata(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.1)
        with pytest.raises(MetadataUnavailable):
            client.get("instance-id")


def test_a_service_that_is_not_there_is_one_warning(caplog):
    """However often it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    watch = Watch(Metadata(url), every=0.01, on_instance=print, on_notice=print)
    with caplog.at_level(logging.WARNING):
        watch.start()
        threading.Event().wait(0.3)
        watch.close()
    assert len([item for item in caplog.records if item.name == "airflow_spot.agent.notices"]) == 1


def test_each_notice_is_told_once(metadata):
    """A notice stays where it is; it is news only once."""
    told, heard = [], threading.Event()
    watch = Watch(
        Metadata(metadata.url),
        every=0.02,
        on_instance=print,
        on_notice=lambda notice: (told.append(notice), heard.set()),
    )
    metadata.notice(datetime.now(UTC) + timedelta(seconds=60))
    watch.start()
    assert heard.wait(5)
    threading.Event().wait(0.2)
    watch.close()
    assert [notice.source for notice in told] == ["spot"]
