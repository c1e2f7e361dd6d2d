"""From a place and a connection to a store and a backend: the only module that turns one into the other.

With Airflow and a connection id, everything of the amazon provider's connection counts: assumed roles and their
refresh, region, botocore config, and the endpoints, its own or those of ``service_config``, for the store too.
Without either, boto3's own chain counts (environment, profile, instance or container role).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from airflow_spot.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import datetime

    import boto3
    from botocore.config import Config

    from airflow_spot.batch.client import BatchBackend
    from airflow_spot.rundir.store import Store

KEEP_SECONDS = 3600.0
"""A session is made anew after this time, so that an edited connection comes into force."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    """An AWS identity with its region and endpoints."""

    session: boto3.Session
    region: str
    endpoints: Mapping[str, str | None]
    verify: bool | str | None
    config: Config


@dataclass(slots=True)
class _Kept:
    """What one connection's training runs share."""

    account: _Account
    backend: BatchBackend
    made: float = field(default_factory=time.monotonic)
    stores: dict[str, tuple[Store, str]] = field(default_factory=dict)
    """By bucket: the store at its root, and the bucket's region."""


_kept: dict[tuple[Any, ...], _Kept] = {}
_lock = threading.Lock()


def connect(
    uri: str,
    *,
    aws_conn_id: str | None = "aws_default",
    region_name: str | None = None,
    verify: bool | str | None = None,
    botocore_config: Mapping[str, Any] | None = None,
) -> Session:
    """Return the session for a run directory; those of one connection share clients and the job watcher.

    Safe to call from any thread, and cheap once made.

    :param uri: the run directory, ``s3://bucket/prefix/key``.
    :param aws_conn_id: Airflow connection; None: boto3's own chain.
    :raises ConfigurationError: no region anywhere.
    """
    key = (os.getpid(), aws_conn_id, region_name, verify, json.dumps(botocore_config, sort_keys=True, default=str))
    with _lock:
        kept = _kept.get(key)
        if kept is None or time.monotonic() - kept.made > KEEP_SECONDS:
            kept = _kept[key] = _make(aws_conn_id, region_name, verify, botocore_config)
        return _session(kept, uri)


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
    with _lock:
        _kept.clear()


def _make(
    aws_conn_id: str | None, region_name: str | None, verify: bool | str | None, config: Mapping[str, Any] | None
) -> _Kept:
    account = _account(aws_conn_id, region_name, verify, config)
    return _Kept(account=account, backend=_backend(account))


def _session(kept: _Kept, uri: str) -> Session:
    scheme, _, rest = uri.partition("://")
    bucket, _, path = rest.partition("/")
    root = f"{scheme}://{bucket}"
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
        hook = AwsBaseHook(
            aws_conn_id=aws_conn_id, region_name=region_name, verify=verify, config=_config(config), client_type="batch"
        )
        session = hook.get_session(region_name=hook.region_name)
        return _Account(
            session=session,
            region=_region(hook.region_name or session.region_name),
            endpoints={name: hook.conn_config.get_service_endpoint_url(name) for name in _SERVICES},
            verify=hook.verify,
            config=_config(None).merge(hook.config),
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
    """
    if account.endpoints.get("s3") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        return account.region
    from botocore.exceptions import BotoCoreError, ClientError

    client = account.session.client("s3", region_name=account.region, verify=account.verify, config=account.config)
    reply: Mapping[str, Any]
    try:
        reply = client.head_bucket(Bucket=bucket)
    except ClientError as error:
        reply = error.response
    except BotoCoreError:
        return account.region
    headers = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(reply.get("BucketRegion") or headers.get("x-amz-bucket-region") or account.region)
