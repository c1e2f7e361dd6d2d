"""What may be deleted under ``checkpoints/``. Only the Airflow side deletes, in two steps an hour apart.

The engine writes the ids of :func:`to_strike` into ``record.struck`` by compare-and-swap, so that nobody pins them any
more. An hour later their objects go, after the manifests were read again and none that is kept names them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from airflow_spot.rundir.layout import manifest_key, parse_checkpoint_id
from airflow_spot.rundir.shelf import line, look
from airflow_spot.rundir.values import AttemptState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

    from airflow_spot.rundir.shelf import Found, Shelf
    from airflow_spot.rundir.store import Meta, Store
    from airflow_spot.rundir.values import Record

WAIT = timedelta(hours=1)
_KEEP = 3


class Pruning(NamedTuple):
    """What one look found.

    :param strike: ids to be written into ``record.struck``, with now.
    :param deletable: ids whose objects may go: see :func:`delete`.
    """

    strike: tuple[str, ...]
    deletable: tuple[str, ...]


def prune(store: Store, record: Record, now: datetime, *, also: Collection[str] = ()) -> Pruning:
    """Look at the checkpoints once and return what to strike and what may be deleted.

    :param also: ids to keep besides: what agents say that they restored and committed last.
    """
    shelf = look(store)
    return Pruning(to_strike(shelf, record, now, also=also), deletable(shelf, record, now))


def kept(found: Iterable[Found], record: Record, *, also: Collection[str] = ()) -> set[str]:
    """Return the ids that are never struck: tip, pins of attempts that have not ended, the last few of the line."""
    count = record.spec.get("keep_checkpoints", _KEEP)
    count = max(1, count) if isinstance(count, int) else _KEEP
    pins = {attempt.pin for attempt in record.attempts if attempt.pin and attempt.state is not AttemptState.ENDED}
    return {*also, *pins, *(item.id for item in line(found, record=record)[-count:])}


def to_strike(shelf: Shelf, record: Record, now: datetime, *, also: Collection[str] = ()) -> tuple[str, ...]:
    """Return the checkpoints that nobody needs: off the line, or far back on it; and broken ones an hour old."""
    keep = kept(shelf.found, record, also=also)
    present = {item.id for item in shelf.found}
    absent = (id_ for id_ in shelf.objects if _manifested(shelf, id_) and id_ not in present)
    broken = (id_ for id_ in absent if _left(shelf, record, id_, now))
    return tuple(sorted({*present, *broken} - keep - set(record.struck)))


def deletable(shelf: Shelf, record: Record, now: datetime) -> tuple[str, ...]:
    """Return ids that were struck an hour ago, and those whose attempt ended without a manifest an hour ago."""
    struck = {id_ for id_, at in record.struck.items() if now - at >= WAIT}
    loose = {
        id_
        for id_ in shelf.objects
        if id_ not in record.struck and not _manifested(shelf, id_) and _left(shelf, record, id_, now)
    }
    return tuple(sorted(struck | loose))


def delete(store: Store, record: Record, ids: Iterable[str], *, also: Collection[str] = ()) -> tuple[str, ...]:
    """Delete the objects of those ids that no kept manifest names, and return the ids of which nothing is left.

    Data goes first and the manifest last, so that a crash leaves what the next call finishes. An id of which something
    is left stays in ``record.struck``.

    :param record: freshly loaded; ids that it keeps are left alone, and those in ``also``.
    """
    shelf = look(store)
    going = set(ids) - kept(shelf.found, record, also=also)
    named = {entry.key for id_, value in shelf.manifests.items() if id_ not in going for entry in value.files}
    gone = []
    for id_ in sorted(going):
        objects = shelf.objects.get(id_, ())
        free = [item.key for item in objects if item.key not in named]
        store.delete(key for key in free if key != manifest_key(id_))
        store.delete(key for key in free if key == manifest_key(id_))
        if len(free) == len(objects):
            gone.append(id_)
    return tuple(gone)


def _manifested(shelf: Shelf, id_: str) -> bool:
    return any(item.key == manifest_key(id_) for item in shelf.objects[id_])


def _left(shelf: Shelf, record: Record, id_: str, now: datetime) -> bool:
    """Whether the attempt has ended and nothing was written under the id for an hour, by the store's clock."""
    name = parse_checkpoint_id(id_)
    return name is not None and _has_ended(record, name.attempt) and now - _newest(shelf.objects[id_]) > WAIT


def _has_ended(record: Record, number: int) -> bool:
    state = next((attempt.state for attempt in record.attempts if attempt.number == number), None)
    return state is AttemptState.ENDED if state else number < record.next_attempt


def _newest(items: Iterable[Meta]) -> datetime:
    return max(item.modified for item in items)
