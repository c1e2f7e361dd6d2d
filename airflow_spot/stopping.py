"""A stop on behalf of one task: it works only while that task, in that try, is the one that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_spot import engine
from airflow_spot.errors import StoreDenied, StoreError
from airflow_spot.rundir import record, requests

if TYPE_CHECKING:
    from airflow_spot.rundir.values import Owner, Record
    from airflow_spot.session import Session


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
) -> engine.StopReport:
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
        sent = engine.terminate_known(session.backend, session.store.uri, known, why)
        risk = (
            "the store gives no answer, so jobs were ended by the ids that were known; one that was submitted since "
            f"is ended by its agent's lease or by `airflow-spot orphans --end`: {error}"
        )
        return engine.StopReport(stopped=False, why=risk, terminated=sent)
    if loaded is None:
        return engine.StopReport(stopped=False, why=f"{session.store.uri} holds no training run")
    found = loaded.record
    if found.owner != owner:
        held = found.owner
        return engine.StopReport(
            stopped=False, why=f"it belongs to task {held.task_id!r} of DAG {held.dag_id!r}, run {held.run_id!r} now"
        )
    if found.try_number > try_number:
        return engine.StopReport(stopped=False, why=f"try {found.try_number} of the task has taken over")
    generation = found.generation if generation is None else generation
    try:
        return engine.stop(
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
        return engine.StopReport(stopped=False, why=f"a stop request was left, for the record was not written: {error}")
