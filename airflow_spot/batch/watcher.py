"""One DescribeJobs for many training runs: whoever asks first pays, the others read what it brought."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from airflow_spot.core.seen import JobSeen
from airflow_spot.errors import BatchError

PAGE = 100
"""DescribeJobs takes so many ids and no more."""
FORGET_AFTER_SECONDS = 600.0

Fetch = Callable[[list[str]], dict[str, JobSeen]]


@dataclass(slots=True)
class _Entry:
    """A watched job. ``seen`` is None where Batch does not know it."""

    asked_at: float
    read_at: float = float("-inf")
    seen: JobSeen | None = None


class Watcher:
    """Shares DescribeJobs between threads. One for each connection and region; thread-safe.

    A call is made only for one whose answer is older than it accepts; its page is filled up with the
    watched jobs whose answers are oldest. Jobs are forgotten once terminal, or when nobody asks any more.

    :param fetch: describes up to 100 jobs; ids that Batch does not know are absent.
    """

    def __init__(self, fetch: Fetch, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._monotonic = monotonic
        self._entries: dict[str, _Entry] = {}
        self._failed: tuple[float, BatchError] | None = None
        self._lock = threading.Lock()
        self._one_call = threading.Lock()

    def describe(self, refs: Collection[str], *, max_age: float = 0.0) -> dict[str, JobSeen]:
        """Return the jobs that Batch knows, by id, none read earlier than ``max_age`` seconds ago.

        :raises BatchUnavailable: the answer that this call needed did not come.
        """
        asked_at = self._monotonic()
        self._watch(refs, asked_at)
        oldest = asked_at - max_age
        while (answer := self._answer(refs, oldest)) is None:
            with self._one_call:
                self._ask(refs, asked_at, oldest)
        return answer

    @property
    def watched(self) -> frozenset[str]:
        """The ids that are being watched."""
        with self._lock:
            return frozenset(self._entries)

    def _watch(self, refs: Collection[str], now: float) -> None:
        with self._lock:
            for ref in refs:
                self._entries.setdefault(ref, _Entry(asked_at=now)).asked_at = now
            for ref in [ref for ref, entry in self._entries.items() if now - entry.asked_at > FORGET_AFTER_SECONDS]:
                del self._entries[ref]

    def _answer(self, refs: Collection[str], oldest: float) -> dict[str, JobSeen] | None:
        """Return the jobs if all were read in time. Looking and forgetting are one step: another thread may ask too."""
        with self._lock:
            if self._stale(refs, oldest):
                return None
            answer = {ref: seen for ref in refs if (seen := self._entries[ref].seen) is not None}
            for ref, seen in answer.items():
                if seen.terminal:
                    del self._entries[ref]
            return answer

    def _ask(self, refs: Collection[str], asked_at: float, oldest: float) -> None:
        """Make one call, unless another thread's has answered, or failed, since we began to wait."""
        if self._failed is not None and self._failed[0] >= asked_at:
            error = self._failed[1]
            raise type(error)(error.message, **error.fields)
        with self._lock:
            page = self._page(self._stale(refs, oldest))
        if page:
            self._refresh(page)

    def _stale(self, refs: Collection[str], oldest: float) -> list[str]:
        return [ref for ref in refs if (entry := self._entries.get(ref)) is None or entry.read_at < oldest]

    def _page(self, stale: list[str]) -> list[str]:
        if not stale:
            return []
        rest = self._entries.keys() - set(stale)
        others = [ref for ref in rest if not ((seen := self._entries[ref].seen) and seen.terminal)]
        return [*stale, *sorted(others, key=lambda ref: self._entries[ref].read_at)][:PAGE]

    def _refresh(self, page: list[str]) -> None:
        began = self._monotonic()
        try:
            found = self._fetch(page)
        except BatchError as error:
            self._failed = (began, error)
            raise
        with self._lock:
            for ref in page:
                entry = self._entries.setdefault(ref, _Entry(asked_at=began))
                entry.read_at, entry.seen = began, found.get(ref)
