"""The loop of a training run, in the triggerer: it runs until the end, and its only event is the result."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_spot.links.training import BatchJobLink, job_url

if TYPE_CHECKING:
    from airflow_spot.engine import Finished, Loop, Superseded, Waiting
    from airflow_spot.rundir.values import Record
    from airflow_spot.session import Session

log = logging.getLogger(__name__)
T = TypeVar("T")

THREADS = 16
"""Threads of a triggerer that run the loop of all its training runs; a poll takes a fraction of a second."""
MAX_BACKOFF_SECONDS = 300.0
DENIED_SECONDS = 900.0
"""How long a refused read or write is waited out: a policy that is being edited must not end a training."""


@cache
def _pool() -> ThreadPoolExecutor:
    """Return threads of our own: those of :func:`asyncio.to_thread` belong to all triggers of the process."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="airflow-spot")


@cache
def _kill_pool() -> ThreadPoolExecutor:
    """Return threads that no poll can occupy."""
    return ThreadPoolExecutor(4, thread_name_prefix="airflow-spot-kill")


async def in_thread(function: Callable[..., T], *args: Any, pool: ThreadPoolExecutor | None = None) -> T:
    """Run a blocking function in our own threads, with the context that routes its log lines to the task."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(pool or _pool(), lambda: context.run(function, *args))


def phase(text: str) -> float:
    """Return a number from 0 to 1 that spreads the polls of many training runs over the interval."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / float(1 << 32)


class Backoff:
    """Waits that double while AWS or the store gives no answer.

    :param poll_seconds: the first wait.
    """

    def __init__(self, poll_seconds: float) -> None:
        self.poll_seconds = poll_seconds
        self.failures = 0
        self.waited = 0.0

    def reset(self) -> None:
        """Begin anew after an answer."""
        self.failures, self.waited = 0, 0.0

    def next(self, error: Exception) -> float:
        """Return the next wait, or raise the error where waiting does not help.

        :param error: what :func:`airflow_spot.engine.advance` raised.
        """
        from airflow_spot.errors import StoreError, StoreUnavailable

        refused = isinstance(error, StoreError) and not isinstance(error, StoreUnavailable)
        if refused and self.waited > DENIED_SECONDS:
            raise error
        seconds = min(self.poll_seconds * 2.0**self.failures, MAX_BACKOFF_SECONDS)
        self.failures = min(self.failures + 1, 20)
        self.waited += seconds
        return seconds


def outages() -> tuple[type[Exception], ...]:
    """Return the errors that say nothing about the training, and are waited out."""
    from airflow_spot.errors import BatchUnavailable, StoreError
    from airflow_spot.rundir.record import RecordMoved

    return BatchUnavailable, StoreError, RecordMoved


class SpotTrainingTrigger(BaseTrigger):
    """Run the loop of one training run until it has a result.

    :param run: the run directory.
    :param generation: the generation it was made for.
    :param try_number: the task's try it was made for.
    :param owner: ``{deployment, dag_id, run_id, task_id, map_index}`` of the task that waits.
    :param cancel_on_kill: whether a kill of the task ends the training.
    :param aws_conn_id: Airflow connection; so ``region_name``, ``verify`` and ``botocore_config``.
    """

    def __init__(
        self,
        *,
        run: str,
        generation: int,
        try_number: int,
        owner: Mapping[str, Any],
        poll_interval: float = 30.0,
        cancel_on_kill: bool = True,
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        verify: bool | str | None = None,
        botocore_config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.run_uri = run
        self.generation = generation
        self.try_number = try_number
        self.owner = dict(owner)
        self.poll_interval = poll_interval
        self.cancel_on_kill = cancel_on_kill
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        self.botocore_config = dict(botocore_config) if botocore_config else None
        self._loop: Loop | None = None
        self._region = region_name or ""
        self._shown: list[str] = []

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what another triggerer needs to go on."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "run": self.run_uri,
            "generation": self.generation,
            "try_number": self.try_number,
            "owner": self.owner,
            "poll_interval": self.poll_interval,
            "cancel_on_kill": self.cancel_on_kill,
            **self._connection(),
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Advance the training run again and again; yield its result, once."""
        from airflow_spot.engine import Finished, Waiting

        backoff = Backoff(self.poll_interval)
        first = phase(self.run_uri)
        while True:
            try:
                step = await in_thread(self._advance)
            except outages() as error:
                seconds = backoff.next(error)
                self.log.warning("No answer, nothing is decided; next look in %.0f s: %s", seconds, error)
                await asyncio.sleep(seconds)
                continue
            backoff.reset()
            if not isinstance(step, Waiting):
                finished = step if isinstance(step, Finished) else None
                yield TriggerEvent(self._event(finished))
                return
            await in_thread(self._show_job, step.record)
            await asyncio.sleep(step.seconds * first)
            first = 1.0

    def _event(self, finished: Finished | None) -> dict[str, Any]:
        """Return the event that resumes the task; None: another generation, try or task has taken our place."""
        from airflow_spot.rundir import codec

        event: dict[str, Any] = {
            "run": self.run_uri,
            "generation": self.generation,
            "try_number": self.try_number,
            "region": self._region,
        }
        return event | ({"result": codec.encode(finished.result)} if finished else {})

    async def on_kill(self) -> None:
        """End the training, if the task has truly been taken out of ``deferred``.

        Airflow calls this also for a healthy task that another triggerer has taken over, so this is a hint and asks
        first. The runner may cancel us within a second; the thread finishes all the same.
        """
        if self.cancel_on_kill:
            await in_thread(self._stop_if_left, pool=_kill_pool())

    def _advance(self) -> Waiting | Finished | Superseded:
        """Take the loop one look further; it keeps what it has read, and gets the connection as it is now."""
        from airflow_spot.engine import Loop, advance

        session = self._session()
        self._region = session.region
        if self._loop is None:
            self._loop = Loop(
                store=session.store,
                backend=session.backend,
                generation=self.generation,
                try_number=self.try_number,
                say=self.log.info,
            )
        self._loop.store, self._loop.backend = session.store, session.backend
        self._loop.object_modified = session.object_modified
        return advance(self._loop)

    def _session(self) -> Session:
        from airflow_spot.session import connect

        return connect(self.run_uri, **self._connection())

    def _task(self) -> dict[str, Any]:
        """Return what names the task to Airflow."""
        return {key: value for key, value in self.owner.items() if key != "deployment"}

    def _connection(self) -> dict[str, Any]:
        return {
            "aws_conn_id": self.aws_conn_id,
            "region_name": self.region_name,
            "verify": self.verify,
            "botocore_config": self.botocore_config,
        }

    def _show_job(self, record: Record) -> None:
        """Let the task's link lead to the newest job, as well as that goes: nothing depends on it.

        Twice for each: the worker, which leaves as we begin, writes an empty link over the first.
        """
        job = next((attempt.ref for attempt in reversed(record.attempts) if attempt.ref), None)
        if job is None or self._shown.count(job) > 1:
            return
        self._shown = [*self._shown[-1:], job]
        try:
            from airflow.sdk.execution_time.xcom import XCom

            XCom.set(key=BatchJobLink().xcom_key, value=job_url(job, self._region), **self._task())
        except Exception as error:  # the edge to Airflow's API: a link is no reason to fail
            log.debug("The link to job %s was not stored: %s", job, error)

    def _stop_if_left(self) -> None:
        from airflow_spot.rundir.values import Owner
        from airflow_spot.stopping import stop_for

        try:
            state = task_state(**self._task())
        except Exception as error:  # the edge of a thread that nobody may be waiting for
            log.warning("The task's state cannot be read, the training goes on: %s", error)
            return
        if state == "deferred":
            log.info("The task is still deferred: another triggerer has it, the training goes on")
            return
        loaded = self._loop.loaded if self._loop else None
        report = stop_for(
            self._session(),
            known=loaded.record if loaded else None,
            owner=Owner(**self.owner),
            try_number=self.try_number,
            generation=self.generation,
            who="trigger",
            why=f"the task was set to {state!r} while deferred" if state else "the task was cleared while deferred",
        )
        log.info("Stopped %s: %s", self.run_uri, report)


def task_state(*, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str | None:
    """Return the task's state as Airflow has it now; None: cleared, it will be scheduled again.

    :raises LookupError: Airflow does not know the task.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=map_index
    ).get(run_id, {})
    key = task_id if map_index < 0 else f"{task_id}_{map_index}"
    if key not in states:
        raise LookupError(f"Airflow has no task {key!r} in DAG run {run_id!r}")
    state = states[key]
    return str(getattr(state, "value", state)) if state is not None else None
