"""Files ⇄ objects: scan a directory, upload what changed, fetch and verify, put in place."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from airflow_spot.errors import CheckpointDamaged, ContractError, UnsafePath
from airflow_spot.rundir.files import sha256
from airflow_spot.rundir.layout import safe_name
from airflow_spot.rundir.store import Conflict
from airflow_spot.rundir.values import FileEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from airflow_spot.rundir.store import Store
    from airflow_spot.rundir.values import Manifest

A = TypeVar("A")
B = TypeVar("B")

MANIFEST_BYTES = 64 << 20
MANIFEST_FILES = 1_000_000
_WORKERS = 4
_OURS = ".airflow-spot-"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to be committed, as it was found."""

    name: str
    path: Path
    size: int
    mode: int
    mtime_ns: int


def scan(directory: Path, names: Collection[str] | None = None) -> list[LocalFile]:
    """Return the files below a directory, by name.

    A link to a regular file inside the directory is taken for that file. Names that begin with ``.airflow-spot-``
    are ours and left out.

    :param names: only these, relative to the directory.
    :raises UnsafePath: any other link, a special file, or a name that could not be restored.
    :raises ContractError: nothing to commit, or more than 1,000,000 files.
    """
    root = directory.resolve(strict=True)
    found = [_local(root, root / safe_name(name)) for name in names] if names is not None else list(_walk(root, root))
    if not 0 < len(found) <= MANIFEST_FILES:
        raise ContractError(f"{directory} holds {len(found)} files; give between 1 and {MANIFEST_FILES}")
    return sorted(found, key=lambda file: file.name)


def _walk(root: Path, directory: Path) -> Iterator[LocalFile]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_OURS):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(root, Path(entry.path))
            else:
                yield _local(root, Path(entry.path))


def _local(root: Path, path: Path) -> LocalFile:
    name = safe_name(path.relative_to(root).as_posix())
    real = path.resolve(strict=True) if path.is_symlink() else path
    found = real.lstat()
    if not real.is_relative_to(root) or not stat.S_ISREG(found.st_mode):
        raise UnsafePath(
            f"{name!r} in {root} is neither a file nor a link to a file in there; a checkpoint holds nothing else",
            name=name,
        )
    return LocalFile(name, real, found.st_size, stat.S_IMODE(found.st_mode) & 0o777, found.st_mtime_ns)


def upload(
    store: Store,
    files: Sequence[LocalFile],
    key: Callable[[str], str],
    *,
    reuse: Iterable[FileEntry] = (),
    progress: Callable[[int, int], None] | None = None,
) -> tuple[FileEntry, ...]:
    """Upload files and return their entries; equal content goes up once, or not at all where ``reuse`` has it.

    :param key: gives the object of a file's name.
    :param progress: called with bytes done and bytes in all, as files are done.
    :raises CheckpointDamaged: a file changed meanwhile.
    """
    there = {(entry.size, entry.sha256): entry for entry in reuse}
    done, total, entries = 0, sum(file.size for file in files), []
    hashed = list(zip(files, _each(lambda file: sha256(file.path), files), strict=True))
    first = {(file.size, digest): file for file, digest in reversed(hashed)}
    new = [(file, digest) for (_, digest), file in first.items() if (file.size, digest) not in there]
    for entry in _each(lambda item: _uploaded(store, item[0], item[1], key(item[0].name)), new):
        there[entry.size, entry.sha256] = entry
        done += entry.size
        if progress:
            progress(done, total)
    for file, digest in hashed:
        _expect_unchanged(file)
        held = there[file.size, digest]
        entries.append(_entry(file, digest, held.key, held.etag))
    if progress:
        progress(total, total)
    return tuple(entries)


def _uploaded(store: Store, file: LocalFile, digest: str, key: str) -> FileEntry:
    _expect_unchanged(file)
    return _entry(file, digest, key, store.upload(file.path, key))


def _entry(file: LocalFile, digest: str, key: str, etag: str) -> FileEntry:
    return FileEntry(
        name=file.name, size=file.size, sha256=digest, key=key, etag=etag, mode=file.mode, mtime_ns=file.mtime_ns
    )


def _expect_unchanged(file: LocalFile) -> None:
    try:
        now = file.path.lstat()
    except FileNotFoundError:
        now = None
    if now is None or (now.st_size, now.st_mtime_ns) != (file.size, file.mtime_ns):
        raise CheckpointDamaged(
            f"{file.name!r} changed while it was being saved; nothing was committed. Save to a new name, or call "
            "save() when the file is complete",
            file=file.name,
        )


def check(manifest: Manifest, prefixes: Callable[[str], bool], what: str) -> Manifest:
    """Return a manifest whose names and keys stay where they may be.

    :param prefixes: whether an object's key may be named.
    :raises ContractError: they do not, or there are too many of them.
    """
    if not 0 < len(manifest.files) <= MANIFEST_FILES:
        raise ContractError(f"{what} lists {len(manifest.files)} files; between 1 and {MANIFEST_FILES} are taken")
    names = {safe_name(entry.name) for entry in manifest.files}
    folders = {name[:cut] for name in names for cut in range(len(name)) if name[cut] == "/"}
    if len(names) < len(manifest.files) or names & folders:
        raise ContractError(f"{what} lists a name twice, or a file as a directory", what=what)
    for entry in manifest.files:
        if entry.size < 0 or not _SHA256.fullmatch(entry.sha256) or not prefixes(entry.key):
            raise ContractError(
                f"{what}: size, SHA-256 or key of {entry.name[:80]!r} is not what it must be", what=what
            )
    return manifest


def fetch(
    store: Store,
    manifest: Manifest,
    directory: Path,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Download the files of a checked manifest, verify them all, and only then put them into a directory.

    :raises CheckpointDamaged: an object is missing or altered; the directory is as it was.
    :raises UnsafePath: a link or a file stands where a directory is needed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    root = directory.resolve(strict=True)
    _expect_room(root, sum(entry.size for entry in manifest.files))
    with _staging(root) as staging:
        done, total = 0, sum(entry.size for entry in manifest.files)
        for entry in _each(lambda entry: _fetched(store, manifest, entry, staging), manifest.files):
            done += entry.size
            if progress:
                progress(done, total)
        for entry in manifest.files:
            _check_way(root, entry.name)
        for entry in manifest.files:
            target = root / entry.name
            target.parent.mkdir(parents=True, exist_ok=True)
            (staging / entry.name).replace(target)


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    # Inside the directory, not beside it: it may be a mount point, and a rename must not cross file systems.
    for left in root.glob(f"{_OURS}restore-*"):
        shutil.rmtree(left, ignore_errors=True)
    staging = root / f"{_OURS}restore-{uuid4().hex[:8]}"
    staging.mkdir(mode=0o700)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _fetched(store: Store, manifest: Manifest, entry: FileEntry, staging: Path) -> FileEntry:
    path = staging / entry.name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        store.client.download(store.key(entry.key), path)
    except (FileNotFoundError, Conflict) as error:
        raise _damaged(manifest, entry, "is missing or was replaced") from error
    if path.stat().st_size != entry.size or sha256(path) != entry.sha256:
        raise _damaged(manifest, entry, "is not what was saved (SHA-256)")
    path.chmod(entry.mode & 0o777 | 0o400)
    if entry.mtime_ns is not None:
        os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
    return entry


def _damaged(manifest: Manifest, entry: FileEntry, what: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"checkpoint {manifest.checkpoint}: {entry.name!r} {what}; an earlier checkpoint is needed",
        checkpoint=manifest.checkpoint,
        file=entry.name,
    )


def _check_way(root: Path, name: str) -> None:
    """Refuse to write through what a trainer or an image left in the directory."""
    *folders, last = name.split("/")
    here = root
    for folder in folders:
        here /= folder
        if here.is_symlink() or (here.exists() and not here.is_dir()):
            raise UnsafePath(f"{here} is a link or a file where {name!r} needs a directory; empty {root}", name=name)
    if (here / last).is_dir() and not (here / last).is_symlink():
        raise UnsafePath(f"{here / last} is a directory where a file is to be restored; empty {root}", name=name)


def _expect_room(root: Path, size: int) -> None:
    free = shutil.disk_usage(root).free
    if size > free:
        raise OSError(
            errno.ENOSPC, f"the checkpoint needs {size} bytes, {free} are free; give the job a larger disk", root
        )


def _each(work: Callable[[A], B], items: Sequence[A]) -> Iterator[B]:
    """Work on items side by side, in order; the first failure stops the rest."""
    pool = ThreadPoolExecutor(max_workers=_WORKERS, thread_name_prefix="airflow-spot-transfer")
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
