"""Checkpoints: commit, find, verify, restore.

A checkpoint is an immutable set of files under a prefix never used twice; ``manifest.json``, written last and
create-only, makes it exist.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_spot.errors import CheckpointDamaged, ContractError, SpotError
from airflow_spot.rundir import transfer
from airflow_spot.rundir.conditional import Refused, create_json
from airflow_spot.rundir.layout import checkpoint_id, data_key, manifest_key
from airflow_spot.rundir.pruning import Pruning, delete, prune
from airflow_spot.rundir.shelf import Found, Shelf, before, line, look, manifest, present, tip
from airflow_spot.rundir.values import Manifest, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from airflow_spot.rundir.store import Store
    from airflow_spot.rundir.values import FileEntry

__all__ = [
    "Fenced",
    "Found",
    "Pruning",
    "Restored",
    "Shelf",
    "commit",
    "delete",
    "line",
    "look",
    "manifest",
    "present",
    "prune",
    "restore",
    "restore_furthest",
    "tip",
]

_ANCESTORS = 1000
_MAX_STEP = 10**12 - 1


class Fenced(SpotError):
    """The attempt may not commit any more; what was uploaded counts for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What an attempt truly continues from.

    :param checkpoint: None: from the beginning.
    :param bad: checkpoints that were tried before it and found damaged, furthest first.
    """

    checkpoint: str | None = None
    step: int = 0
    bad: tuple[str, ...] = ()
    seconds: float = 0.0
    manifest: Manifest | None = None


def commit(
    store: Store,
    directory: Path,
    *,
    step: int,
    attempt: int,
    job: str,
    ancestors: Sequence[str],
    may_commit: Callable[[], bool],
    total_steps: int | None = None,
    world_size: int = 1,
    reuse: Sequence[FileEntry] = (),
    names: Collection[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Upload the files of a directory and make a checkpoint of them.

    :param ancestors: newest first: what the attempt truly continued from, its own earlier commits included.
    :param may_commit: asked when all is uploaded, right before the manifest is written.
    :param reuse: entries of the checkpoint that was restored, or of the attempt's last commit: equal content is not
        uploaded again.
    :param names: only these files of the directory.
    :param progress: called with bytes done and bytes in all.
    :raises Fenced: ``may_commit`` said no.
    :raises CheckpointDamaged: a file changed meanwhile.
    :raises UnsafePath: a link or a name that could not be restored.
    """
    if not 0 <= step <= _MAX_STEP:
        raise ContractError(f"step={step}: give a number between 0 and {_MAX_STEP}")
    name = checkpoint_id(step, attempt, uuid4().hex[:8])
    files = transfer.upload(
        store, transfer.scan(directory, names), lambda file: data_key(name, file), reuse=reuse, progress=progress
    )
    if not may_commit():
        raise Fenced(f"checkpoint {name} was not committed: attempt {attempt} may not commit any more", checkpoint=name)
    value = Manifest(
        checkpoint=name,
        step=step,
        attempt=attempt,
        job=job,
        files=files,
        ancestors=tuple(ancestors)[:_ANCESTORS],
        total_steps=total_steps,
        world_size=world_size,
    )
    written = create_json(store, manifest_key(name), value, max_bytes=transfer.MANIFEST_BYTES)
    if isinstance(written, Refused):
        raise ContractError(f"checkpoint {name} was not committed: another's manifest lies there", checkpoint=name)
    return written.value


def restore(
    store: Store,
    checkpoint: str,
    directory: Path,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Put the files of a checkpoint into a directory, once all are there and verified.

    :raises CheckpointDamaged: its manifest or an object is missing or altered; the directory is as it was.
    :raises UnsafePath: something in the directory is in the way.
    """
    value = manifest(store, checkpoint)
    if value is None:
        raise CheckpointDamaged(
            f"checkpoint {checkpoint} has no readable manifest; an earlier checkpoint is needed", checkpoint=checkpoint
        )
    transfer.fetch(store, value, directory, progress=progress)
    return value


def restore_furthest(
    store: Store,
    pin: str | None,
    directory: Path,
    *,
    record: Record | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Restored:
    """Restore the pin or, where it is damaged, the furthest intact one of those before it.

    :param record: tells what came before a pin whose manifest is lost.
    """
    began, bad = time.monotonic(), []
    for checkpoint in _candidates(store, pin, record):
        try:
            value = restore(store, checkpoint, directory, progress=progress)
        except CheckpointDamaged:
            bad.append(checkpoint)
            continue
        return Restored(
            checkpoint=checkpoint,
            step=value.step,
            bad=tuple(bad),
            seconds=time.monotonic() - began,
            manifest=value,
        )
    return Restored(bad=tuple(bad), seconds=time.monotonic() - began)


def _candidates(store: Store, pin: str | None, record: Record | None) -> Iterator[str]:
    if pin is None:
        return
    yield pin
    yield from (item.id for item in before(present(store), pin, record))
