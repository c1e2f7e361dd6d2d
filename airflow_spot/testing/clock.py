"""A clock that a test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Stands still until it is moved.

    :param start: the first instant.
    """

    def __init__(self, start: datetime = _START) -> None:
        self._start = start.timestamp()
        self._passed = 0.0

    def time(self) -> float:
        """Return seconds since 1970, as ``time.time`` does."""
        return self._start + self._passed

    def monotonic(self) -> float:
        """Return seconds since the clock was made, as ``time.monotonic`` may."""
        return self._passed

    def now(self) -> datetime:
        """Return the instant, in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    def advance(self, span: float | timedelta) -> datetime:
        """Move on by seconds or a timedelta, and return the new instant."""
        seconds = span.total_seconds() if isinstance(span, timedelta) else span
        if seconds < 0:
            raise ValueError(f"advance({span!r}): a clock goes forwards; give a span that is not negative")
        self._passed += seconds
        return self.now()

    def sleep(self, seconds: float) -> None:
        """Stand in for ``time.sleep``."""
        self.advance(seconds)
