"""A runner that plays scripts in place of processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from airflow_spot.localcloud.clock import Clock
from airflow_spot.localcloud.runner import Exit, Launch, StartError


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a job's container does.

    :param after: seconds until it ends by itself; None: never.
    :param exit_code: with which it then ends.
    :param reason: what the container runtime says of the end, e.g. an OutOfMemoryError text.
    :param start_error: text with which it fails to start; None: it starts.
    :param on_sigterm: exit code after SIGTERM; None: it ignores the signal and waits for SIGKILL.
    :param sigterm_takes: seconds from SIGTERM to that exit.
    """

    after: float | None = None
    exit_code: int | None = 0
    reason: str | None = None
    start_error: str | None = None
    on_sigterm: int | None = 143
    sigterm_takes: float = 0.0


Chooser = Callable[[Launch], Behaviour]


class ScriptedHandle:
    """One attempt that plays a behaviour. What was done to it stays readable."""

    def __init__(self, launch: Launch, behaviour: Behaviour, clock: Clock) -> None:
        self.launch = launch
        self.signals: list[str] = []
        self.notices: list[datetime] = []
        self.closed = False
        self._behaviour = behaviour
        self._clock = clock
        self._end: tuple[float, Exit] | None = None
        if behaviour.after is not None:
            exit_ = Exit(code=behaviour.exit_code, reason=behaviour.reason)
            self._end = (clock.time() + behaviour.after, exit_)

    def poll(self) -> Exit | None:
        """Return how it ended, once its time has come."""
        return self._end[1] if self._end is not None and self._clock.time() >= self._end[0] else None

    def finish(self, exit_code: int | None = 0, reason: str | None = None) -> None:
        """End it now."""
        self._end_by(self._clock.time(), Exit(code=exit_code, reason=reason))

    def terminate(self) -> None:
        """Take SIGTERM."""
        self.signals.append("SIGTERM")
        if self._behaviour.on_sigterm is not None:
            at = self._clock.time() + self._behaviour.sigterm_takes
            self._end_by(at, Exit(code=self._behaviour.on_sigterm))

    def kill(self) -> None:
        """Take SIGKILL."""
        self.signals.append("SIGKILL")
        self._end_by(self._clock.time(), Exit(code=137))

    def notice(self, at: datetime) -> None:
        """Take a reclaim notice."""
        self.notices.append(at)

    def close(self) -> None:
        """Be given back."""
        self.closed = True

    def _end_by(self, at: float, exit_: Exit) -> None:
        if self._end is None or at < self._end[0]:
            self._end = (at, exit_)


@dataclass(slots=True)
class ScriptedRunner:
    """Starts scripted attempts.

    :param clock: what their times are read from.
    :param choose: the behaviour of a launch; takes precedence over ``script``.
    :param script: behaviours in the order of the starts; the last one stays.
    """

    clock: Clock
    choose: Chooser | None = None
    script: tuple[Behaviour, ...] = (Behaviour(),)
    handles: list[ScriptedHandle] = field(default_factory=list)
    starts: int = 0

    def start(self, launch: Launch) -> ScriptedHandle:
        """Start an attempt.

        :raises StartError: its behaviour says so.
        """
        behaviour = self.choose(launch) if self.choose else self.script[min(self.starts, len(self.script) - 1)]
        self.starts += 1
        if behaviour.start_error is not None:
            raise StartError(behaviour.start_error)
        handle = ScriptedHandle(launch, behaviour, self.clock)
        self.handles.append(handle)
        return handle
