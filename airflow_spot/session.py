"""From a place and a connection to a store and a backend: the only module that turns one into the other.

With Airflow and a connection id, everything of the amazon provider's connection counts: assumed roles and their
refresh, region, botocore config, and the endpoints, its own or those of ``service_config``, for the store too.
Without either, boto3's own chain counts (environment, profile, instance or container role).
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from airflow_spot.errors import ConfigurationError, SpotError, StoreUnavailable

if TYPE_CHECKING:
    from datetime import datetime

    import boto3
    from botocore.config import Config

    from airflow_spot.batch.client import BatchBackend
    from airflow_spot.rundir.store import Store

log = logging.getLogger(__name__)

KEEP_SECONDS = 3600.0
"""A session is made anew after this time, so that an edited connection comes into force."""
RETRY_SECONDS = 60.0
"""Where that fails, the old one goes on for so long."""
_LOOK_SECONDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What the loop needs: the run directory and the backend that runs its jobs."""

    store: Store
    backend: BatchBackend
    region: str
    bucket_region: str
    kept: _Kept

    def object_modified(self, uri: str) -> datetime | None:
        """Return when an object anywhere was written, or None where there is none.

        :param uri: as a user gives it in ``success_object=``.
        """
        directory, _, name = uri.rstrip("/").rpartition("/")
        found = _session(self.kept, directory).store.head(name)
        return found.modified if found else None

    @property
    def endpoint(self) -> str:
        """Where the store is asked, in words."""
        return _endpoint(self.kept.account) or f"AWS's own in {self.bucket_region}"


class _Locks:
    """One lock for each key: nobody waits for what the network does for another."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._by_key: dict[Hashable, threading.Lock] = {}

    def of(self, key: Hashable) -> threading.Lock:
        """Return the lock of a key."""
        with self._guard:
            return self._by_key.setdefault(key, threading.Lock())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    """An AWS identity with its region and endpoints.

    :param defined: the Airflow connection exists; the amazon provider goes on without one that does not.
    :param making: a session makes one client at a time.
    """

    session: boto3.Session
    region: str
    endpoints: Mapping[str, str | None]
    verify: bool | str | None
    config: Config
    defined: bool = True
    making: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class _Kept:
    """What one connection's training runs share."""

    account: _Account
    backend: BatchBackend
    made: float = field(default_factory=time.monotonic)
    stores: dict[str, tuple[Store, str]] = field(default_factory=dict)
    """By bucket: the store at its root, and the bucket's region."""
    locks: _Locks = field(default_factory=_Locks)


_kept: dict[tuple[Any, ...], _Kept] = {}
_locks = _Locks()


def connect(
    uri: str,
    *,
    aws_conn_id: str | None = "aws_default",
    region_name: str | None = None,
    verify: bool | str | None = None,
    botocore_config: Mapping[str, Any] | None = None,
) -> Session:
    """Return the session for a run directory; those of one connection share clients and the job watcher.

    Safe to call from any thread, and cheap once made; the first time it may ask STS and S3.

    :param uri: the run directory, ``s3://bucket/prefix/key``.
    :param aws_conn_id: Airflow connection; None: boto3's own chain.
    :raises ConfigurationError: no region anywhere, or a connection that cannot work.
    :raises BatchUnavailable: STS, or whoever else gives credentials, does not answer or refuses.
    :raises StoreUnavailable: S3 does not say where the bucket lies.
    """
    key = (os.getpid(), aws_conn_id, region_name, verify, json.dumps(botocore_config, sort_keys=True, default=str))
    kept = _kept.get(key)
    if kept is None or time.monotonic() - kept.made > KEEP_SECONDS:
        kept = _renewed(key, aws_conn_id, region_name, verify, botocore_config)
    return _session(kept, uri)


def _renewed(key: tuple[Any, ...], *settings: Any) -> _Kept:
    """Make what a connection needs, once for all that wait; what has worked goes on where it cannot be made anew."""
    lock, old = _locks.of(key), _kept.get(key)
    if not lock.acquire(blocking=old is None):
        return cast("_Kept", old)
    try:
        kept = _kept.get(key)
        if kept is None or time.monotonic() - kept.made > KEEP_SECONDS:
            kept = _kept[key] = _make(*settings) if kept is None else _made_anew(kept, *settings)
        return kept
    finally:
        lock.release()


def _made_anew(old: _Kept, *settings: Any) -> _Kept:
    try:
        made = _make(*settings)
        if old.account.defined and not made.account.defined:
            raise ConfigurationError(f"Airflow does not know its connection {settings[0]!r} any more")
    except Exception as error:  # whatever it is: trainings must not end because of it, and the old one worked
        log.warning("The AWS connection could not be made anew, the old one goes on: %s", error)
        old.made = time.monotonic() - KEEP_SECONDS + RETRY_SECONDS
        return old
    return made


def connect_alone(
    uri: str,
    *,
    aws_conn_id: str | None = "aws_default",
    region_name: str | None = None,
    verify: bool | str | None = None,
    botocore_config: Mapping[str, Any] | None = None,
) -> Session:
    """Return a session that shares nothing: for signal handlers, which may have interrupted a holder of any lock."""
    return _session(_make(aws_conn_id, region_name, verify, botocore_config), uri)


def forget() -> None:
    """Drop all that is kept; the next :func:`connect` makes it anew."""
    _kept.clear()


def _make(
    aws_conn_id: str | None, region_name: str | None, verify: bool | str | None, config: Mapping[str, Any] | None
) -> _Kept:
    with _translated():
        account = _account(aws_conn_id, region_name, verify, config)
    return _Kept(account=account, backend=_backend(account))


@contextmanager
def _translated() -> Iterator[None]:
    """Tell a connection that cannot work from one that gets no answer now, or none while a role is being edited."""
    from botocore import exceptions

    from airflow_spot.batch.aws import unavailable
    from airflow_spot.errors import BatchUnavailable

    action = "signing in to AWS"
    wrong = (
        exceptions.ProfileNotFound,
        exceptions.ConfigNotFound,
        exceptions.ConfigParseError,
        exceptions.PartialCredentialsError,
        exceptions.ParamValidationError,
        exceptions.InvalidRegionError,
        exceptions.InvalidConfigError,
        exceptions.UnknownCredentialError,
    )
    try:
        yield
    except SpotError:
        raise
    except (*wrong, FileNotFoundError, PermissionError) as error:
        raise ConfigurationError(f"{action} cannot work: {error}; correct the Airflow connection") from error
    except (exceptions.BotoCoreError, exceptions.ClientError) as error:
        raise unavailable(error, action) from error
    except OSError as error:  # that of a SAML or Google identity provider
        raise BatchUnavailable(f"{action} got no answer ({error}); nothing is decided, we ask again") from error


def _session(kept: _Kept, uri: str) -> Session:
    scheme, _, rest = uri.partition("://")
    bucket, _, path = rest.partition("/")
    root = f"{scheme}://{bucket}"
    if root not in kept.stores:
        with kept.locks.of(root), _translated():
            if root not in kept.stores:
                kept.stores[root] = _open(kept.account, root)
    store, bucket_region = kept.stores[root]
    below = path.strip("/")
    return Session(
        store=store.at(below) if below else store,
        backend=kept.backend,
        region=kept.account.region,
        bucket_region=bucket_region,
        kept=kept,
    )


def _account(
    aws_conn_id: str | None, region_name: str | None, verify: bool | str | None, config: Mapping[str, Any] | None
) -> _Account:
    if aws_conn_id:
        try:
            from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
        except ImportError:
            return _plain_account(region_name, verify, config)
        # A config that is given hides the connection's own: none where the user gave none.
        hook = AwsBaseHook(
            aws_conn_id=aws_conn_id,
            region_name=region_name,
            verify=verify,
            config=_config(config) if config else None,
            client_type="batch",
        )
        session = hook.get_session(region_name=hook.region_name)
        return _Account(
            session=session,
            region=_region(hook.region_name or session.region_name),
            endpoints={name: hook.conn_config.get_service_endpoint_url(name) for name in _SERVICES},
            verify=hook.verify,
            config=_config(None).merge(hook.config),
            defined=bool(hook.conn_config),
        )
    return _plain_account(region_name, verify, config)


_SERVICES = ("batch", "ec2", "ecs", "logs", "s3")


def _plain_account(region_name: str | None, verify: bool | str | None, config: Mapping[str, Any] | None) -> _Account:
    import boto3

    session = boto3.Session(region_name=region_name)
    region = _region(session.region_name)
    if not session.region_name:
        session = boto3.Session(region_name=region)
    return _Account(session=session, region=region, endpoints={}, verify=verify, config=_config(config))


def _region(found: str | None) -> str:
    region = found or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise ConfigurationError(
            "no AWS region: give region_name=, set it in the Airflow connection, or set AWS_DEFAULT_REGION"
        )
    return region


def _config(given: Mapping[str, Any] | None) -> Config:
    from botocore.config import Config

    from airflow_spot import __version__

    return Config(user_agent_extra=f"airflow-provider-spot/{__version__}").merge(Config(**dict(given or {})))


def _backend(account: _Account) -> BatchBackend:
    from airflow_spot.batch.aws import Clients
    from airflow_spot.batch.client import BatchBackend

    session = cast("boto3.Session", _WithEndpoints(account))
    return BatchBackend(Clients.from_session(session, account.region, None, account.verify, account.config))


class _WithEndpoints:
    """A boto3 session whose clients know the connection's endpoint of their own service."""

    def __init__(self, account: _Account) -> None:
        self._account = account

    def client(self, service: str, **options: Any) -> Any:
        """Return a client, as :meth:`boto3.session.Session.client` does."""
        make: Any = self._account.session.client
        with self._account.making:
            return make(service, **{**options, "endpoint_url": self._account.endpoints.get(service)})


def _open(account: _Account, root: str) -> tuple[Store, str]:
    from airflow_spot.config import kms_key
    from airflow_spot.rundir.store import open_store

    if not root.startswith("s3://"):
        return open_store(root), account.region
    region = bucket_region(account, root.removeprefix("s3://"))
    store = open_store(
        root,
        region=region,
        endpoint=account.endpoints.get("s3"),
        credentials=_credentials(account),
        kms_key=kms_key(),
        verify=account.verify,
    )
    return store, region


def _credentials(account: _Account) -> Any:
    if account.session.get_credentials() is None:
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider

    return Boto3CredentialProvider(account.session)


def bucket_region(account: _Account, bucket: str) -> str:
    """Return where a bucket lies: a store client signs for one region, and it need not be that of the jobs.

    AWS names the region even where it refuses the call; whoever says nothing is taken to be where the jobs are.

    :raises StoreUnavailable: no answer; a wrong guess would be kept for long.
    """
    if _endpoint(account):
        return account.region
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError  # noqa: A004

    quick = Config(connect_timeout=_LOOK_SECONDS, read_timeout=_LOOK_SECONDS, retries={"total_max_attempts": 2})
    with account.making:
        client = account.session.client(
            "s3", region_name=account.region, verify=account.verify, config=account.config.merge(quick)
        )
    reply: Mapping[str, Any]
    try:
        reply = client.head_bucket(Bucket=bucket)
    except ClientError as error:
        reply = error.response
    except (HTTPClientError, ConnectionError) as error:
        raise StoreUnavailable(f"HeadBucket of {bucket} got no answer: {error}", key=bucket) from error
    except BotoCoreError:
        return account.region
    headers = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(reply.get("BucketRegion") or headers.get("x-amz-bucket-region") or account.region)


def _endpoint(account: _Account) -> str | None:
    """Return the store's endpoint, None for AWS's own."""
    given = account.endpoints.get("s3")
    return given or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
