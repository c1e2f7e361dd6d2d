"""Opening a training run: ``execute`` creates its record, adopts it, or begins its next generation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_spot.backend import Backend
from airflow_spot.core.ending import close, is_success
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.durations import instant_or_duration
from airflow_spot.errors import OwnedByAnother, StoppedByPerson
from airflow_spot.rundir import codec, owner, record
from airflow_spot.rundir.record import MAX_RACES, RecordMoved, outraced
from airflow_spot.rundir.store import Store
from airflow_spot.rundir.values import Counters, Desired, Owner, OwnerLease, Record, Result

OWNER_STALE_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Opened:
    """What ``execute`` found or made.

    :param how: ``created``, ``adopted``, ``cleared``, ``taken over`` or ``finished``.
    """

    record: Record
    how: str

    @property
    def result(self) -> Result | None:
        """The result that is already there."""
        return self.record.result


def open_training_run(
    store: Store,
    backend: Backend,
    *,
    run_key: str,
    who: Owner,
    spec: TrainingSpec,
    try_number: int,
    max_tries: int,
    began: datetime,
) -> Opened:
    """Create a training run, or adopt the one that is there. Runs on the worker; safe to repeat.

    :param began: start of the DAG run: a deadline that is a duration counts from it.
    :raises OwnedByAnother: another task waits for this training run.
    :raises StoppedByPerson: a person stopped it, and nobody cleared the task since.
    """
    for _ in range(MAX_RACES):
        loaded = record.load(store)
        try:
            if loaded is None:
                fresh = _new(run_key, who, spec, try_number, max_tries, began, backend.now())
                opened, done = Opened(fresh, "created"), record.create(store, fresh)
            else:
                opened = _reopen(store, backend, loaded.record, who, spec, try_number, max_tries)
                done = record.save(store, opened.record, loaded.etag)
        except RecordMoved:
            continue
        if opened.result is None:
            owner.renew(store, OwnerLease(owner=who, generation=done.record.generation))
        return Opened(done.record, opened.how)
    raise outraced(store)


def _new(
    run_key: str, who: Owner, spec: TrainingSpec, try_number: int, max_tries: int, began: datetime, now: datetime
) -> Record:
    return Record(
        run_key=run_key,
        owner=who,
        spec=codec.encode(spec),
        try_number=try_number,
        max_tries=max_tries,
        began_at=now,
        deadline=_deadline(spec, began),
    )


def _deadline(spec: TrainingSpec, began: datetime) -> datetime | None:
    if spec.deadline is None:
        return None
    given = instant_or_duration(spec.deadline, name="deadline")
    return began + given if isinstance(given, timedelta) else given


def _reopen(
    store: Store, backend: Backend, rec: Record, who: Owner, spec: TrainingSpec, try_number: int, max_tries: int
) -> Opened:
    now = backend.now()
    if rec.owner != who:
        _check_owner(store, rec, now)
        return Opened(_cleared(rec, who, spec, try_number, max_tries, now, fresh=False), "taken over")
    if max_tries > rec.max_tries:
        fresh = spec.on_clear == "fresh" or is_success(rec.result)
        return Opened(_cleared(rec, who, spec, try_number, max_tries, now, fresh=fresh), "cleared")
    if rec.desired.state == "stopped" and rec.desired.by_person:
        raise StoppedByPerson(
            f"{store.uri} was stopped by {rec.desired.who}: {rec.desired.why or 'no reason given'}. "
            "Clear the task to go on from the last checkpoint."
        )
    rec = replace(rec, try_number=max(try_number, rec.try_number), spec=codec.encode(spec))
    if is_success(rec.result):
        return Opened(rec, "finished")
    if rec.result is not None:
        rec = replace(rec, result=None, try_from=rec.next_attempt)
    return Opened(replace(rec, desired=Desired(at=now)), "adopted")


def _check_owner(store: Store, rec: Record, now: datetime) -> None:
    lease = owner.load(store)
    age = (now - lease[1]).total_seconds() if lease else OWNER_STALE_SECONDS
    if rec.result is None and age < OWNER_STALE_SECONDS:
        held = rec.owner
        raise OwnedByAnother(
            f"{store.uri} belongs to task {held.task_id!r} (map index {held.map_index}) of {held.dag_id!r}, run "
            f"{held.run_id!r}, in deployment {held.deployment!r}, which waits for it. Give this task another run_key=, "
            "or wait until that one has ended.",
            owner=codec.encode(held),
        )


def _cleared(
    rec: Record, who: Owner, spec: TrainingSpec, try_number: int, max_tries: int, now: datetime, *, fresh: bool
) -> Record:
    """One write after which no job belongs to two generations: every open attempt closes, budgets begin anew."""
    closed = tuple(close(item, now, "the task was cleared") for item in rec.attempts)
    old = rec.counters
    counters = replace(old, reclaims=0, infrastructure=0, capacity=0) if not fresh else Counters()
    return replace(
        rec,
        owner=who,
        spec=codec.encode(spec),
        generation=rec.generation + 1,
        try_number=try_number,
        max_tries=max_tries,
        desired=Desired(at=now),
        attempts=closed,
        result=None,
        promotion=None,
        stay_until=None,
        promote_at=None,
        suspect=(),
        began_at=now,
        deadline=_deadline(spec, now),
        fresh=fresh,
        last_live=None if fresh else rec.last_live,
        line_from=rec.next_attempt if fresh else rec.line_from,
        try_from=rec.next_attempt,
        answered=rec.result.attempt if rec.result is not None and is_success(rec.result) else rec.answered,
        counters=counters,
    )
