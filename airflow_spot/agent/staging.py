"""A still copy of files that a trainer may change or delete at any moment: what is uploaded is what was saved.

Small files are copied. Large ones are hard links where the file system allows, which costs nothing; a trainer that
rewrites a file in place would change the link too, so each link is checked again right before the checkpoint is
declared to exist, and after the first such rewrite everything is copied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_spot.errors import ConfigurationError
from airflow_spot.rundir.layout import safe_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LINK_FROM_BYTES = 1 << 20


@dataclass(slots=True)
class Staged:
    """Files as they were at one moment.

    :param links: staged path and its state when it was linked.
    """

    directory: Path
    links: list[tuple[Path, tuple[int, int]]] = field(default_factory=list)

    def intact(self) -> bool:
        """Whether no linked file was changed since."""
        try:
            return all(_state(path) == state for path, state in self.links)
        except FileNotFoundError:
            return False

    def discard(self) -> None:
        """Give the space back."""
        shutil.rmtree(self.directory, ignore_errors=True)


class Stage:
    """Where saves wait until they are in the store.

    :param near: a directory whose file system is the best place, since links do not cross file systems.
    """

    def __init__(self, near: Path) -> None:
        self.root = _beside(near)
        self.copy_all = False
        self._count = 0

    def take(self, directory: Path, names: Sequence[str] | None = None) -> Staged:
        """Return a still copy.

        :param names: files, relative to ``directory``; None: all of it.
        :raises ConfigurationError: nothing there, or a name that cannot be stored.
        :raises OSError: a file vanished or the disk is full; nothing is left behind.
        """
        found = sorted(files(directory)) if names is None else list(names)
        if not found:
            raise ConfigurationError(f"{directory} holds no file to save; write the checkpoint there first")
        self._count += 1
        staged = Staged(Path(tempfile.mkdtemp(prefix=f"{self._count:06d}-", dir=self.root)))
        try:
            for name in found:
                self._add(staged, directory / name, staged.directory / safe_name(name))
        except BaseException:
            staged.discard()
            raise
        return staged

    def _add(self, staged: Staged, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not self.copy_all and source.stat().st_size >= LINK_FROM_BYTES:
            with contextlib.suppress(OSError):
                os.link(source.resolve(), target)
                staged.links.append((target, _state(target)))
                return
        shutil.copy2(source, target)

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.root, ignore_errors=True)


def files(directory: Path) -> Iterator[str]:
    """Give the regular files below a directory, relative to it. Links are followed only to files within it."""
    if not directory.is_dir():
        raise ConfigurationError(f"{directory} is not a directory; give one that holds the checkpoint's files")
    base = directory.resolve()
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if path.is_file() and path.resolve().is_relative_to(base):
                yield path.relative_to(directory).as_posix()


def _state(path: Path) -> tuple[int, int]:
    seen = path.stat()
    return seen.st_size, seen.st_mtime_ns


def _beside(near: Path) -> Path:
    for parent in (near.parent, None):
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=".airflow-spot-", dir=parent))
    return Path(tempfile.mkdtemp(prefix="airflow-spot-"))
