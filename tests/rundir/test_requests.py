"""Requests: posted once, read oldest first, never trusted blindly."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_spot.errors import ContractError
from airflow_spot.rundir import requests
from airflow_spot.rundir.values import Request


def new(clock, kind="promote", **fields):
    return requests.new_request(kind, who="ada", at=clock(), **fields)


def test_they_come_oldest_first_and_once(store, clock):
    """What was applied is not given again."""
    later = new(clock, generation=2, tier="on_demand")
    clock.forward(seconds=-1)
    earlier = new(clock, "stay", until=clock() + timedelta(hours=1))
    assert [later.id, earlier.id] == [requests.post(store, later), requests.post(store, earlier)]

    assert requests.pending(store, ()) == [earlier, later]
    assert requests.pending(store, {earlier.id}) == [later]


def test_an_applied_one_is_not_read(store, clock, faulty):
    """One LIST, and a GET only of what is new."""
    request = new(clock)
    requests.post(store, request)
    behind, client = faulty(store, methods=("get", "listing"))
    requests.pending(behind, [request.id])

    assert client.log == ["listing"]


def test_posting_again_changes_nothing(store, clock):
    """A sensor that is retried posts the same request under the same id; another's id is refused."""
    request = new(clock, "deadline", id="deadline-1", deadline=clock())
    requests.post(store, request)
    requests.post(store, request)

    assert requests.pending(store, ()) == [request]
    with pytest.raises(ContractError, match="another request bears this id"):
        requests.post(store, new(clock, "stop", id="deadline-1"))


def test_malformed_ones_are_skipped_and_said_once(store, clock, caplog):
    """One bad file does not stop the loop, nor fill its log."""
    request = new(clock)
    requests.post(store, request)
    at = "requests/20261130T120000000000Z-"
    store.put(f"{at}bad1.json", b"{")
    store.put(f"{at}bad2.json", b'{"id": "other", "kind": "stop", "who": "x"}')
    store.put(f"{at}bad3.json", b'{"id": "bad3", "kind": "erase", "who": "x"}')
    store.put(f"{at}bad4.json", b"x" * ((4 << 20) + 1))
    store.put("requests/notes.txt", b"x")

    assert requests.pending(store, ()) == [request]
    assert requests.pending(store, ()) == [request]
    assert len(caplog.messages) == 4


def test_a_flood_is_taken_in_parts(memory, clock):
    """At most 200 at once, the oldest."""
    for _ in range(205):
        clock.forward(seconds=1)
        requests.post(memory, new(clock))
    first = requests.pending(memory, ())

    assert len(first) == 200
    assert len(requests.pending(memory, {item.id for item in first})) == 5


def test_what_cannot_be_asked_is_refused(store):
    """Unknown kinds, and ids that would not be a file name."""
    with pytest.raises(ContractError, match="'erase' is none of"):
        requests.new_request("erase", who="ada")
    with pytest.raises(ContractError, match="is not 1 to 64 letters"):
        requests.post(store, Request(id="../run", kind="stop", who="ada"))
