"""``run.json``, the record: loaded, created, and saved by compare-and-swap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_spot.errors import SpotError
from airflow_spot.rundir import codec
from airflow_spot.rundir.conditional import Refused, Written, create_json, swap_json
from airflow_spot.rundir.layout import RECORD
from airflow_spot.rundir.values import Record

if TYPE_CHECKING:
    from airflow_spot.rundir.store import Store


class RecordMoved(SpotError):
    """Somebody else wrote the record first: load it again and decide anew."""


MAX_RACES = 20
"""So often is a write tried again that somebody else was faster with."""


def outraced(store: Store) -> RecordMoved:
    """Return the error of a writer to whom that happened too often."""
    return RecordMoved(f"{store.uri}: the record was written {MAX_RACES} times by others meanwhile; try again")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A record and the ETag that a save must give."""

    record: Record
    etag: str


def load(store: Store) -> Loaded | None:
    """Return the record of a run directory, or None where there is none yet.

    :raises ContractError: not a record, or of a newer major contract.
    """
    found = store.get(RECORD)
    if found is None:
        return None
    return Loaded(codec.loads(Record, found.data, what=f"{store.uri}/{RECORD}"), found.etag)


def create(store: Store, record: Record) -> Loaded:
    """Write the first record.

    :raises RecordMoved: there is one.
    """
    return _loaded(store, create_json(store, RECORD, record))


def save(store: Store, record: Record, etag: str) -> Loaded:
    """Write the record over the one that was loaded.

    :raises RecordMoved: it has been written since.
    :raises StoreUnavailable: nobody knows whether it was written.
    """
    return _loaded(store, swap_json(store, RECORD, record, etag))


def _loaded(store: Store, done: Written[Record] | Refused) -> Loaded:
    if isinstance(done, Refused):
        raise RecordMoved(f"{store.uri}/{RECORD} was written by another since it was read; read it again")
    return Loaded(done.value, done.etag)
