"""What the trainer is told and what it has said: shared by the supervisor and the trainer's connections."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_spot.agent.interval import save_interval_seconds
from airflow_spot.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_spot.agent.progress import Progress
    from airflow_spot.agent.saver import Saver
    from airflow_spot.agent.staging import Stage, Staged

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The trainer's word that it is done.

    :param output: the model, staged; None where it named none.
    """

    metrics: dict[str, Any] = field(default_factory=dict)
    output: Staged | None = None


class Session:
    """One trainer's side of the conversation.

    :param fixed_interval: seconds between saves that the user asked for.
    """

    def __init__(
        self,
        *,
        progress: Progress,
        saver: Saver,
        stage: Stage,
        fixed_interval: float | None,
        resume: tuple[Path, int] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress, self._saver, self._stage = progress, saver, stage
        self._fixed, self._resume, self._clock = fixed_interval, resume, clock
        self._lock = threading.Lock()
        self._clients: dict[int, bool] = {}
        self._ever_attached = False
        self._saved = self._saved_since_told = self._early = False
        self.market: str | None = None
        self.told = False
        self.reported = False
        self.finished: Finished | None = None

    def handle(self, client: int, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request of a trainer's process."""
        with self._lock:
            self._clients[client] = bool(request.get("handles_term"))
            self._ever_attached = True
        if isinstance(request.get("progress"), list):
            self._note(*request["progress"])
        operation = request.get("op")
        if operation == "hello":
            return {**self._state(), **self._resumption()}
        if operation == "save":
            self._save(request)
        elif operation == "finish":
            self._finish(request)
        elif operation != "state":
            raise ConfigurationError(
                f"operation {operation!r} is not known; use the agent's own version in the trainer"
            )
        return self._state()

    def left(self, client: int) -> None:
        """Note that a process of the trainer has closed its connection."""
        with self._lock:
            self._clients.pop(client, None)

    def tell_stop(self) -> None:
        """Let ``stopping`` and ``should_save`` become true."""
        self.told = True

    def ask_save(self) -> None:
        """Let ``should_save`` become true once, whatever the interval says."""
        self._early = True

    def saved_early(self) -> None:
        """Note that a save was taken, so that it is asked for no more."""
        self._early = False

    @property
    def attached(self) -> bool:
        """Whether a process of the trainer listens."""
        with self._lock:
            return bool(self._clients)

    @property
    def ever_attached(self) -> bool:
        """Whether one has ever listened."""
        return self._ever_attached

    @property
    def handles_term(self) -> bool:
        """Whether every process that listens has a handler for SIGTERM, too."""
        with self._lock:
            return all(self._clients.values())

    @property
    def saves_itself(self) -> bool:
        """Whether the trainer has called ``save``: then its directory is not watched."""
        return self._saved

    @property
    def interval_seconds(self) -> float:
        """How long after a save the next one is due."""
        tally = self._saver.tally
        return save_interval_seconds(fixed=self._fixed, saves=tally.saves, cost=tally.seconds, market=self.market)

    @property
    def save_is_due(self) -> bool:
        """Whether the interval has passed, or the end is near."""
        if self.told or self._early:
            return True
        return not self._saver.busy and self._clock() - self._saver.begun_at >= self.interval_seconds

    def _state(self) -> dict[str, Any]:
        due = not self._saved_since_told if self.told else self.save_is_due
        return {"should_save": due, "stopping": self.told}

    def _resumption(self) -> dict[str, Any]:
        if self._resume is None:
            return {"resume_dir": None, "resume_step": 0}
        return {"resume_dir": str(self._resume[0]), "resume_step": self._resume[1]}

    def _note(self, step: int, total: int | None) -> None:
        self.reported = True
        self._progress.note(int(step), total if total is None else int(total))

    def _save(self, request: dict[str, Any]) -> None:
        step, total = int(request["step"]), request.get("total_steps")
        self._note(step, total)
        told = self.told
        self._saved = True
        self._early = False
        self._saver.take(
            Path(request["directory"]), step=step, total_steps=total, world_size=int(request.get("world_size") or 1)
        )
        self._saved_since_told = told

    def _finish(self, request: dict[str, Any]) -> None:
        output = request.get("output")
        staged = self._stage.take(Path(output)) if output else None
        self.finished = Finished(metrics=dict(request.get("metrics") or {}), output=staged)
        self._saver.raise_failure()
