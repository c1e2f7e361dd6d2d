"""An object store in this process, for tests: S3's rules, and a clock that a test may set."""

from __future__ import annotations

import hashlib
import shutil
from datetime import UTC, datetime
from io import BytesIO
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING

from airflow_spot.errors import ContractError
from airflow_spot.rundir.store import ABSENT, Blob, Conflict, Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


def _wall() -> datetime:
    return datetime.now(UTC)


class MemoryClient:
    """Objects in a dict.

    :param clock: gives the last-modified time of what is written.
    """

    def __init__(self, clock: Callable[[], datetime] = _wall) -> None:
        self.clock = clock
        self._objects: dict[str, Blob] = {}
        self._lock = Lock()
        self._writes = count(1)

    def get(self, key: str, max_bytes: int) -> Blob | None:
        """Return an object, or None where there is none."""
        found = self._objects.get(key)
        if found and len(found.data) > max_bytes:
            raise ContractError(f"{key} has {len(found.data)} bytes; at most {max_bytes} are read", what=key)
        return found

    def head(self, key: str) -> Meta | None:
        """Return what a listing would show of one object."""
        found = self._objects.get(key)
        return Meta(key, len(found.data), found.etag, found.modified) if found else None

    def put(self, key: str, data: bytes, condition: object | str | None = None) -> str:
        """Write; always, where there is none, or over that ETag."""
        with self._lock:
            there = self._objects.get(key)
            if (condition is ABSENT and there) or (
                isinstance(condition, str) and (there is None or there.etag != condition)
            ):
                raise Conflict(f"{key} is not what the writer had seen", key=key)
            # The count keeps A, B, A apart, as an S3 ETag would not: nobody may rest on equal ETags of equal bytes.
            etag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}-{next(self._writes)}"'
            self._objects[key] = Blob(bytes(data), etag, self.clock())
            return etag

    def listing(self, prefix: str) -> Iterable[Meta]:
        """Return all objects below a directory."""
        with self._lock:
            found = [(key, blob) for key, blob in self._objects.items() if key.startswith(prefix)]
        return [Meta(key, len(blob.data), blob.etag, blob.modified) for key, blob in found]

    def delete(self, keys: list[str]) -> None:
        """Delete objects; those that are not there are no error."""
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def upload(self, path: Path, key: str) -> str:
        """Write a file."""
        return self.put(key, path.read_bytes())

    def download(self, key: str, path: Path) -> None:
        """Fill a new file."""
        found = self._objects.get(key)
        if found is None:
            raise FileNotFoundError(f"there is no object {key}")
        with path.open("wb") as file:
            shutil.copyfileobj(BytesIO(found.data), file)


_CLIENTS: dict[str, MemoryClient] = {}
_CLIENTS_LOCK = Lock()


def memory_client(name: str) -> MemoryClient:
    """Return the store of that name in this process."""
    with _CLIENTS_LOCK:
        return _CLIENTS.setdefault(name, MemoryClient())
