"""Depth 1: commits what a trainer that knows nothing of us leaves in its checkpoint directory."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from airflow_spot.agent.watch import Candidate, Look, Rules, State, candidate, look
from airflow_spot.errors import SpotError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from airflow_spot.agent.progress import Progress
    from airflow_spot.agent.saver import Saver
    from airflow_spot.agent.session import Session

log = logging.getLogger(__name__)

_SHARE = 20
"""Looking takes at most a twentieth of one core, however many files there are."""


def states(directory: Path) -> dict[str, State]:
    """Return the state of every file in a directory as it is now."""
    return {name: state for entry in look(directory, None).entries for name, state in entry.files.items()}


class Directory:
    """Watches a checkpoint directory in a thread.

    :param members: gives the trainer's processes.
    :param restored: files that were there before the trainer began.
    :param begun: step that was restored.
    """

    def __init__(
        self,
        path: Path,
        *,
        members: Callable[[], Collection[int]],
        restored: Mapping[str, State],
        saver: Saver,
        session: Session,
        progress: Progress,
        complete: str | None,
        step_from: str | None,
        every: float,
        begun: int = 0,
    ) -> None:
        self._path, self._members, self._every = path, members, every
        self._saver, self._session, self._progress = saver, session, progress
        self._rules, self._step_from = Rules(complete, restored), step_from
        self._before: Look | None = None
        self._taken: Candidate | None = None
        self._begun, self._step = begun, begun
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._warned = False

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._loop, name="directory", daemon=True).start()

    def close(self) -> None:
        """Stop watching; returns once no save is being taken."""
        self._closed.set()
        with self._lock:
            pass

    def _loop(self) -> None:
        wait = self._every
        while not self._closed.wait(wait) and not self._session.saves_itself:
            begun = time.monotonic()
            with self._lock:
                if not self._closed.is_set():
                    self._look_safely()
            wait = max(self._every if not self._session.told else self._every / 4, _SHARE * (time.monotonic() - begun))

    def _look_safely(self) -> None:
        try:
            self._look()
        except Exception:
            # The edge of a thread: a directory that changes under our eyes must not end the watch.
            log.exception("the checkpoint directory could not be looked at; trying again")

    def _look(self) -> None:
        now = look(self._path, self._members(), self._step_from)
        found = candidate(now, self._before, self._rules)
        self._before = now
        if found is None or not self._is_new(found):
            return
        if not self._session.reported and found.step is not None:
            self._progress.note(found.step)
        if self._session.save_is_due and not self._saver.busy:
            self._take(found, self._next_step(found))

    def _is_new(self, found: Candidate) -> bool:
        if self._taken is None:
            return True
        if found.step is not None and self._taken.step is not None:
            return found.step > self._taken.step
        return dict(found.files) != dict(self._taken.files)

    def _next_step(self, found: Candidate) -> int:
        """Return the step to commit as: the name's, or one more than the last where names hold none."""
        if found.step is None:
            return self._step + 1
        if self._taken is None and found.step <= self._begun and not self._warned:
            self._warned = True
            log.warning(
                "the trainer saved step %d after step %d was restored: it did not resume", found.step, self._begun
            )
        return found.step

    def _take(self, found: Candidate, step: int) -> None:
        try:
            self._saver.take(self._path, found.files, step=step)
        except FileNotFoundError as error:
            log.info("the trainer removed a file while step %d was being staged: %s", step, error)
            return
        except (SpotError, OSError) as error:
            log.warning("while step %d was being saved: %s", step, error)
        self._taken, self._step = found, step
        self._session.saved_early()
        if found.step is None and not self._session.reported:
            self._progress.note(step)

    def last(self, *, clean: bool) -> None:
        """Take what is new and complete after the trainer's end.

        :param clean: it ended of its own will, so that nothing it wrote is half done.
        """
        self.close()
        if self._session.saves_itself:
            return
        now = look(self._path, None, self._step_from)
        found = candidate(now, self._before, self._rules, ended=clean and self._rules.complete is None)
        same = found is not None and self._taken is not None and dict(found.files) == dict(self._taken.files)
        if found is None or (same and not self._saver.lost):
            return
        step = self._step if same else self._next_step(found)
        if not same and self._taken is not None and step <= self._step:
            step = self._step + 1
        self._take(found, step)
