"""Which training run is meant, and how its store and AWS Batch are reached."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from airflow_spot.errors import BatchError, ConfigurationError, ContractError, SpotError
from airflow_spot.rundir import layout

if TYPE_CHECKING:
    from airflow_spot.batch.client import BatchBackend
    from airflow_spot.cli.facts import Beats
    from airflow_spot.rundir.record import Loaded
    from airflow_spot.rundir.store import Store
    from airflow_spot.rundir.values import Record

RUN_ROOT_VARIABLE = "AIRFLOW_SPOT_RUN_ROOT"
_READERS = 8


class NoTrainingRun(SpotError):
    """There is no record where the arguments point to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The options that say how to reach AWS."""

    aws_conn_id: str | None = None
    region: str | None = None
    endpoint_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A store, and AWS Batch beside it."""

    uri: str
    store: Store
    backend: BatchBackend


Connect = Callable[[str, Access], Reach]


def connect(uri: str, access: Access) -> Reach:
    """Return the store at a URI and Batch: by the Airflow connection where one is named, else as the AWS SDKs do.

    :raises ConfigurationError: a connection is named and Airflow is not installed, or no region anywhere.
    """
    if access.aws_conn_id and find_spec("airflow") is None:
        raise ConfigurationError(
            f"--aws-conn-id={access.aws_conn_id} needs Airflow, which is not installed here; "
            "leave it out to use the credentials of the environment, with --region and --endpoint-url"
        )
    if access.endpoint_url:
        # The SDKs' own variable reaches every client, the object store's too.
        os.environ["AWS_ENDPOINT_URL"] = access.endpoint_url
    _check_region(access)
    from airflow_spot import session

    with _quiet():
        made = session.connect(uri, aws_conn_id=access.aws_conn_id, region_name=access.region)
    return Reach(uri=uri, store=made.store, backend=made.backend)


def _check_region(access: Access) -> None:
    if access.aws_conn_id or access.region or os.environ.get("AWS_REGION"):
        return
    import boto3

    if boto3.Session().region_name is None:
        raise ConfigurationError("no AWS region: give --region, or set AWS_DEFAULT_REGION")


def run_root(given: str | None) -> str:
    """Return the run root: the option, the environment, or Airflow's configuration.

    :raises ConfigurationError: none of them names one.
    """
    root = given or os.environ.get(RUN_ROOT_VARIABLE) or _configured()
    if not root:
        raise ConfigurationError(
            f"no run root is known; give --run-root s3://bucket/prefix, set {RUN_ROOT_VARIABLE}, "
            "or set [airflow_spot] run_root in Airflow's configuration"
        )
    if "://" not in root:
        raise ConfigurationError(f"run root {root!r} is not an object store; write it like s3://bucket/prefix")
    return root.rstrip("/")


def _configured() -> str | None:
    from airflow_spot import config

    with _quiet():
        return config.setting("run_root")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep stdout for answers, and stderr for warnings: Airflow, once imported, logs all it does."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        logging.disable(before)
    root = logging.getLogger()
    root.setLevel(max(root.level, logging.WARNING))


def run_uri(names: Sequence[str], *, map_index: int | None, root: str | None) -> str:
    """Return the run directory that arguments name.

    :param names: ``DAG_ID RUN_ID TASK_ID``, or one run directory: a URI, or a run key below the run root.
    :raises ConfigurationError: neither form.
    """
    if len(names) == 3:
        dag_id, run_id, task_id = names
        index = -1 if map_index is None else map_index
        key = layout.run_key(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=index)
        return f"{run_root(root)}/{key}"
    if len(names) != 1:
        raise ConfigurationError(
            f"expected DAG_ID RUN_ID TASK_ID or one run directory, found {len(names)} arguments: {' '.join(names)}"
        )
    if map_index is not None:
        raise ConfigurationError(
            "--map-index goes with DAG_ID RUN_ID TASK_ID; a run directory already ends in its index"
        )
    only = names[0].strip("/") if "://" not in names[0] else names[0].rstrip("/")
    return only if "://" in only else f"{run_root(root)}/{only}"


def load(reach: Reach) -> Loaded:
    """Return the record of a run directory.

    :raises NoTrainingRun: there is none.
    """
    from airflow_spot.rundir import record

    loaded = record.load(reach.store)
    if loaded is None:
        raise NoTrainingRun(
            f"no training run at {reach.uri}; 'airflow-spot runs' lists those that exist, "
            "and an operator with run_key= is named by its run directory",
            uri=reach.uri,
        )
    return loaded


def heartbeats(store: Store, record: Record) -> Beats:
    """Return the heartbeats that still tell something: of attempts that have not ended, and of the last live one."""
    from airflow_spot.rundir import attempts
    from airflow_spot.rundir.values import AttemptState

    found = {}
    for attempt in record.attempts:
        if attempt.state is not AttemptState.ENDED or attempt.number == record.last_live:
            beat = attempts.heartbeat(store, attempt.number)
            if beat is not None:
                found[attempt.number] = beat
    return found


def now(backend: BatchBackend) -> datetime:
    """Return AWS's time, or this machine's where Batch does not answer: for showing, never for deciding."""
    from botocore.exceptions import BotoCoreError

    try:
        return backend.now()
    except (BatchError, BotoCoreError):
        return datetime.now(UTC)


def run_directories(store: Store, prefix: str = "") -> list[str]:
    """Return the run directories below a store's root, by one LIST.

    A file named ``run.json`` inside a checkpoint is not a record: directories within a run directory are left out.
    """
    name = f"/{layout.RECORD}"
    found = {meta.key.removesuffix(name) for meta in store.list(prefix) if meta.key.endswith(name)}
    return sorted(key for key in found if not any(parent in found for parent in _parents(key)))


def _parents(key: str) -> list[str]:
    parts = key.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def records(store: Store, keys: Sequence[str]) -> list[tuple[str, Record | ContractError]]:
    """Return each run directory with its record, or why it cannot be read; those deleted meanwhile are left out."""

    def read(key: str) -> Record | ContractError | None:
        from airflow_spot.rundir import record

        try:
            loaded = record.load(store.at(key))
        except ContractError as error:
            return error
        return None if loaded is None else loaded.record

    with ThreadPoolExecutor(_READERS) as pool:
        return [(key, found) for key, found in zip(keys, pool.map(read, keys), strict=True) if found is not None]
