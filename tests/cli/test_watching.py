"""Following a training run."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from airflow_spot.cli import where
from airflow_spot.cli.watching import ended, follow, follow_json
from airflow_spot.errors import StoreUnavailable
from airflow_spot.rundir import attempts, record
from airflow_spot.rundir.store import Store
from airflow_spot.rundir.values import Desired, Record, Result

from .conftest import NOW, Place, a_beat, a_record, reclaimed

SECOND = timedelta(seconds=1)


class Story:
    """A clock whose every sleep lets the next thing happen."""

    def __init__(self, *chapters: Any) -> None:
        self.chapters = list(chapters)
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.chapters.pop(0)()


def finish(store: Store, outcome: str = "SUCCEEDED") -> None:
    loaded = record.load(store)
    assert loaded is not None
    result = Result(outcome=outcome, message="the training completed", generation=1, at=NOW)
    record.save(store, replace(loaded.record, result=result), loaded.etag)


def reach_of(place: Place, value: Record) -> where.Reach:
    store = place.at(value)
    return where.Reach(uri=store.uri, store=store, backend=place.backend)


def test_follow_draws_until_the_end(place: Place) -> None:
    """The picture is drawn at each interval, and the last one shows the result."""
    store = place.put(a_record(), a_beat())
    story = Story(lambda: attempts.write_heartbeat(store, a_beat(step=1800)), lambda: finish(store))
    out = io.StringIO()
    last = follow(reach_of(place, a_record()), Console(file=out, width=140), interval=SECOND, sleep=story)
    assert last.result is not None
    assert story.slept == [1.0, 1.0]
    assert "ended SUCCEEDED" in out.getvalue()
    assert out.getvalue().endswith("\n")
    assert not out.getvalue().endswith("\n\n")


def test_follow_json_gives_a_document_for_each_change(place: Place) -> None:
    """A look that finds nothing new is silent."""
    store = place.put(a_record(), a_beat())
    story = Story(
        lambda: None,
        lambda: attempts.write_heartbeat(store, a_beat(step=1800, sequence=1)),
        lambda: finish(store),
    )
    found: list[dict[str, Any]] = []
    follow_json(reach_of(place, a_record()), interval=SECOND, out=found.append, sleep=story)
    assert [document["progress"].get("step") for document in found] == [1700, 1800, 1800]
    assert [document["standing"].split()[0] for document in found] == ["training", "training", "ended"]


class Faulty(Store):
    """A store that does not answer now and then."""

    down = False

    def get(self, key: str, *, max_bytes: int = 4 << 20) -> Any:
        if self.down:
            raise StoreUnavailable("no answer from the store")
        return super().get(key, max_bytes=max_bytes)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_store_that_does_not_answer_is_asked_again(place: Place, as_json: bool) -> None:
    """An outage of the store is said, and does not end the watching."""
    store = place.put(a_record())
    faulty = Faulty(store.client, store.uri, store.prefix)
    reach = where.Reach(uri=store.uri, store=faulty, backend=place.backend)

    def break_down() -> None:
        faulty.down = True

    def come_back() -> None:
        faulty.down = False
        finish(store)

    out = io.StringIO()
    story = Story(break_down, come_back)
    if as_json:
        last = follow_json(reach, interval=SECOND, out=lambda _: None, sleep=story)
    else:
        last = follow(reach, Console(file=out, width=140), interval=SECOND, sleep=story)
        assert "the store did not answer, asking again: no answer from the store" in out.getvalue()
    assert last.result is not None


def test_what_has_ended() -> None:
    """A result ends it, and so does a stop once no job is left."""
    stopped = Desired(state="stopped", who="ada@host", why="wrong data")
    assert not ended(a_record())
    assert not ended(a_record(desired=stopped))
    assert ended(a_record(desired=stopped, attempts=(reclaimed(),)))
