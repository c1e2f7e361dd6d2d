"""The object store under a run directory: bytes in, bytes out, with conditional writes.

:func:`open_store` opens ``s3://bucket/prefix`` or, for tests, ``memory://name``. A :class:`Store` is synchronous and
safe to share between threads; :meth:`Store.at` gives a view of a sub-directory on the same client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from airflow_spot.errors import ConfigurationError, StoreError, UnsafePath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime
    from pathlib import Path

SMALL = 4 << 20
"""Bytes: the bound of every object but manifests and data."""


@dataclass(frozen=True, slots=True)
class Blob:
    """An object as it was read."""

    data: bytes
    etag: str
    modified: datetime


@dataclass(frozen=True, slots=True)
class Meta:
    """An object as a listing shows it.

    :param key: relative to the store that listed it.
    """

    key: str
    size: int
    etag: str
    modified: datetime


class Conflict(StoreError):
    """A conditional write was not made, or was made and its reply lost: read back before believing either."""


ABSENT = object()
"""The condition of a create-only write."""


class Client(Protocol):
    """What a kind of object store must do; keys are complete. Errors are those of :mod:`airflow_spot.errors`."""

    def get(self, key: str, max_bytes: int) -> Blob | None:
        """Return an object, or None where there is none."""

    def head(self, key: str) -> Meta | None:
        """Return what a listing would show of one object."""

    def put(self, key: str, data: bytes, condition: object | str | None = None) -> str:
        """Write; always, only where there is no object (``ABSENT``), or only over the object with that ETag."""

    def listing(self, prefix: str) -> Iterable[Meta]:
        """Return all objects below a directory (``""`` or ending in a slash)."""

    def delete(self, keys: list[str]) -> None:
        """Delete objects; those that are not there are no error."""

    def upload(self, path: Path, key: str) -> str:
        """Write a file of any size, in parts."""

    def download(self, key: str, path: Path) -> None:
        """Fill a new file; a partly filled one may be left on failure."""


class Store:
    """A directory of an object store.

    :param uri: where it lies, without a trailing slash.
    :param prefix: of all its keys within ``client``; empty or ending in a slash.
    """

    def __init__(self, client: Client, uri: str, prefix: str = "") -> None:
        self.client = client
        self.uri = uri.rstrip("/")
        self.prefix = prefix

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    def at(self, path: str) -> Store:
        """Return the sub-directory ``path``, on the same client."""
        clean = path.strip("/")
        if not clean:
            return self
        return Store(self.client, f"{self.uri}/{clean}", self.key(clean) + "/")

    def get(self, key: str, *, max_bytes: int = SMALL) -> Blob | None:
        """Return an object, or None where there is none.

        :raises ContractError: larger than ``max_bytes``; nothing was read.
        :raises StoreDenied: 401 or 403; S3 also says so of a missing key to whoever may not list.
        :raises StoreUnavailable: no answer.
        """
        return self.client.get(self.key(key), max_bytes)

    def head(self, key: str) -> Meta | None:
        """Return size, ETag and age of one object, or None where there is none."""
        found = self.client.head(self.key(key))
        return replace(found, key=key) if found else None

    def put(self, key: str, data: bytes) -> str:
        """Write an object, whatever was there, and return its ETag."""
        return self.client.put(self.key(key), data)

    def create(self, key: str, data: bytes) -> str:
        """Write an object where there is none, and return its ETag.

        :raises Conflict: there seems to be one; it may be ours (see :mod:`airflow_spot.rundir.conditional`).
        """
        return self.client.put(self.key(key), data, ABSENT)

    def swap(self, key: str, data: bytes, etag: str) -> str:
        """Write over the object that has that ETag, and return the new one.

        :raises Conflict: the object seems to be another; it may be ours.
        """
        return self.client.put(self.key(key), data, etag)

    def list(self, prefix: str = "") -> list[Meta]:
        """Return all objects below a directory (``""`` or ending in a slash), by key."""
        start = self.prefix + (self._inner(prefix) + "/" if prefix else "")
        found = (item for item in self.client.listing(start) if item.key.startswith(start) and item.key != start)
        cut = len(self.prefix)
        return sorted((replace(item, key=item.key[cut:]) for item in found), key=lambda item: item.key)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are no error."""
        self.client.delete([self.key(key) for key in keys])

    def upload(self, path: Path, key: str) -> str:
        """Write a file of any size and return the object's ETag."""
        return self.client.upload(path, self.key(key))

    def download(self, key: str, path: Path) -> None:
        """Make a file of an object: under a temporary name first, renamed when it is complete and on disk.

        :raises FileNotFoundError: there is no such object.
        """
        from airflow_spot.rundir.files import written_whole

        with written_whole(path) as partial:
            self.client.download(self.key(key), partial)

    def key(self, key: str) -> str:
        """Return the client's key of an object.

        :raises UnsafePath: a key that would leave the directory.
        """
        return self.prefix + self._inner(key)

    @staticmethod
    def _inner(key: str) -> str:
        parts = key.removesuffix("/").split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise UnsafePath(f"key {key[:80]!r} does not stay within its directory; nothing was done", name=key)
        return "/".join(parts)


def open_store(
    uri: str,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    credentials: Callable[[], Any] | None = None,
    kms_key: str | None = None,
    allow_http: bool | None = None,
    timeout_seconds: float = 30,
    verify: bool | str | None = None,
) -> Store:
    """Open a directory of an object store. No request is made.

    :param uri: ``s3://bucket/prefix``, or ``memory://name/prefix``: shared by all of that name in the process.
    :param region: the bucket's; else ``AWS_REGION`` or ``AWS_DEFAULT_REGION``.
    :param endpoint: else ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL``; with one, the bucket goes into the path.
    :param credentials: an obstore credential provider; None: environment, container or instance.
    :param kms_key: encrypt what is written with this KMS key; None: as the bucket says.
    :param allow_http: None: exactly when the endpoint begins with ``http://``.
    :param verify: as boto3's: False, or the path of a CA bundle; None: ``AWS_CA_BUNDLE`` where set.
    :raises ConfigurationError: an address of another form.
    """
    parts = urlsplit(uri)
    prefix = parts.path.strip("/") + "/" if parts.path.strip("/") else ""
    if not parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(f"{uri!r} is not the address of a directory; give s3://bucket/prefix", uri=uri)
    if parts.scheme == "memory":
        from airflow_spot.rundir.memory import memory_client

        return Store(memory_client(parts.netloc), uri, prefix)
    if parts.scheme != "s3":
        raise ConfigurationError(f"{uri!r}: only s3://bucket/prefix can be opened (memory://name in tests)", uri=uri)
    from airflow_spot.rundir.s3 import S3Client, settings

    options = settings(
        parts.netloc, region=region, endpoint=endpoint, kms_key=kms_key, allow_http=allow_http, verify=verify
    )
    return Store(S3Client(options, credentials=credentials, timeout_seconds=timeout_seconds), uri, prefix)
