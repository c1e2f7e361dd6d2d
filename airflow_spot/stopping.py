"""Stopping a training run: the desired state first, then its jobs. For listener, ``on_kill``, command line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_spot.backend import Backend, is_ours
from airflow_spot.batch.requests import job_name, stop_reason
from airflow_spot.core.ending import is_success
from airflow_spot.core.seen import JobSeen
from airflow_spot.errors import StoreDenied, StoreError
from airflow_spot.rundir import record, requests
from airflow_spot.rundir.record import MAX_RACES, RecordMoved, outraced
from airflow_spot.rundir.store import Store
from airflow_spot.rundir.values import Attempt, AttemptState, Desired, Owner, Record

if TYPE_CHECKING:
    from airflow_spot.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """What a stop did.

    :param stopped: the record wants the training run stopped now.
    :param why: where it does not: the reason.
    :param terminated: job ids that were told to end.
    """

    stopped: bool
    why: str = ""
    terminated: tuple[str, ...] = ()


def stop(
    store: Store,
    backend: Backend,
    *,
    who: str,
    why: str,
    generation: int | None = None,
    try_number: int | None = None,
    by_person: bool = False,
) -> StopReport:
    """Stop a training run: desired state first, then the jobs. Runs anywhere; safe to repeat.

    :param generation: the one this stop was made for; with a higher one in the record nothing is done. None: any.
    :param by_person: the task's own retries do not undo it.
    :raises StoreUnavailable: where the record cannot be written, nothing else was done.
    """
    for _ in range(MAX_RACES):
        loaded = record.load(store)
        if loaded is None:
            return StopReport(stopped=False, why=f"{store.uri} holds no training run")
        rec = loaded.record
        if _is_newer(rec, generation, try_number):
            return StopReport(stopped=False, why=f"generation {rec.generation}, try {rec.try_number} has taken over")
        if _stop_is_news(rec, by_person=by_person):
            desired = Desired(state="stopped", who=who, why=why, by_person=by_person, at=backend.now())
            rec = replace(rec, desired=desired, promotion=None)
            try:
                record.save(store, rec, loaded.etag)
            except RecordMoved:
                continue
        return _terminate_all(store, backend, rec, why, generation, try_number)
    raise outraced(store)


def _stop_is_news(rec: Record, *, by_person: bool) -> bool:
    """Whether a stop has to be written: a person's also over one of ours, or over a failure that would be retried."""
    if by_person and not rec.desired.by_person and not is_success(rec.result):
        return rec.result is None or rec.result.retryable or rec.desired.state == "stopped"
    return rec.result is None and rec.desired.state != "stopped"


def _is_newer(rec: Record, generation: int | None, try_number: int | None) -> bool:
    if generation is None:
        return False
    return (rec.generation, rec.try_number) > (generation, try_number if try_number is not None else rec.try_number)


def _terminate_all(
    store: Store, backend: Backend, rec: Record, why: str, generation: int | None, try_number: int | None
) -> StopReport:
    """End each job that is not terminal, comparing the generation again before each."""
    sent: list[str] = []
    for attempt in rec.attempts:
        refs = [job.ref for job in _living(store.uri, backend, rec, attempt)]
        for ref in refs:
            current = record.load(store)
            if current is None or _is_newer(current.record, generation, try_number):
                return StopReport(stopped=False, why="a newer generation has taken over", terminated=tuple(sent))
            backend.terminate(ref, stop_reason(store.uri, why))
            sent.append(ref)
    return StopReport(stopped=True, terminated=tuple(sent))


def terminate_known(backend: Backend, uri: str, rec: Record, why: str) -> tuple[str, ...]:
    """End the jobs of a record that cannot be read anew, by their ids, where Batch shows them to be ours.

    :return: the ids that were told to end.
    """
    sent = []
    for attempt in rec.attempts:
        for job in _living(uri, backend, rec, attempt):
            backend.terminate(job.ref, stop_reason(uri, why))
            sent.append(job.ref)
    return tuple(sent)


def _living(uri: str, backend: Backend, rec: Record, attempt: Attempt) -> list[JobSeen]:
    """Return the jobs of an attempt that Batch shows to be ours and has not ended."""
    if attempt.terminal:
        return []
    if attempt.ref:
        found = list(backend.describe([attempt.ref]).values())
    elif attempt.state in (AttemptState.INTENDED, AttemptState.UNRESOLVED):
        name = job_name(uri, rec.run_key, attempt.number)
        found = backend.find(name, attempt.job_queue, attempt.intended_at)
    else:
        found = []
    return [job for job in found if not job.terminal and is_ours(job, uri, attempt.number)]


def stop_for(
    session: Session,
    *,
    owner: Owner,
    try_number: int,
    generation: int | None = None,
    who: str,
    why: str,
    by_person: bool = False,
    known: Record | None = None,
) -> StopReport:
    """Stop the training run of a task, unless another task owns it or a newer try has begun.

    Where the record cannot be written, a stop request is left for whoever runs the loop.

    :param generation: the one the task waited for; None where the caller cannot know: the record's.
    :param known: the record as it was seen last: its jobs are ended by their ids where the store gives no answer.
    """
    try:
        loaded = record.load(session.store)
    except StoreError as error:
        if known is None:
            raise
        sent = terminate_known(session.backend, session.store.uri, known, why)
        risk = (
            "the store gives no answer, so jobs were ended by the ids that were known; one that was submitted since "
            f"is ended by its agent's lease or by `airflow-spot orphans --end`: {error}"
        )
        return StopReport(stopped=False, why=risk, terminated=sent)
    if loaded is None:
        return StopReport(stopped=False, why=f"{session.store.uri} holds no training run")
    found = loaded.record
    if found.owner != owner:
        held = found.owner
        return StopReport(
            stopped=False, why=f"it belongs to task {held.task_id!r} of DAG {held.dag_id!r}, run {held.run_id!r} now"
        )
    if found.try_number > try_number:
        return StopReport(stopped=False, why=f"try {found.try_number} of the task has taken over")
    generation = found.generation if generation is None else generation
    try:
        return stop(
            session.store,
            session.backend,
            who=who,
            why=why,
            generation=generation,
            try_number=try_number,
            by_person=by_person,
        )
    except (record.RecordMoved, StoreDenied) as error:
        request = requests.new_request(
            "stop", who=who, why=why, generation=generation, by_person=by_person, try_number=try_number
        )
        requests.post(session.store, request)
        return StopReport(stopped=False, why=f"a stop request was left, for the record was not written: {error}")
