"""Watching a deadline over training runs: what :class:`airflow_spot.sensors.deadline.SpotDeadlineSensor` waits for.

A look keeps nothing that counts: whatever a restarted triggerer has to know is in the run directories, and a request
that is posted twice bears the same id and is one request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_spot.durations import instant_or_duration
from airflow_spot.errors import ConfigurationError
from airflow_spot.links.training import POINTER
from airflow_spot.triggers.training import Backoff, in_thread, outages

if TYPE_CHECKING:
    from airflow_spot.core.spec import TrainingSpec
    from airflow_spot.rundir.store import Store
    from airflow_spot.rundir.values import Record, Request
    from airflow_spot.session import Session

log = logging.getLogger(__name__)

GRACE = timedelta(hours=1)
"""After the deadline: then the sensor gives up."""
BEFORE_BEGIN_SECONDS = 10.0
"""The poll while a training run has not begun and its own pace is unknown."""
SHORTEST_SECONDS = 0.5
_OVER = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class Status(StrEnum):
    """How a watch ends."""

    FIRED = "fired"
    SKIPPED = "skipped"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The end of a watch.

    :param runs: the training runs that were promoted, by us or before us.
    """

    status: Status
    message: str
    at: datetime
    runs: tuple[str, ...] = ()

    def event(self) -> dict[str, Any]:
        """Return it as the trigger's event."""
        return {
            "status": self.status.value,
            "message": self.message,
            "at": self.at.isoformat(),
            "runs": [*self.runs],
        }


class Tasks(Protocol):
    """What Airflow knows of the watched tasks."""

    def states(self, task_id: str) -> Mapping[int, str | None] | None:
        """Return the state of each map index (-1: not mapped), or None where it cannot be read."""

    def pointer(self, task_id: str, map_index: int) -> Mapping[str, Any] | None:
        """Return the XCom that leads to a training run, or None before there is one."""


@dataclass(frozen=True, slots=True)
class AirflowTasks:
    """The tasks of one DAG run, asked through the process's connection to Airflow's API."""

    dag_id: str
    run_id: str

    def states(self, task_id: str) -> Mapping[int, str | None] | None:
        """Return the state of each map index (-1: not mapped), or None where it cannot be read."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        try:
            found = RuntimeTaskInstance.get_task_states(
                dag_id=self.dag_id, task_ids=[task_id], run_ids=[self.run_id]
            ).get(self.run_id, {})
        except Exception as error:  # the edge to Airflow's API: without it the key rule finds the training run
            log.debug("The states of %s cannot be read: %s", task_id, error)
            return None
        states = {}
        for key, state in found.items():
            index = key.removeprefix(task_id).lstrip("_")
            states[int(index) if index else -1] = None if state is None else str(getattr(state, "value", state))
        return states

    def pointer(self, task_id: str, map_index: int) -> Mapping[str, Any] | None:
        """Return the XCom that leads to a training run, or None before there is one."""
        from airflow.sdk.execution_time.xcom import XCom

        try:
            found = XCom.get_one(
                key=POINTER, dag_id=self.dag_id, run_id=self.run_id, task_id=task_id, map_index=map_index
            )
        except Exception as error:  # as above
            log.debug("The pointer of %s cannot be read: %s", task_id, error)
            return None
        return found if isinstance(found, Mapping) else None


@dataclass(frozen=True, slots=True)
class _Seen:
    """One training run at one look."""

    uri: str
    over: bool = False
    began: bool = False
    fired: bool = False
    promote_at: datetime | None = None
    deadline: datetime | None = None
    poll_seconds: float = BEFORE_BEGIN_SECONDS
    wrong: str = ""


@dataclass(slots=True, kw_only=True)
class Watch:
    """Training runs, a deadline, and who asks.

    :param task_ids: the tasks that are watched, all of one DAG run.
    :param deadline: an ISO instant, or a duration from ``began``.
    :param began: start of the DAG run.
    :param who: shown in the record as the one who asked.
    :param open_session: returns the session of a run directory, given the pointer that led there.
    """

    dag_id: str
    run_id: str
    task_ids: Sequence[str]
    deadline: str
    began: datetime
    downstream_seconds: float
    who: str
    run_root: str | None
    poll_seconds: float
    tasks: Tasks
    open_session: Callable[[str, Mapping[str, Any]], Session]
    say: Callable[[str], None] = log.info
    posted: set[str] = field(default_factory=set)
    pointers: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)

    def look(self) -> float | Decided:
        """Post what is due; return the decision, or the seconds until the next look.

        :raises StoreUnavailable: or another error of the store or of AWS: look again.
        """
        now: datetime | None = None
        seen = []
        for task_id in self.task_ids:
            for index, state in self._indices(task_id).items():
                pointer = self._pointer(task_id, index)
                session = self.open_session(self._uri(task_id, index, pointer), pointer or {})
                now = session.backend.now()
                seen.append(self._look_at(session.store, task_id, index, state, now))
        assert now is not None
        return self._conclude(seen, now)

    def instant(self, counted_from: datetime) -> datetime:
        """Return the deadline of a generation that began then."""
        given = instant_or_duration(self.deadline, name="deadline")
        return counted_from + given if isinstance(given, timedelta) else given

    def _indices(self, task_id: str) -> Mapping[int, str | None]:
        states = self.tasks.states(task_id)
        return states or {-1: None}

    def _pointer(self, task_id: str, index: int) -> Mapping[str, Any] | None:
        key = (task_id, index)
        if key not in self.pointers and (found := self.tasks.pointer(task_id, index)):
            self.pointers[key] = found
        return self.pointers.get(key)

    def _uri(self, task_id: str, index: int, pointer: Mapping[str, Any] | None) -> str:
        from airflow_spot.config import run_root
        from airflow_spot.rundir.layout import run_key

        if pointer:
            return str(pointer["uri"])
        key = run_key(dag_id=self.dag_id, run_id=self.run_id, task_id=task_id, map_index=index)
        return f"{run_root(self.run_root)}/{key}"

    def _look_at(self, store: Store, task_id: str, index: int, state: str | None, now: datetime) -> _Seen:
        from airflow_spot.rundir import record

        loaded = record.load(store)
        deadline = self.instant(self.began)
        if loaded is None or not self._is_ours(loaded.record, task_id, index):
            if loaded is None:
                self._post_deadline(store, 1, self.began)
            return _Seen(uri=store.uri, over=state in _OVER or now >= deadline, deadline=deadline)
        return self._look_at_record(store, loaded.record, now)

    def _is_ours(self, record: Record, task_id: str, index: int) -> bool:
        owner = record.owner
        found = (owner.dag_id, owner.run_id, owner.task_id, owner.map_index)
        return found == (self.dag_id, self.run_id, task_id, index)

    def _look_at_record(self, store: Store, record: Record, now: datetime) -> _Seen:
        from airflow_spot.core.spec import TrainingSpec
        from airflow_spot.rundir import codec

        spec = codec.decode(TrainingSpec, record.spec, what=f"{store.uri}: spec")
        if wrong := _cannot_keep(spec):
            return _Seen(uri=store.uri, began=True, wrong=f"{store.uri}: {wrong}")
        counted_from = self.began if record.generation == 1 else record.began_at or self.began
        self._post_deadline(store, record.generation, counted_from)
        over = record.result is not None
        fired = _moved(record, spec) or self._id("promote", record.generation, "") in record.applied
        if not (over or fired) and record.promote_at is not None and record.promote_at <= now:
            self._post_promotion(store, record)
            fired = True
        return _Seen(
            uri=store.uri,
            over=over,
            began=True,
            fired=fired,
            promote_at=record.promote_at,
            deadline=self.instant(counted_from),
            poll_seconds=spec.poll_seconds,
        )

    def _conclude(self, seen: Sequence[_Seen], now: datetime) -> float | Decided:
        if wrong := [item.wrong for item in seen if item.wrong]:
            return Decided(status=Status.FAILED, message="; ".join(wrong), at=now)
        waiting = [item for item in seen if not (item.fired or item.over)]
        if waiting:
            return self._wait(seen, waiting, now)
        if runs := tuple(item.uri for item in seen if item.fired):
            message = f"the deadline rule moved {len(runs)} of {len(seen)} training runs to dependable capacity"
            return Decided(status=Status.FIRED, message=message, at=now, runs=runs)
        message = "every watched training run ended, or never began, before a promotion was due"
        return Decided(status=Status.SKIPPED, message=message, at=now)

    def _wait(self, seen: Sequence[_Seen], waiting: Sequence[_Seen], now: datetime) -> float | Decided:
        last = max(item.deadline for item in seen if item.deadline is not None)
        if now >= last + GRACE:
            names = ", ".join(item.uri for item in waiting)
            message = f"an hour after the deadline ({last.isoformat()}) still neither ended nor promoted: {names}"
            return Decided(status=Status.TIMED_OUT, message=message, at=now)
        near = [(item.promote_at - now).total_seconds() for item in waiting if item.promote_at]
        pace = min(item.poll_seconds for item in waiting)
        return max(SHORTEST_SECONDS, min([self.poll_seconds, pace, *near]))

    def _post_deadline(self, store: Store, generation: int, counted_from: datetime) -> None:
        deadline = self.instant(counted_from)
        request = self._request(
            "deadline",
            generation,
            at=counted_from,
            detail=deadline.isoformat(),
            deadline=deadline,
            downstream_seconds=self.downstream_seconds,
            why=f"to be done by {deadline:%Y-%m-%d %H:%M:%S} UTC",
        )
        self._post(store, request, f"{store.uri}: deadline {deadline.isoformat()} for generation {generation}")

    def _post_promotion(self, store: Store, record: Record) -> None:
        request = self._request(
            "promote",
            record.generation,
            at=record.began_at or self.began,
            detail="",
            why="the deadline can be kept only from dependable capacity now",
        )
        self._post(store, request, f"{store.uri}: promotion, for the deadline is near: {record.why}")

    def _post(self, store: Store, request: Request, said: str) -> None:
        from airflow_spot.rundir.requests import post

        if (mark := f"{store.uri} {request.id}") not in self.posted:
            post(store, request)
            self.posted.add(mark)
            self.say(said)

    def _request(self, kind: str, generation: int, *, detail: str, **fields: Any) -> Request:
        from airflow_spot.rundir.requests import new_request

        return new_request(kind, who=self.who, generation=generation, id=self._id(kind, generation, detail), **fields)

    def _id(self, kind: str, generation: int, detail: str) -> str:
        text = f"{self.who} {kind} {generation} {detail} {self.downstream_seconds}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cannot_keep(spec: TrainingSpec) -> str:
    """Return why a training run can keep no deadline, or nothing where it can."""
    if spec.expected_seconds is None:
        return "a deadline needs expected_duration on the watched SpotTrainingOperator, and it has none"
    if spec.dependable is None:
        return "a deadline needs a tier that is not spot among the watched SpotTrainingOperator's tiers"
    return ""


def _moved(record: Record, spec: TrainingSpec) -> bool:
    """Whether it has moved to dependable capacity, or was told to, without us.

    A dependable tier that is the first choice anyway is where it begins, not where it was moved to.
    """
    if record.promotion is not None:
        return True
    last = next((attempt for attempt in record.attempts if attempt.number == record.last_live), None)
    if last is None or last.generation != record.generation:
        return False
    return last.market != "spot" and last.tier != spec.tiers[0].name


class SpotDeadlineTrigger(BaseTrigger):
    """Look at the watched training runs until the watch ends; its only event says how.

    :param watch: the fields of :class:`Watch` that are plain values.
    :param aws_conn_id: Airflow connection of run directories whose pointer is not known yet; so ``region_name``,
        ``verify`` and ``botocore_config``.
    """

    def __init__(
        self,
        *,
        watch: Mapping[str, Any],
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        verify: bool | str | None = None,
        botocore_config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.watch = dict(watch)
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        self.botocore_config = dict(botocore_config) if botocore_config else None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what another triggerer needs to go on."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "watch": self.watch,
            "aws_conn_id": self.aws_conn_id,
            "region_name": self.region_name,
            "verify": self.verify,
            "botocore_config": self.botocore_config,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look again and again; yield the decision, once."""
        watch = build_watch(self.serialize()[1], say=self.log.info)
        backoff = Backoff(watch.poll_seconds)
        while True:
            try:
                step = await in_thread(watch.look)
            except outages() as error:
                seconds = backoff.next(error)
                self.log.warning("No answer; next look in %.0f s: %s", seconds, error)
            except ConfigurationError as error:
                yield TriggerEvent({"status": Status.FAILED.value, "message": str(error), "at": "", "runs": []})
                return
            else:
                backoff.reset()
                if isinstance(step, Decided):
                    yield TriggerEvent(step.event())
                    return
                seconds = step
            await asyncio.sleep(seconds)


def build_watch(settings: Mapping[str, Any], *, say: Callable[[str], None]) -> Watch:
    """Return the watch of a trigger's arguments.

    :param settings: those of :class:`SpotDeadlineTrigger`.
    """
    from airflow_spot.session import connect

    plain = {key: value for key, value in settings.items() if key != "watch"}
    fields = dict(settings["watch"])
    began = datetime.fromisoformat(fields.pop("began"))

    def open_session(uri: str, pointer: Mapping[str, Any]) -> Session:
        known = {key: pointer[key] for key in ("aws_conn_id", "region_name") if key in pointer}
        return connect(uri, **{**plain, **known})

    return Watch(
        **fields,
        began=began,
        tasks=AirflowTasks(fields["dag_id"], fields["run_id"]),
        open_session=open_session,
        say=say,
    )
