"""Which checkpoints there are, and which of them are on the line of the training run."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_spot.errors import ContractError
from airflow_spot.rundir.layout import CHECKPOINTS, CheckpointName, manifest_key, parse_checkpoint_id, safe_name
from airflow_spot.rundir.reading import read, skip
from airflow_spot.rundir.transfer import MANIFEST_BYTES, check
from airflow_spot.rundir.values import Manifest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from airflow_spot.rundir.store import Meta, Store
    from airflow_spot.rundir.values import Record

_READERS = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that is present: a manifest, and every object it names with the size and ETag it names."""

    id: str
    name: CheckpointName
    manifest: Manifest

    @property
    def order(self) -> tuple[int, int, str]:
        """Further means a higher step; of two with the same step the one that came of the other."""
        return self.name.step, len(self.manifest.ancestors), self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """All that lies under ``checkpoints/``, from one LIST and the manifests.

    :param found: checkpoints that are present, ascending by step.
    :param manifests: of every id that has a readable one, present or not.
    :param objects: of every id, all that lies under it.
    """

    found: tuple[Found, ...] = ()
    manifests: dict[str, Manifest] = field(default_factory=dict)
    objects: dict[str, tuple[Meta, ...]] = field(default_factory=dict)


def look(store: Store, *, excluding: Collection[str] = ()) -> Shelf:
    """Return all that lies under ``checkpoints/``.

    :param excluding: ids whose manifests are not read.
    """
    objects: dict[str, list[Meta]] = defaultdict(list)
    listed = {item.key: item for item in store.list(CHECKPOINTS)}
    for key, item in listed.items():
        if parse_checkpoint_id(id_ := key.removeprefix(CHECKPOINTS).partition("/")[0]):
            objects[id_].append(item)
    wanted = [id_ for id_ in objects if manifest_key(id_) in listed and id_ not in excluding]
    with ThreadPoolExecutor(max_workers=_READERS, thread_name_prefix="airflow-spot-manifests") as pool:
        read_ = zip(wanted, pool.map(lambda id_: manifest(store, id_), wanted), strict=True)
        manifests = {id_: value for id_, value in read_ if value}
    return Shelf(
        found=_present(store, manifests, listed),
        manifests=manifests,
        objects={id_: tuple(items) for id_, items in objects.items()},
    )


def present(store: Store, *, excluding: Collection[str] = ()) -> list[Found]:
    """Return the checkpoints that are present, ascending by step. One LIST, and a GET of each manifest."""
    return list(look(store, excluding=excluding).found)


def manifest(store: Store, checkpoint: str) -> Manifest | None:
    """Return a checkpoint's manifest; None where it is missing or malformed."""
    key = manifest_key(checkpoint)
    found = read(store, key, Manifest, max_bytes=MANIFEST_BYTES)
    if found is None:
        return None
    value, name = found[0], parse_checkpoint_id(checkpoint)
    try:
        if value.checkpoint != checkpoint or name is None or (value.step, value.attempt) != (name.step, name.attempt):
            raise ContractError(f"it names {value.checkpoint[:80]!r}, step {value.step}, attempt {value.attempt}")
        return check(value, data_key_allowed, key)
    except ContractError as error:
        skip(store, key, error.message)
        return None


def data_key_allowed(key: str) -> bool:
    """Return whether a manifest may name that object: data of a checkpoint of the same run directory."""
    id_, middle, name = key.removeprefix(CHECKPOINTS).partition("/data/")
    try:
        return key.startswith(CHECKPOINTS) and bool(middle and parse_checkpoint_id(id_) and safe_name(name))
    except ContractError:
        return False


def _present(store: Store, manifests: dict[str, Manifest], listed: dict[str, Meta]) -> tuple[Found, ...]:
    found = []
    for id_, value in manifests.items():
        lost = next((entry for entry in value.files if not _holds(listed.get(entry.key), entry.size, entry.etag)), None)
        name = parse_checkpoint_id(id_)
        if lost is not None:
            skip(store, manifest_key(id_), f"the object of {lost.name[:80]!r} is missing or another")
        elif name is not None:
            found.append(Found(id_, name, value))
    return tuple(sorted(found, key=lambda item: item.order))


def _holds(item: Meta | None, size: int, etag: str) -> bool:
    return item is not None and item.size == size and etag in ("", item.etag)


def line(found: Iterable[Found], *, record: Record) -> list[Found]:
    """Return the line of the training run, tip last: its tip and the tip's ancestors, as far as they can be used.

    Bad and struck checkpoints are left out. ``found`` should hold the bad ones all the same: what came before one
    is known from its manifest.

    A suspect one stays on the line while the attempt that stepped behind it has committed nothing: when that fails
    too, the checkpoint was not to blame.
    """
    by_id = {item.id: item for item in found}
    top = _top(by_id, record)
    ids = _with_ancestors(by_id, top, record)
    unusable = {*record.bad, *record.struck}
    usable = [by_id[id_] for id_ in ids if id_ in by_id and id_ not in unusable]
    return sorted(usable, key=lambda item: item.order)


def tip(found: Iterable[Found], record: Record) -> Found | None:
    """Return what the next attempt continues from; None: from the beginning.

    Where the furthest is suspect, the one before is tried, once: when both are suspect the furthest counts again.
    """
    usable = [] if record.fresh else line(found, record=record)
    if len(usable) > 1 and usable[-1].id in record.suspect and usable[-2].id not in record.suspect:
        return usable[-2]
    return usable[-1] if usable else None


def _top(by_id: dict[str, Found], record: Record) -> str | None:
    """Return the furthest checkpoint of the attempt that is live or was live last, else what it continued from."""
    if record.last_live is None:
        return None
    usable = [item for item in by_id.values() if item.id not in record.bad and item.id not in record.struck]
    own = [item for item in usable if item.name.attempt == record.last_live]
    if own:
        return max(own, key=lambda item: item.order).id
    pin = next((attempt.pin for attempt in record.attempts if attempt.number == record.last_live), None)
    if pin is None:
        return None
    stepped_over = [item for item in usable if item.id in record.suspect and pin in item.manifest.ancestors]
    return max(stepped_over, key=lambda item: item.order).id if stepped_over else pin


def before(found: Iterable[Found], checkpoint: str, record: Record | None = None) -> list[Found]:
    """Return what may stand in for a damaged checkpoint: those before it, furthest first.

    :param record: tells what came before one whose manifest is lost, and which are known to be bad.
    """
    by_id = {item.id: item for item in found}
    ids = _with_ancestors(by_id, checkpoint, record) - {checkpoint, *(record.bad if record else ())}
    return sorted((by_id[id_] for id_ in ids if id_ in by_id), key=lambda item: item.order, reverse=True)


def _with_ancestors(by_id: dict[str, Found], top: str | None, record: Record | None) -> set[str]:
    """Return an id and all before it, also across manifests that are lost: then by attempt, step and pin."""
    ids: set[str] = set()
    pins = {attempt.number: attempt.pin for attempt in record.attempts} if record else {}
    while top is not None and top not in ids:
        ids.add(top)
        if top in by_id:
            return ids | set(by_id[top].manifest.ancestors)
        top = _before(by_id, top, pins)
    return ids


def _before(by_id: dict[str, Found], lost: str, pins: dict[int, str | None]) -> str | None:
    name = parse_checkpoint_id(lost)
    if name is None:
        return None
    earlier = [item for item in by_id.values() if item.name.attempt == name.attempt and item.name.step < name.step]
    return max(earlier, key=lambda item: item.order).id if earlier else pins.get(name.attempt)
