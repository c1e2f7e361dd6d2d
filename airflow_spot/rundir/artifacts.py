"""``artifacts/aNNNN/``: what an attempt produced, committed like a checkpoint before a completed end file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_spot.errors import CheckpointDamaged, ContractError
from airflow_spot.rundir import transfer
from airflow_spot.rundir.conditional import Refused, create_json
from airflow_spot.rundir.layout import ARTIFACTS, MANIFEST, artifacts_dir, safe_name
from airflow_spot.rundir.reading import read
from airflow_spot.rundir.values import Manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_spot.rundir.store import Store

_PREFIX = re.compile(rf"{ARTIFACTS}a\d{{4,9}}/[0-9a-f]{{4,32}}/")


def commit_artifacts(
    store: Store,
    attempt: int,
    directory: Path,
    *,
    step: int = 0,
    job: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Upload the files of a directory and return their prefix, with its slash: files are below ``data/``.

    The prefix is used once: an attempt that is started again by a service does not write over what was there.

    :raises CheckpointDamaged: a file changed meanwhile.
    :raises UnsafePath: a link or a name that could not be restored.
    """
    prefix = f"{artifacts_dir(attempt)}{uuid4().hex[:8]}/"
    files = transfer.upload(
        store, transfer.scan(directory), lambda name: f"{prefix}data/{safe_name(name)}", progress=progress
    )
    value = Manifest(checkpoint=prefix, step=step, attempt=attempt, job=job, files=files)
    if isinstance(create_json(store, prefix + MANIFEST, value, max_bytes=transfer.MANIFEST_BYTES), Refused):
        raise ContractError(f"{prefix} was not committed: another's manifest lies there", what=prefix)
    return prefix


def artifacts(store: Store, prefix: str) -> Manifest | None:
    """Return what lies under a prefix that an end file names; None where that is nothing we can read."""
    if not _PREFIX.fullmatch(prefix):
        return None
    found = read(store, prefix + MANIFEST, Manifest, max_bytes=transfer.MANIFEST_BYTES)
    try:
        return transfer.check(found[0], lambda key: _within(prefix, key), prefix) if found else None
    except ContractError:
        return None


def restore_artifacts(store: Store, prefix: str, directory: Path) -> Manifest:
    """Put the files below a prefix into a directory, once all are there and verified.

    :raises CheckpointDamaged: the manifest or an object is missing or altered; the directory is as it was.
    """
    value = artifacts(store, prefix)
    if value is None:
        raise CheckpointDamaged(f"{store.uri}/{prefix[:200]} has no readable manifest", checkpoint=prefix)
    transfer.fetch(store, value, directory)
    return value


def _within(prefix: str, key: str) -> bool:
    start = f"{prefix}data/"
    return key.startswith(start) and bool(safe_name(key.removeprefix(start)))
