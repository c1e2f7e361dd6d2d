"""S3 by obstore: its configuration, its errors in our words, and large files in parts."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_spot.errors import ContractError, StoreDenied, StoreError, StoreUnavailable
from airflow_spot.rundir.store import ABSENT, Blob, Conflict, Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from obstore.store import S3Store

_PART = 8 << 20
_MAX_PARTS = 9000
_PARALLEL = 6
_DELETES = 1000
_DATA_TIMEOUT_SECONDS = 300.0
_STATUS = re.compile(r"status code: (\d{3})")
_STALE_TOKEN = re.compile(r"ExpiredToken|InvalidToken|TokenRefreshRequired|RequestTimeTooSkewed")


def settings(
    bucket: str,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    kms_key: str | None = None,
    allow_http: bool | None = None,
    verify: bool | str | None = None,
) -> dict[str, Any]:
    """Return obstore's configuration of a bucket: ``config`` and ``client_options``.

    Without an endpoint the bucket is part of the host name, as AWS wants it, unless it has dots: no certificate
    would match. Any endpoint gets the bucket in the path.
    """
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint is None and region.startswith("cn-"):
        endpoint = f"https://s3.{region}.amazonaws.com.cn"
    config: dict[str, Any] = {
        "bucket": bucket,
        "region": region,
        "conditional_put": "etag",
        "virtual_hosted_style_request": endpoint is None and "." not in bucket,
    }
    if endpoint:
        # This one and not "endpoint": the environment's AWS_ENDPOINT_URL_S3 would win over that.
        config["aws_endpoint_url_s3"] = endpoint.rstrip("/")
    if kms_key:
        config |= {"server_side_encryption": "aws:kms", "sse_kms_key_id": kms_key}
    if metadata := os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        config["metadata_endpoint"] = metadata.rstrip("/")
    http = bool(endpoint and endpoint.startswith("http://")) if allow_http is None else allow_http
    return {"config": config, "client_options": {"allow_http": http, **_trust(verify)}}


def _trust(verify: bool | str | None) -> dict[str, Any]:
    if verify is False:
        return {"allow_invalid_certificates": True}
    bundle = verify if isinstance(verify, str) else os.environ.get("AWS_CA_BUNDLE")
    return {"root_certificate": Path(bundle).read_bytes()} if bundle else {}


class S3Client:
    """A bucket.

    :param options: of :func:`settings`.
    :param timeout_seconds: of one request for a small object; all its retries together take at most twice as long.
    """

    def __init__(
        self, options: dict[str, Any], *, credentials: Callable[[], Any] | None = None, timeout_seconds: float = 30
    ) -> None:
        self._options = options
        self._credentials = credentials
        self._small = self._open(timeout_seconds)
        self._data = self._open(max(timeout_seconds, _DATA_TIMEOUT_SECONDS))

    def _open(self, timeout_seconds: float) -> S3Store:
        from obstore.store import S3Store

        timeout = timedelta(seconds=timeout_seconds)
        client: Any = {
            **self._options["client_options"],
            "timeout": timeout,
            "connect_timeout": timedelta(seconds=min(5.0, timeout_seconds)),
        }
        return S3Store(
            config=self._options["config"],
            client_options=client,
            retry_config={
                "max_retries": 3,
                "retry_timeout": timeout,
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=5),
                    "base": 2,
                },
            },
            credential_provider=self._credentials,
        )

    def get(self, key: str, max_bytes: int) -> Blob | None:
        """Return an object, or None where there is none."""
        with _translated("read", key):
            try:
                found = self._small.get(key)
            except FileNotFoundError as error:
                _expect_bucket(error)
                return None
            meta = found.meta
            if meta["size"] > max_bytes:
                raise ContractError(f"{key} has {meta['size']} bytes; at most {max_bytes} are read", what=key)
            return Blob(bytes(found.bytes()), meta["e_tag"] or "", meta["last_modified"])

    def head(self, key: str) -> Meta | None:
        """Return what a listing would show of one object."""
        with _translated("look at", key):
            try:
                found = self._small.head(key)
            except FileNotFoundError as error:
                _expect_bucket(error)
                return None
        return Meta(key, found["size"], found["e_tag"] or "", found["last_modified"])

    def put(self, key: str, data: bytes, condition: object | str | None = None) -> str:
        """Write; always, where there is none, or over that ETag."""
        mode: Any = "overwrite"
        if condition is ABSENT:
            mode = "create"
        elif condition is not None:
            mode = {"e_tag": condition}
        with _translated("write", key):
            return self._small.put(key, data, mode=mode, use_multipart=False)["e_tag"] or ""

    def listing(self, prefix: str) -> Iterable[Meta]:
        """Return all objects below a directory."""
        with _translated("list", prefix):
            pages = self._small.list(prefix or None, chunk_size=1000).collect()
        return [Meta(item["path"], item["size"], item["e_tag"] or "", item["last_modified"]) for item in pages]

    def delete(self, keys: list[str]) -> None:
        """Delete objects; those that are not there are no error."""
        for start in range(0, len(keys), _DELETES):
            some = keys[start : start + _DELETES]
            with _translated("delete", some[0]):
                self._small.delete(some)

    def upload(self, path: Path, key: str) -> str:
        """Write a file, in parts that grow with it: S3 takes ten thousand at most."""
        part = max(_PART, -(-path.stat().st_size // _MAX_PARTS))
        with _translated("write", key):
            return self._data.put(key, path, chunk_size=part, max_concurrency=_PARALLEL)["e_tag"] or ""

    def download(self, key: str, path: Path) -> None:
        """Fill a new file, by parts of one and the same object side by side."""
        found = self.head(key)
        if found is None:
            raise FileNotFoundError(f"there is no object {key}")
        with path.open("wb") as file:
            file.truncate(found.size)
            starts = range(0, found.size, _PART)
            with ThreadPoolExecutor(max_workers=min(_PARALLEL, max(1, len(starts)))) as pool:
                for _ in pool.map(lambda start: self._part(found, start, file.fileno()), starts):
                    pass

    def _part(self, found: Meta, start: int, handle: int) -> None:
        end = min(start + _PART, found.size)
        with _translated("read", found.key):
            part = self._data.get(found.key, options={"range": (start, end), "if_match": found.etag}).bytes()
        view = memoryview(bytes(part))
        while view:
            done = os.pwrite(handle, view, start)
            view, start = view[done:], start + done


def _expect_bucket(error: FileNotFoundError) -> None:
    """Tell a missing object from a missing bucket, which must never pass for an empty run directory."""
    if "NoSuchBucket" in str(error):
        raise error


@contextmanager
def _translated(verb: str, key: str) -> Iterator[None]:
    from obstore import exceptions

    try:
        yield
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError, exceptions.NotModifiedError) as error:
        raise Conflict(f"cannot {verb} {key}: it is not what the writer had seen", key=key) from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise _denied(verb, key, error) from error
    except FileNotFoundError as error:
        if "NoSuchBucket" not in str(error):
            raise
        raise _no_bucket(verb, key, error) from error
    except exceptions.BaseError as error:
        raise _other(verb, key, error) from error


def _other(verb: str, key: str, error: Exception) -> StoreError:
    text = str(error)
    if "NoSuchBucket" in text:
        return _no_bucket(verb, key, error)
    if _STALE_TOKEN.search(text):
        return _denied(verb, key, error)
    status = _STATUS.search(text)
    if "incorrectly configured region" in text or (status and status[1] in ("301", "307")):
        return StoreError(
            f"cannot {verb} {key}: the bucket is in another region; name its own. {_brief(error)}", key=key
        )
    if status and status[1].startswith("4") and status[1] not in ("408", "409", "429"):
        return StoreError(f"cannot {verb} {key}: the store refused the request. {_brief(error)}", key=key)
    return StoreUnavailable(f"cannot {verb} {key}: no usable answer from the store. {_brief(error)}", key=key)


def _denied(verb: str, key: str, error: Exception) -> StoreDenied:
    return StoreDenied(
        f"may not {verb} {key}: check the role, the bucket policy and, with KMS, the key policy. {_brief(error)}",
        key=key,
    )


def _no_bucket(verb: str, key: str, error: Exception) -> StoreError:
    return StoreError(
        f"cannot {verb} {key}: there is no such bucket; create it, or correct the address. {_brief(error)}", key=key
    )


def _brief(error: Exception) -> str:
    return " ".join(str(error).split("\n\nDebug source:")[0].split())[:300]
