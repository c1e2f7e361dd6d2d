"""``attempts/aNNNN/``: what an attempt's agent claims, reports and says last; and what the Airflow side concluded.

What an agent wrote is untrusted: a file that is malformed, too large or names another attempt counts as absent, and
what it says is cut to bounds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_spot.rundir import codec
from airflow_spot.rundir.conditional import Refused, Written, create_json
from airflow_spot.rundir.layout import attempt_dir, claim_key, end_key, heartbeat_key, outcome_key
from airflow_spot.rundir.reading import read, skip
from airflow_spot.rundir.untrusted import bounded
from airflow_spot.rundir.values import Attempt, Claim, End, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from airflow_spot.rundir.store import Meta, Store

W = TypeVar("W", Claim, End, Heartbeat)
_NUMBERED = re.compile(r"(claim|end)-([1-9]\d{0,5})\.json")
_AT_MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFiles:
    """What lies under one attempt.

    :param claims: ascending by incarnation; the last 20.
    :param end: of the highest claim; with no claim, the highest there is.
    :param etags: what was read, so that the next look reads only what changed.
    """

    claims: tuple[Claim, ...] = ()
    end: End | None = None
    heartbeat: Heartbeat | None = None
    heartbeat_modified: datetime | None = None
    etags: dict[str, tuple[str, Any]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def claim(self) -> Claim | None:
        """The claim that counts: the highest."""
        return self.claims[-1] if self.claims else None


def observe(store: Store, number: int, known: AttemptFiles | None = None) -> AttemptFiles:
    """Return all that lies under an attempt: one LIST, and a GET of each file that is not already ``known``."""
    listed = {item.key.removeprefix(attempt_dir(number)): item for item in store.list(attempt_dir(number))}
    look = _Look(store, number, known.etags if known else {})
    claims = tuple(
        filter(None, (look.numbered(Claim, listed[f"claim-{n}.json"], n) for n in _highest(listed, "claim")))
    )
    ends = [claims[-1].incarnation] if claims else _highest(listed, "end")
    found = (look.numbered(End, listed[f"end-{n}.json"], n) for n in reversed(ends) if f"end-{n}.json" in listed)
    end = next(filter(None, found), None)
    if end and claims and end.job != claims[-1].job:
        skip(store, end_key(number, end.incarnation), f"it names job {end.job!r}, its claim {claims[-1].job!r}")
        end = None
    beat = look.one(Heartbeat, listed["heartbeat.json"]) if "heartbeat.json" in listed else None
    return AttemptFiles(
        claims=claims,
        end=end,
        heartbeat=beat and beat[0],
        heartbeat_modified=beat and beat[1],
        etags=look.seen,
    )


def _highest(names: Iterable[str], kind: str) -> list[int]:
    numbers = (int(match[2]) for name in names if (match := _NUMBERED.fullmatch(name)) and match[1] == kind)
    return sorted(numbers)[-_AT_MOST:]


class _Look:
    """Reads files of one attempt, or takes them from an earlier look where the ETag is the same."""

    def __init__(self, store: Store, number: int, known: dict[str, tuple[str, Any]]) -> None:
        self._store, self._number, self._known = store, number, known
        self.seen: dict[str, tuple[str, Any]] = {}

    def one(self, cls: type[W], item: Meta) -> tuple[W, datetime] | None:
        etag, found = self._known.get(item.key, ("", None))
        if etag != item.etag or not etag:
            found = _read(self._store, item.key, cls)
        if found and found[0].attempt != self._number:
            skip(self._store, item.key, f"it names attempt {found[0].attempt}")
            found = None
        self.seen[item.key] = (item.etag, found)
        # The listing's time: an unchanged heartbeat that was written again has a new one.
        return (found[0], max(found[1], item.modified)) if found else None

    def numbered(self, cls: type[W], item: Meta, incarnation: int) -> W | None:
        found = self.one(cls, item)
        if found and found[0].incarnation != incarnation:
            skip(self._store, item.key, f"it names incarnation {found[0].incarnation}")
            return None
        return found and found[0]


def _read(store: Store, key: str, cls: type[W]) -> tuple[W, datetime] | None:
    found = read(store, key, cls)
    return (bounded(found[0]), found[1]) if found else None


def claims(store: Store, number: int) -> list[Claim]:
    """Return the claims on an attempt, ascending by incarnation."""
    return list(observe(store, number).claims)


def end(store: Store, number: int) -> End | None:
    """Return an attempt's last word: the highest claim's; with no claim, the highest there is."""
    return observe(store, number).end


def heartbeat(store: Store, number: int) -> tuple[Heartbeat, datetime] | None:
    """Return an attempt's heartbeat and when the store took it, by one GET."""
    found = _read(store, heartbeat_key(number), Heartbeat)
    if found and found[0].attempt != number:
        skip(store, heartbeat_key(number), f"it names attempt {found[0].attempt}")
        return None
    return found


def claim(store: Store, value: Claim) -> Written[Claim] | Refused:
    """Claim an attempt, create-only: the agent's first act. Refused: another agent has this incarnation."""
    return create_json(store, claim_key(value.attempt, value.incarnation), value)


def write_heartbeat(store: Store, value: Heartbeat) -> str:
    """Report progress, over the report before."""
    return store.put(heartbeat_key(value.attempt), codec.dumps(value))


def write_end(store: Store, value: End) -> Written[End] | Refused:
    """Say the last word, create-only. Refused: it was said."""
    return create_json(store, end_key(value.attempt, value.incarnation), value)


def write_outcome(store: Store, value: Attempt) -> None:
    """Keep an attempt that leaves the record (the Airflow side)."""
    store.put(outcome_key(value.number), codec.dumps(value))


def outcome(store: Store, number: int) -> Attempt | None:
    """Return an attempt that has left the record."""
    found = read(store, outcome_key(number), Attempt)
    return found and found[0]
