"""Saves in the background: staged at once, uploaded in a thread, declared to exist only while the fence allows it.

The newest save waits at most; an older one that has not begun is dropped for it. A store that gives no answer is
asked again until it does, with the newest save there is. A save that fails for good is raised at the trainer's next
call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from airflow_spot.errors import CheckpointDamaged, SpotError, StoreUnavailable
from airflow_spot.rundir.checkpoints import Fenced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from airflow_spot.agent.staging import Stage, Staged
    from airflow_spot.rundir.values import FileEntry, Manifest

log = logging.getLogger(__name__)

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
LONGEST_LINE = 200
"""Ancestors that a manifest names; the Airflow side keeps far fewer."""


class Commit(Protocol):
    """Makes a checkpoint of a directory; :func:`airflow_spot.rundir.checkpoints.commit` with a store."""

    def __call__(
        self,
        directory: Path,
        *,
        step: int,
        ancestors: Sequence[str],
        total_steps: int | None,
        world_size: int,
        reuse: Sequence[FileEntry],
        may_commit: Callable[[], bool],
    ) -> Manifest:
        """Upload and write the manifest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A staged save on its way."""

    staged: Staged
    number: int
    step: int
    total_steps: int | None = None
    world_size: int = 1
    staging_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of the saves so far.

    :param seconds: the longest of the last three: what the next one may take.
    """

    saves: int = 0
    failed: int = 0
    last_error: str = ""
    seconds: float | None = None
    manifest: Manifest | None = None
    committed_at: float | None = None


class Saver:
    """Takes saves and commits them, one at a time.

    :param may_commit: raises ``Fenced`` where it may not, or ``StoreUnavailable`` where nobody can tell.
    :param on_done: called from the thread after each save, committed or not.
    """

    def __init__(
        self,
        commit: Commit,
        stage: Stage,
        *,
        may_commit: Callable[[], None],
        on_done: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._commit, self._stage = commit, stage
        self._may_commit, self._on_done, self._clock = may_commit, on_done, clock
        self._wake = threading.Condition()
        self._next: Save | None = None
        self._current: Save | None = None
        self._closed = False
        self._tally = Tally()
        self._failure: SpotError | None = None
        self._count = self._newest_stored = 0
        self._newest_lost = (0, "")
        self._line: tuple[str, ...] = ()
        self._reuse: tuple[FileEntry, ...] = ()
        self._took: deque[float] = deque(maxlen=3)
        self.begun_at = clock()
        threading.Thread(target=self._loop, name="saver", daemon=True).start()

    def continue_from(self, manifest: Manifest | None) -> None:
        """Note what was restored: the ancestor of all that follows, whose unchanged objects may be used again."""
        if manifest is not None:
            self._line = (manifest.checkpoint, *manifest.ancestors)
            self._reuse = manifest.files
        self.begun_at = self._clock()

    def take(
        self,
        directory: Path,
        names: Mapping[str, object] | None = None,
        *,
        step: int,
        total_steps: int | None = None,
        world_size: int = 1,
    ) -> None:
        """Stage a save and return; it is committed in the background.

        :raises SpotError: an earlier one failed for good; said once, and this one is taken all the same.
        :raises OSError: the files cannot be staged.
        """
        begun = self._clock()
        number, staged = self._staged(directory, names, step)
        save = Save(
            staged=staged,
            number=number,
            step=step,
            total_steps=total_steps,
            world_size=world_size,
            staging_seconds=self._clock() - begun,
        )
        with self._wake:
            self.begun_at = self._clock()
            dropped, self._next = self._next, save
            self._wake.notify_all()
        if dropped:
            log.info("the save of step %d was overtaken by that of step %d", dropped.step, step)
            dropped.staged.discard()
        self.raise_failure()

    def _staged(self, directory: Path, names: Mapping[str, object] | None, step: int) -> tuple[int, Staged]:
        with self._wake:
            self._count += 1
            number = self._count
        try:
            return number, self._stage.take(directory, sorted(names) if names is not None else None)
        except (SpotError, OSError) as error:
            # A trainer that knows nothing of us may remove an old checkpoint at any moment: that loses nothing.
            if names is None or not isinstance(error, FileNotFoundError):
                self._note_failure(error)
                self._note_lost(number, step, error)
            raise

    def raise_failure(self) -> None:
        """Raise what failed for good since this was last asked."""
        with self._wake:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @property
    def busy(self) -> bool:
        """Whether a save is not in the store yet."""
        with self._wake:
            return self._next is not None or self._current is not None

    @property
    def lost(self) -> str:
        """What was not stored and why, where the newest save failed for good; empty once a later one is stored."""
        with self._wake:
            number, what = self._newest_lost
            return what if number > self._newest_stored else ""

    @property
    def tally(self) -> Tally:
        """What became of the saves so far."""
        with self._wake:
            return self._tally

    def close(self) -> None:
        """Take no more, and give up what is not committed."""
        with self._wake:
            self._closed, self._next = True, None
            self._wake.notify_all()

    def _loop(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while save := self._pick():
            try:
                done = self._try(save)
            except StoreUnavailable as error:
                self._fail(save, error, for_good=False)
                self._pause(wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
                continue
            wait = FIRST_WAIT_SECONDS
            self._finish(save, done)

    def _pick(self) -> Save | None:
        """Return the newest save: the waiting one, else the one that has to be tried again."""
        with self._wake:
            while not self._closed and self._next is None and self._current is None:
                self._wake.wait()
            if self._closed:
                return None
            if self._next is not None:
                if self._current is not None:
                    self._current.staged.discard()
                self._current, self._next = self._next, None
            return self._current

    def _pause(self, seconds: float) -> None:
        with self._wake:
            if not self._closed and self._next is None:
                self._wake.wait(seconds)

    def _try(self, save: Save) -> Manifest | None:
        """Return the manifest of a committed save, or None where it failed for good."""
        begun = self._clock()

        def allowed() -> bool:
            if not save.staged.intact():
                raise CheckpointDamaged(f"a file of step {save.step} was rewritten in place while it was uploaded")
            self._may_commit()
            return True

        try:
            # Asked first, too: nothing is uploaded in vain while fenced or while nobody can tell.
            self._may_commit()
            manifest = self._commit(
                save.staged.directory,
                step=save.step,
                ancestors=self._line[:LONGEST_LINE],
                total_steps=save.total_steps,
                world_size=save.world_size,
                reuse=self._reuse,
                may_commit=allowed,
            )
        except StoreUnavailable:
            raise
        except Exception as error:
            # The edge of a thread: whatever it is surfaces at the trainer's next call.
            self._fail(save, error, for_good=True)
            return None
        self._took.append(self._clock() - begun + save.staging_seconds)
        return manifest

    def _finish(self, save: Save, manifest: Manifest | None) -> None:
        save.staged.discard()
        with self._wake:
            self._current = None
            if manifest is not None:
                self._newest_stored = save.number
                self._line = (manifest.checkpoint, *self._line)
                self._reuse = manifest.files
                self._tally = replace(
                    self._tally,
                    saves=self._tally.saves + 1,
                    seconds=max(self._took),
                    manifest=manifest,
                    committed_at=self._clock(),
                )
        if manifest is not None:
            log.info("step %d is saved as %s in %.1f s", save.step, manifest.checkpoint, self._took[-1])
        self._on_done()

    def _fail(self, save: Save, error: Exception, *, for_good: bool) -> None:
        log.warning("step %d is not saved%s: %s", save.step, "" if for_good else " yet, it is tried again", error)
        if isinstance(error, CheckpointDamaged):
            self._stage.copy_all = True
        self._note_failure(error)
        if for_good and not isinstance(error, Fenced):
            self._note_lost(save.number, save.step, error)
        with self._wake:
            # A fenced trainer is about to be stopped, and a rewritten file is about to be saved again.
            if for_good and not isinstance(error, (Fenced, CheckpointDamaged)):
                self._failure = error if isinstance(error, SpotError) else SpotError(str(error))

    def _note_failure(self, error: Exception) -> None:
        with self._wake:
            self._tally = replace(self._tally, failed=self._tally.failed + 1, last_error=str(error)[:500])

    def _note_lost(self, number: int, step: int, error: Exception) -> None:
        with self._wake:
            self._newest_lost = max(self._newest_lost, (number, f"step {step}: {str(error)[:500]}"))
