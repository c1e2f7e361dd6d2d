"""Reading what others wrote: bounded, checked, and absent where it is malformed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from airflow_spot.errors import ContractError
from airflow_spot.rundir import codec
from airflow_spot.rundir.store import SMALL

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_spot.rundir.store import Store

T = TypeVar("T")
log = logging.getLogger(__name__)
_SAID_AT_MOST = 1000
_said: set[str] = set()


def read(store: Store, key: str, cls: type[T], *, max_bytes: int = SMALL) -> tuple[T, datetime] | None:
    """Return an object and when the store last took it; None where it is missing or malformed (logged once)."""
    try:
        found = store.get(key, max_bytes=max_bytes)
        return (codec.loads(cls, found.data, what=key), found.modified) if found else None
    except ContractError as error:
        skip(store, key, str(error))
        return None


def skip(store: Store, key: str, why: str) -> None:
    """Say once that an object is taken for absent, and why."""
    text = f"{store.uri}/{key} is ignored: {why}"
    if text not in _said and len(_said) < _SAID_AT_MOST:
        _said.add(text)
        log.warning("%s", text)
