"""Heartbeats out, the record in: one thread that tells the run directory how it goes and learns what is wanted."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from airflow_spot.agent.fence import Identity, Order, Ruling, Sight, rule
from airflow_spot.errors import ContractError, SpotError, StoreError, StoreUnavailable
from airflow_spot.rundir import attempts, owner, record
from airflow_spot.rundir.checkpoints import Fenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_spot.rundir.store import Store
    from airflow_spot.rundir.values import Heartbeat, Record

log = logging.getLogger(__name__)


class Reporter:
    """Reports and looks, every so many seconds.

    :param report: gives the heartbeat to write; None: this node writes none.
    :param on_ruling: called from the thread after each look.
    """

    def __init__(
        self,
        store: Store,
        me: Identity,
        *,
        report: Callable[[], Heartbeat | None],
        on_ruling: Callable[[Ruling], None],
        every: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self.me = store, me
        self._report, self._on_ruling, self._clock = report, on_ruling, clock
        self._every = every
        self._wake = threading.Event()
        self._closed = False
        self._read_at = self._lease_at = clock()
        self._lease_looked_at: float | None = None
        self._lease_seconds = 0.0
        self.ever_read = False
        self._files: attempts.AttemptFiles | None = None
        self._lock = threading.Lock()
        self.record: Record | None = None
        self.denied: SpotError | None = None
        """Why the record could not be read, where trying again does not help."""

    def start(self) -> None:
        """Begin, with a look at once."""
        threading.Thread(target=self._loop, name="reporter", daemon=True).start()

    def pace(self, every: float) -> None:
        """Change how often it looks."""
        if every != self._every:
            self._every = every
            self._wake.set()

    def close(self) -> None:
        """Stop; returns at once."""
        self._closed = True
        self._wake.set()

    def report(self) -> None:
        """Write one heartbeat.

        :raises StoreError: it could not be written.
        """
        beat = self._report()
        if beat is not None:
            attempts.write_heartbeat(self._store, beat)

    def _loop(self) -> None:
        while not self._closed:
            begun = self._clock()
            try:
                self.report()
            except StoreError as error:
                log.warning("the heartbeat could not be written: %s", error)
            except Exception:
                # The edge of a thread: the fence has to be read whatever a heartbeat is made of.
                log.exception("the heartbeat could not be made; this is a fault of ours")
            self._on_ruling(self.look())
            self._wake.wait(max(0.0, self._every - (self._clock() - begun)))
            self._wake.clear()

    def confirm(self) -> None:
        """Ask the record, now, whether a checkpoint may be committed.

        :raises Fenced: it may not.
        :raises StoreUnavailable: nobody can tell.
        """
        ruling = self.look()
        if ruling.order is Order.GO_ON:
            raise StoreUnavailable(ruling.message)
        if not ruling.may_commit:
            raise Fenced(f"no checkpoint may be committed: {ruling.message}")

    def look(self) -> Ruling:
        """Look at the run directory and return what follows from it."""
        with self._lock:
            readable, found = self._read_record()
            sight = Sight(
                record=found,
                readable=readable,
                claims=self._files.claims if self._files else (),
                unread_seconds=self._clock() - self._read_at,
                ever_read=self.ever_read,
                lease_seconds=self._lease(),
            )
        return rule(sight, self.me)

    def _read_record(self) -> tuple[bool, Record | None]:
        try:
            self._files = attempts.observe(self._store, self.me.attempt, self._files)
            loaded = record.load(self._store)
        except (StoreError, ContractError) as error:
            if not isinstance(error, StoreUnavailable):
                log.warning("the record cannot be read: %s", error)
            self.denied = error if not isinstance(error, StoreUnavailable) else None
            return False, None
        self.denied, self.ever_read, self._read_at = None, True, self._clock()
        self.record = loaded.record if loaded else None
        return True, self.record

    def _lease(self) -> float:
        """Return the age of the lease by the store's clock, or for how long nobody could tell."""
        now = self._clock()
        due = min(60.0, self.me.orphan_after_seconds / 4)
        if self._lease_looked_at is not None and now - self._lease_looked_at < due:
            return self._lease_seconds
        self._lease_looked_at = now
        try:
            lease = owner.load(self._store)
        except StoreError:
            lease = None
        written = self._files.heartbeat_modified if self._files else None
        if lease is not None and written is not None:
            self._lease_at = now
            self._lease_seconds = max(0.0, (written - lease[1]).total_seconds())
        else:
            self._lease_seconds = now - self._lease_at
        return self._lease_seconds
