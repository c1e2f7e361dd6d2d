"""Conditional writes that end done, refused or unknown.

A reply may be lost, and clients that retry by themselves then report our own write as a rival's. So after a conflict
or a missing answer the object is read back: ours means done, absent or unchanged means try again, another's means
refused. Ours beneath another's also counts as refused: harmless, since the caller loads again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

from airflow_spot.errors import ContractError, StoreUnavailable
from airflow_spot.rundir import codec
from airflow_spot.rundir.store import SMALL, Blob, Conflict, Store

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Written(Generic[T]):
    """It is there.

    :param value: as written, with its write id.
    """

    value: T
    etag: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Another's is there: ``found``; None where there was one and it is gone."""

    found: Blob | None


def create_json(store: Store, key: str, value: T, *, max_bytes: int = SMALL) -> Written[T] | Refused:
    """Write a value where there is none.

    :raises StoreUnavailable: nobody knows whether it was written.
    """
    value, data = _stamped(value, key, max_bytes)
    return _settle(store, key, value, data, before=None, write=lambda: store.create(key, data))


def swap_json(store: Store, key: str, value: T, etag: str, *, max_bytes: int = SMALL) -> Written[T] | Refused:
    """Write a value over the one that has that ETag.

    :raises StoreUnavailable: nobody knows whether it was written.
    """
    value, data = _stamped(value, key, max_bytes)
    return _settle(store, key, value, data, before=etag, write=lambda: store.swap(key, data, etag))


def _stamped(value: T, key: str, max_bytes: int) -> tuple[T, bytes]:
    """Give a value its own write id, where it has room for one, so that equal bytes mean our own write."""
    stamped: Any = value
    if hasattr(value, "write_id"):
        stamped = replace(stamped, write_id=uuid4().hex)
    data = codec.dumps(stamped)
    if len(data) > max_bytes:
        raise ContractError(f"{key} would have {len(data)} bytes; at most {max_bytes} are written", what=key)
    return stamped, data


def _settle(
    store: Store, key: str, value: T, data: bytes, *, before: str | None, write: Callable[[], str]
) -> Written[T] | Refused:
    for count in range(_TRIES):
        time.sleep(0.05 * count)
        try:
            return Written(value, write())
        except (Conflict, StoreUnavailable):
            found = _read_back(store, key, len(data))
        if found is not None and found.data == data:
            return Written(value, found.etag)
        if (found.etag if found else None) != before:
            return Refused(found)
    raise StoreUnavailable(f"{key}: the store neither took the write nor showed another's, {_TRIES} times", key=key)


def _read_back(store: Store, key: str, size: int) -> Blob | None:
    try:
        return store.get(key, max_bytes=max(SMALL, size))
    except ContractError:
        # Too large to be ours, whosever it is.
        meta = store.head(key)
        return Blob(b"", meta.etag, meta.modified) if meta else None
