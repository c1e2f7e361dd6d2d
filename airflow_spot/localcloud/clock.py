"""Where the local cloud takes its time from."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time; tests hand in one that they move themselves."""

    def time(self) -> float:
        """Return seconds since 1970."""
        ...


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        """Return seconds since 1970."""
        return time.time()
