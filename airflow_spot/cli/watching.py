"""``airflow-spot watch``: follow a training run until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_spot.cli import facts, where
from airflow_spot.errors import StoreUnavailable

if TYPE_CHECKING:
    from datetime import timedelta

    from rich.console import Console

    from airflow_spot.cli.facts import Beats
    from airflow_spot.rundir.values import Record

Sleep = Callable[[float], None]


def ended(record: Record) -> bool:
    """Whether nothing more is to be expected: a result, or a stop that has ended every job."""
    stopped = record.desired.state == "stopped" and all(attempt.terminal for attempt in record.attempts)
    return record.result is not None or stopped


def look(reach: where.Reach) -> tuple[Record, Beats]:
    """Return the record and the heartbeats that still tell something."""
    record = where.load(reach).record
    return record, where.heartbeats(reach.store, record)


def looks(
    reach: where.Reach, *, interval: timedelta, sleep: Sleep
) -> Iterator[tuple[Record, Beats] | StoreUnavailable]:
    """Yield look after look until the training run has ended; a store that does not answer is asked again."""
    while True:
        try:
            record, beats = look(reach)
        except StoreUnavailable as error:
            yield error
        else:
            yield record, beats
            if ended(record):
                return
        sleep(interval.total_seconds())


def follow(reach: where.Reach, console: Console, *, interval: timedelta, sleep: Sleep = time.sleep) -> Record:
    """Draw a training run again and again until it has ended, and return its last record."""
    from rich.live import Live
    from rich.text import Text

    from airflow_spot.cli import render

    record = None
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as picture:
        for seen in looks(reach, interval=interval, sleep=sleep):
            if isinstance(seen, StoreUnavailable):
                console.print(Text(f"the store did not answer, asking again: {facts.plain(seen)}", style="yellow"))
                continue
            record, beats = seen
            now = where.now(reach.backend)
            picture.update(render.training_run(record, beats, now, uri=reach.uri, zone=None), refresh=True)
    if not console.is_terminal:
        console.line()  # what is not a terminal gets the last picture only, and no end of its line
    assert record is not None
    return record


def follow_json(
    reach: where.Reach, *, interval: timedelta, out: Callable[[dict[str, Any]], None], sleep: Sleep = time.sleep
) -> Record:
    """Give one document for each change until the training run has ended, and return its last record."""
    record, before = None, None
    for seen in looks(reach, interval=interval, sleep=sleep):
        if isinstance(seen, StoreUnavailable):
            continue
        record, beats = seen
        state = (record, {number: beat.sequence for number, (beat, _) in beats.items()})
        if state != before:
            out(facts.document(record, beats, where.now(reach.backend), uri=reach.uri))
            before = state
    assert record is not None
    return record
