"""Ends a training when its task is ended from outside, in the process where that happens.

Marking a task failed, success or skipped, or failing its DAG run, happens in the API server, and a task that its
executor lost for good is failed by the scheduler. There the listener gets a row of Airflow's database. In a worker it
gets the running task, which ends by itself: nothing to do. A Clear calls no listener; the next ``execute`` sees to it.

The state change is not held up: its transaction is committed first, then a thread of our own stops the training.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from airflow.listeners import hookimpl

log = logging.getLogger(__name__)

OPERATOR = "SpotTrainingOperator"
POINTER = "training_run"
TRIES, PAUSE_SECONDS = 4, 5.0
_ROW = "airflow.models.taskinstance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A task that was ended from outside, in plain values: its row is gone when the thread begins.

    :param pointer: its XCom ``training_run``; None: it pushed none.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    state: str
    by_person: bool
    pointer: dict[str, Any] | None


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any) -> None:
    """Stop the training of a task that was marked failed, or that Airflow gave up."""
    _notice(previous_state, task_instance, "failed")


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    """Stop the training of a task that was marked success."""
    _notice(previous_state, task_instance, "success")


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:
    """Stop the training of a task that was marked skipped."""
    _notice(previous_state, task_instance, "skipped")


def _notice(previous_state: Any, row: Any, state: str) -> None:
    """Schedule the stop of a task of ours; whatever goes wrong here, the state change goes on."""
    try:
        if not _is_row(row) or str(getattr(row.state, "value", row.state)) != state:
            return
        ended = _read(row, state, by_person=previous_state is None)
        if ended is not None:
            _after_commit(row, lambda: _pool().submit(stop, ended))
    except Exception:  # the edge to Airflow: a state change must never fail because of us
        log.exception(
            "airflow_spot: the task's training was not looked at; `airflow-spot orphans` lists what still runs"
        )


def _is_row(task_instance: Any) -> bool:
    """Return whether it is a row of the database, not a task that runs in this worker."""
    return any(base.__module__ == _ROW for base in type(task_instance).__mro__)


def _read(row: Any, state: str, *, by_person: bool) -> Ended | None:
    """Return what the stop needs to know, None for a task that is not ours.

    A subclass of the operator has another name; its pointer gives it away.
    """
    pointer = _pointer(row)
    if pointer is None and row.operator != OPERATOR:
        return None
    return Ended(
        dag_id=row.dag_id,
        run_id=row.run_id,
        task_id=row.task_id,
        map_index=row.map_index,
        try_number=row.try_number,
        state=state,
        by_person=by_person,
        pointer=pointer,
    )


def _pointer(row: Any) -> dict[str, Any] | None:
    from airflow.models.xcom import XComModel
    from sqlalchemy.orm import object_session

    session = object_session(row)
    if session is None:
        return None
    query = XComModel.get_many(
        key=POINTER, run_id=row.run_id, dag_ids=row.dag_id, task_ids=row.task_id, map_indexes=row.map_index
    )
    with session.no_autoflush:
        found = session.execute(query.with_only_columns(XComModel.value)).first()
    value = XComModel.deserialize_value(found) if found else None
    return value if isinstance(value, dict) and "uri" in value else None


def _after_commit(row: Any, action: Callable[[], Any]) -> None:
    """Act once the state is in the database; never, if it does not get there."""
    from sqlalchemy import event
    from sqlalchemy.orm import object_session

    session = object_session(row)
    if session is None:
        action()
        return

    waiting = [action]

    def settled(_: Any, *, kept: bool) -> None:
        # A savepoint settles nothing; and handlers cannot be taken off a session while it calls them.
        if waiting and not session.in_nested_transaction():
            last = waiting.pop()
            if kept:
                last()

    event.listen(session, "after_commit", partial(settled, kept=True))
    event.listen(session, "after_rollback", partial(settled, kept=False))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, thread_name_prefix="airflow-spot-stop")


def stop(ended: Ended, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Stop the training run of a task: again where AWS or the store gives no answer, then left to the lease."""
    from airflow_spot.errors import BatchUnavailable, StoreUnavailable

    for attempt in range(TRIES):
        try:
            report = _stop_once(ended)
        except (BatchUnavailable, StoreUnavailable) as error:
            log.warning("airflow_spot: %s of %s was not stopped yet: %s", ended.task_id, ended.dag_id, error)
            sleep(PAUSE_SECONDS * (attempt + 1))
        except Exception:  # the edge of a thread: nobody would see it
            log.exception(
                "airflow_spot: %s of %s was not stopped; see `airflow-spot orphans`", ended.task_id, ended.dag_id
            )
            return
        else:
            log.info("airflow_spot: %s of %s was marked %s: %s", ended.task_id, ended.dag_id, ended.state, report)
            return
    log.error("airflow_spot: %s of %s was not stopped; see `airflow-spot orphans`", ended.task_id, ended.dag_id)


def _stop_once(ended: Ended) -> Any:
    from airflow_spot import config
    from airflow_spot.rundir import layout
    from airflow_spot.rundir.values import Owner
    from airflow_spot.session import connect
    from airflow_spot.stopping import stop_for

    pointer = ended.pointer or {}
    uri = pointer.get("uri")
    if uri is None:
        key = layout.run_key(dag_id=ended.dag_id, run_id=ended.run_id, task_id=ended.task_id, map_index=ended.map_index)
        uri = f"{config.run_root()}/{key}"
    connection = {key: pointer[key] for key in ("aws_conn_id", "region_name") if key in pointer}
    return stop_for(
        connect(uri, **connection),
        owner=Owner(
            deployment=pointer.get("deployment") or config.deployment(),
            dag_id=ended.dag_id,
            run_id=ended.run_id,
            task_id=ended.task_id,
            map_index=ended.map_index,
        ),
        try_number=ended.try_number,
        who="a person" if ended.by_person else "the scheduler",
        why=f"the task was marked {ended.state}",
        by_person=ended.by_person,
    )
