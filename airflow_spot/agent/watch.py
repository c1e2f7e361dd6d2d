"""Checkpoints of a trainer that knows nothing of us: what lies in its directory, and what of it is complete.

Numbered entries (``step-300/``, ``checkpoint-300.pt``) are checkpoints of their own; all others (``config.json``,
``latest``) go together. An entry is complete when

- a marker is in or beside it, or it matches the glob, where the user named one; else
- an entry of the same kind has a higher number; or
- no process of the trainer holds a file of it open for writing, in two looks between which nothing changed.

Quiet time alone completes nothing. Where open files cannot be seen (macOS), only the first two count, and the
trainer's own end.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_spot.agent.process import PROC

if TYPE_CHECKING:
    from collections.abc import Collection

State = tuple[int, int, int]
"""Size, modification time and inode of a file."""

_GLOB = re.compile(r"[*?\[]")
_NAMED = re.compile(r"(?:global[_-]?step|step|iter(?:ation)?|checkpoint|ckpt|epoch)s?[=_-]?(\d{1,15})", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\d.])(\d{1,15})(?!\d|\.\d)")
_SHARD = re.compile(r"\d+-of-\d+|rank[_-]?\d+|rng_state", re.IGNORECASE)
_PASSING = (".tmp", ".temp", ".part", ".partial", ".incomplete", ".lock")
_WRITING = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or directory at the top of the checkpoint directory.

    :param files: state of each regular file, by name relative to the checkpoint directory.
    :param step: the number in its name; None where it has none.
    """

    name: str
    files: Mapping[str, State]
    step: int | None

    @property
    def kind(self) -> str:
        """The name with its numbers taken out."""
        return re.sub(r"\d+", "#", self.name)

    @property
    def modified(self) -> int:
        """When it last changed, in ns."""
        return max((state[1] for state in self.files.values()), default=0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Files that together are a checkpoint.

    :param step: None where no name holds one.
    """

    files: Mapping[str, State]
    step: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """The directory at one moment.

    :param opened: files that some process holds open for writing; None: cannot be seen.
    """

    entries: tuple[Entry, ...]
    opened: frozenset[str] | None


def step_of(name: str, pattern: str | None = None) -> int | None:
    """Return the step that a name holds: by the user's pattern, after a word such as ``step``, or its last number."""
    if pattern is not None:
        found = re.search(pattern, name)
        return int(found[1]) if found and found[1] and found[1].isdigit() else None
    if _SHARD.search(name):
        return None
    named = _NAMED.findall(name)
    numbers = named or _NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None


def look(directory: Path, pids: Collection[int] | None, pattern: str | None = None) -> Look:
    """Look at a checkpoint directory.

    :param pids: the trainer's processes; None: it has ended, nothing is open.
    """
    opened: frozenset[str] | None = frozenset() if pids is None else _opened(directory, pids)
    entries = (_entry(directory, name, pattern) for name in sorted(_names(directory)))
    return Look(tuple(entry for entry in entries if entry.files), opened)


def _names(directory: Path) -> Iterable[str]:
    try:
        return [name for name in os.listdir(directory) if not name.startswith(".") and not name.endswith(_PASSING)]  # noqa: PTH208
    except OSError:
        return []


def _entry(directory: Path, name: str, pattern: str | None) -> Entry:
    path = directory / name
    found: dict[str, State] = {}
    if path.is_dir() and not path.is_symlink():
        for folder, _, names in os.walk(path):
            for item in names:
                _see(directory, Path(folder, item), found)
    else:
        _see(directory, path, found)
    return Entry(name, found, step_of(name, pattern))


def _see(directory: Path, path: Path, found: dict[str, State]) -> None:
    try:
        if path.is_symlink() and not path.resolve().is_relative_to(directory.resolve()):
            return
        seen = path.stat()
    except OSError:
        return
    if path.is_file():
        found[path.relative_to(directory).as_posix()] = (seen.st_size, seen.st_mtime_ns, seen.st_ino)


def _opened(directory: Path, pids: Collection[int]) -> frozenset[str] | None:
    """Return the files below the directory that the processes hold open for writing; None: cannot be told."""
    if not PROC.is_dir():
        return None
    base, found = f"{directory.resolve()}{os.sep}", set[str]()
    for pid in pids:
        try:
            handles = os.listdir(PROC / str(pid) / "fd")  # noqa: PTH208
        except FileNotFoundError:
            continue
        except OSError:
            return None
        found.update(path.removeprefix(base) for fd in handles if (path := _written(pid, fd)) and path.startswith(base))
    return frozenset(found)


def _written(pid: int, fd: str) -> str:
    """Return the path of a file that is open for writing, else nothing."""
    folder = PROC / str(pid)
    try:
        path = os.readlink(folder / "fd" / fd)  # noqa: PTH115 - the text, not a path
        if not path.startswith("/"):
            return ""
        info = (folder / "fdinfo" / fd).read_text()
    except OSError:
        return ""
    flags = re.search(r"^flags:\s*([0-7]+)", info, re.MULTILINE)
    return path.removesuffix(" (deleted)") if flags and int(flags[1], 8) & _WRITING else ""


@dataclass(frozen=True, slots=True)
class Rules:
    """How completeness is told.

    :param complete: marker or glob.
    :param restored: files that were there before the trainer began; unchanged, they are no checkpoint of this attempt.
    """

    complete: str | None = None
    restored: Mapping[str, State] | None = None


def candidate(now: Look, before: Look | None, rules: Rules, *, ended: bool = False) -> Candidate | None:
    """Return the newest complete checkpoint, or None where there is none yet.

    :param ended: the trainer has ended of its own will: all it wrote is complete.
    """
    fresh = [entry for entry in now.entries if not _unchanged(entry, rules.restored)]
    complete = {entry.name for entry in now.entries if ended or _complete(entry, now, before, rules)}
    numbered = [entry for entry in fresh if entry.step is not None]
    done = [entry for entry in numbered if entry.name in complete]
    if numbered and not done:
        return None
    if not numbered and not _whole(fresh, complete, rules):
        return None
    chosen = [entry for entry in now.entries if entry.name in complete]
    step = max((entry.step for entry in done if entry.step is not None), default=None)
    return Candidate({name: state for entry in chosen for name, state in entry.files.items()}, step)


def _whole(fresh: list[Entry], complete: set[str], rules: Rules) -> bool:
    """Whether entries without a number are a checkpoint: all of them, or those that the user's rule names."""
    done = [entry.name in complete for entry in fresh]
    return bool(done) and (any(done) if rules.complete else all(done))


def _unchanged(entry: Entry, restored: Mapping[str, State] | None) -> bool:
    return restored is not None and all(restored.get(name) == state for name, state in entry.files.items())


def _complete(entry: Entry, now: Look, before: Look | None, rules: Rules) -> bool:
    if _unchanged(entry, rules.restored):
        return True
    if rules.complete:
        return _named(entry, now, rules.complete)
    if any(other.kind == entry.kind and (other.step or 0) > (entry.step or 0) for other in now.entries):
        return entry.step is not None and not _open(entry, now)
    return _closed(entry, now, before)


def _named(entry: Entry, now: Look, rule: str) -> bool:
    if _GLOB.search(rule):
        return any(fnmatch.fnmatchcase(name, rule) for name in (entry.name, *entry.files))
    if any(Path(name).name == rule for name in entry.files):
        return True
    beside = next((other for other in now.entries if other.name in (rule, f"{entry.name}.{rule}")), None)
    return beside is not None and entry.modified <= beside.modified


def _open(entry: Entry, now: Look) -> bool:
    return now.opened is not None and any(name in now.opened for name in entry.files)


def _closed(entry: Entry, now: Look, before: Look | None) -> bool:
    """Whether two looks saw the same files, none of them open."""
    if now.opened is None or before is None or before.opened is None or _open(entry, now) or _open(entry, before):
        return False
    return any(other == entry for other in before.entries)
