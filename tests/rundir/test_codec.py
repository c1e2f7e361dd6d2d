"""JSON in and out: strict on types, generous to what is newer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from airflow_spot.errors import ContractError
from airflow_spot.rundir import codec
from airflow_spot.rundir.values import End, Heartbeat, Promotion, Request


def end(**fields):
    base = {"attempt": 1, "job": "j", "incarnation": 1, "exit_code": 0, "interrupted": False, "completed": True}
    return codec.decode(End, base | fields, what="end")


def test_none_is_left_out_and_comes_back():
    """Optional fields cost nothing."""
    request = Request(id="a", kind="stop", who="ada")

    assert b"null" not in codec.dumps(request)
    assert codec.loads(Request, codec.dumps(request)) == request


def test_instants_are_utc():
    """Whatever zone they were given in."""
    at = datetime(2026, 11, 30, 13, tzinfo=timezone(timedelta(hours=1)))
    value = Promotion(who="a", why="b", at=at)

    assert b'"at":"2026-11-30T12:00:00Z"' in codec.dumps(value)
    assert codec.loads(Promotion, codec.dumps(value)).at == datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"exit_code": True}, "end.exit_code: expected int, found 'True'"),
        ({"exit_code": 1.5}, "end.exit_code: expected int"),
        ({"completed": 1}, "end.completed: expected bool"),
        ({"bad": "x"}, "end.bad: expected a list"),
        ({"bad": [1]}, r"end.bad\[0\]: expected str"),
        ({"notice": {}}, "end.notice lacks 'source'"),
        ({"metrics": []}, "end.metrics: expected an object"),
    ],
)
def test_a_wrong_type_is_named(fields, words):
    """Field, what was expected, what came."""
    with pytest.raises(ContractError, match=words):
        end(**fields)


@pytest.mark.parametrize(
    "text", ["2026-11-30T12:00:00", "yesterday", "9999-12-31T23:59:59-23:00", "0001-01-01T00:00+23:00", 5]
)
def test_instants_that_are_none(text):
    """Without a zone, or beyond the calendar in UTC."""
    with pytest.raises(ContractError, match="expected an ISO 8601 instant with a zone"):
        codec.decode(Promotion, {"who": "a", "why": "b", "at": text})


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "1" + "0" * 400, "1" * 5000])
@pytest.mark.parametrize("field", ["elapsed_seconds", "unknown"])
def test_numbers_that_cannot_be_written_again(number, field):
    """A rewrite must not fail over what was read."""
    data = f'{{"attempt":1,"job":"j","incarnation":1,"phase":"training","{field}":{number}}}'
    with pytest.raises(ContractError):
        codec.loads(Heartbeat, data.encode())


def test_depth_is_bounded():
    """So that a rewrite does not run out of stack."""
    deep: object = 1
    for _ in range(21):
        deep = [deep]
    with pytest.raises(ContractError, match="at most 20 levels"):
        end(metrics={"a": deep})
