"""What the deciding thread hears: signals, rulings, notices, and the outcome of work it gave to others."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Signalled:
    """The agent got a signal."""

    number: int


@dataclass(frozen=True, slots=True)
class Done:
    """Work given to a thread has ended, one way or the other."""

    token: object
    value: Any = None
    error: Exception | None = None


class Wake:
    """Something changed; look."""


class Inbox:
    """A queue of messages; safe to put into from threads and signal handlers."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()

    def put(self, message: object) -> None:
        """Add a message."""
        self._queue.put(message)

    def wake(self) -> None:
        """Let the deciding thread look."""
        self._queue.put(Wake())

    def get(self, seconds: float) -> object | None:
        """Return the next message, or None where none comes in that time."""
        try:
            return self._queue.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def start(self, work: Callable[[], Any]) -> object:
        """Do work in a thread, and return the token that its :class:`Done` will bear."""
        token = object()

        def body() -> None:
            try:
                done = Done(token, work())
            except Exception as error:
                done = Done(token, error=error)
            self.put(done)

        threading.Thread(target=body, name="work", daemon=True).start()
        return token
