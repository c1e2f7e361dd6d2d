"""How far the trainer is and how fast: steps, a recent rate, gaps. Thread-safe; its clock only counts seconds."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW_SECONDS = 600.0
_POINTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Progress at one moment."""

    step: int | None = None
    total_steps: int | None = None
    steps_per_second: float | None = None
    seconds_since_step: float | None = None
    longest_step_seconds: float | None = None


class Progress:
    """Collects steps as they are reported.

    :param clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._points: deque[tuple[float, int]] = deque(maxlen=_POINTS)
        self._last = 0.0
        self._step: int | None = None
        self._total: int | None = None
        self._longest: float | None = None
        self._noted = False

    def begin(self, step: int | None) -> None:
        """Note that the trainer starts now, from that step.

        The rate is counted from the first step that is reported: loading and compiling would make it far too low, and
        a training that seems to be slow is promoted.
        """
        with self._lock:
            self._last, self._step = self._clock(), step

    def note(self, step: int, total: int | None = None) -> None:
        """Note a step that was reached; the same step again changes nothing."""
        with self._lock:
            self._total = total if total is not None else self._total
            if step == self._step:
                return
            now = self._clock()
            # The first step holds compilation and warm-up: it is no gap between steps.
            if self._noted:
                self._longest = max(self._longest or 0.0, now - self._last)
            if self._step is not None and step < self._step:
                self._points.clear()
            self._last, self._step, self._noted = now, step, True
            self._thin(now)
            self._points.append((now, step))

    def _thin(self, now: float) -> None:
        """Keep points far enough apart that the window fits into what is kept."""
        if len(self._points) > 1 and now - self._points[-2][0] < WINDOW_SECONDS / _POINTS:
            self._points.pop()
        while len(self._points) > 2 and now - self._points[1][0] > WINDOW_SECONDS:
            self._points.popleft()

    @property
    def step(self) -> int | None:
        """The last step reported."""
        with self._lock:
            return self._step

    def pace(self) -> Pace:
        """Return the progress now."""
        with self._lock:
            return Pace(
                step=self._step,
                total_steps=self._total,
                steps_per_second=self._rate(),
                seconds_since_step=self._clock() - self._last if self._last else None,
                longest_step_seconds=self._longest,
            )

    def _rate(self) -> float | None:
        if len(self._points) < 2:
            return None
        (began, first), (ended, last) = self._points[0], self._points[-1]
        return (last - first) / (ended - began) if ended > began and last > first else None
