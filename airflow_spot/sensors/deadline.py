"""``SpotDeadlineSensor``: the deadline that one operator cannot know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_spot.durations import as_text, duration, instant_or_duration
from airflow_spot.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Context

_LONG = timedelta(days=3650)


class SpotDeadlineSensor(BaseSensorOperator):
    """Watch the deadline of training runs, and promote them to dependable capacity when it is time.

    Use it for what one operator cannot know: several training runs, and tasks that follow the training. At its start
    it makes the deadline known, so that the policies plan with it from the first hour; at the last safe moment it asks
    for the promotion and succeeds with ``{fired, at, runs}``, also where the loop moved first. When the watched
    training runs end before that, or never begin, it is skipped. It gives up an hour after the deadline.

    It finds the training runs by their tasks, in the same DAG run; it adds no dependency.

    :param watch: a task, its id, or a list of them; of a mapped task every instance is watched.
    :param deadline: a timedelta counts from the DAG run's start, and from a Clear after that; a string is a template
        that gives an ISO instant or a duration.
    :param downstream_duration: what has to happen after the training before the deadline.
    :param run_root: where the watched tasks' run directories lie; else ``[airflow_spot] run_root``.
    :param aws_conn_id: Airflow connection for it; so ``region_name``, ``verify`` and ``botocore_config``.
    :param poke_interval: seconds between two looks at most; near the last safe moment it looks sooner.
    :param deferrable: False: the worker looks, in the sensor's ``mode``.
    """

    template_fields: Sequence[str] = (
        "watch",
        "deadline",
        "downstream_duration",
        "run_root",
        "aws_conn_id",
        "region_name",
    )
    ui_color = "#f4d9a8"

    def __init__(
        self,
        *,
        watch: Any,
        deadline: timedelta | datetime | str,
        downstream_duration: timedelta | float | str = timedelta(0),
        run_root: str | None = None,
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        verify: bool | str | None = None,
        botocore_config: Mapping[str, Any] | None = None,
        poke_interval: float = 30,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.watch = _task_ids(watch)
        self.deadline = deadline
        self.downstream_duration = downstream_duration
        self.run_root = run_root
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        self.botocore_config = botocore_config
        self.deferrable = deferrable
        self._check()

    def execute(self, context: Context) -> Any:
        """Watch: deferred, or here."""
        settings = self._settings(context)
        if self.deferrable:
            from airflow_spot.triggers.deadline import SpotDeadlineTrigger

            raise TaskDeferred(
                trigger=SpotDeadlineTrigger(**settings),
                method_name="execute_complete",
                timeout=self.execution_timeout,
            )
        # The watch knows its own time-out, which moves with a Clear of a watched task; the base class's would not.
        self.timeout = _LONG.total_seconds()
        return super().execute(context)

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        from airflow_spot.triggers.deadline import Decided, build_watch
        from airflow_spot.triggers.training import outages

        try:
            step = build_watch(self._settings(context), say=self.log.info).look()
        except outages() as error:
            self.log.warning("No answer, looking again later: %s", error)
            return PokeReturnValue(is_done=False)
        if isinstance(step, Decided):
            return PokeReturnValue(is_done=True, xcom_value=self._end(step.event()))
        return PokeReturnValue(is_done=False)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return, skip or fail as the trigger's event says."""
        return self._end(event)

    def _end(self, event: Mapping[str, Any]) -> dict[str, Any]:
        status, message = event["status"], event["message"]
        if status == "fired":
            self.log.info("%s: %s", message, ", ".join(event["runs"]))
            return {"fired": True, "at": event["at"], "runs": [*event["runs"]]}
        if status == "skipped" or (self.soft_fail and status == "timed out"):
            raise AirflowSkipException(message)
        if status == "timed out":
            raise AirflowSensorTimeout(message)
        raise AirflowFailException(message)

    def _check(self) -> None:
        """Refuse what is wrong already; templates are judged when they are rendered."""
        if not _is_template(self.deadline):
            instant_or_duration(self.deadline, name="deadline")
        if not _is_template(self.downstream_duration):
            duration(self.downstream_duration, name="downstream_duration")

    def _settings(self, context: Context) -> dict[str, Any]:
        """Return the trigger's arguments: plain values."""
        self._check()
        deadline = instant_or_duration(self.deadline, name="deadline")
        ti, dag_run = context["ti"], context["dag_run"]
        began = dag_run.start_date or dag_run.run_after or datetime.now(UTC)
        return {
            "watch": {
                "dag_id": ti.dag_id,
                "run_id": ti.run_id,
                "task_ids": [*self.watch],
                "deadline": as_text(deadline),
                "began": began.astimezone(UTC).isoformat(),
                "downstream_seconds": duration(self.downstream_duration, name="downstream_duration").total_seconds(),
                "who": f"sensor {ti.task_id}",
                "run_root": self.run_root,
                "poll_seconds": float(self.poke_interval),
            },
            "aws_conn_id": self.aws_conn_id,
            "region_name": self.region_name,
            "verify": self.verify,
            "botocore_config": self.botocore_config,
        }


def _is_template(value: Any) -> bool:
    return isinstance(value, str) and "{" in value


def _task_ids(watch: Any) -> list[str]:
    """Return the ids of the watched tasks: values in a template field, and no dependency."""
    items = watch if isinstance(watch, (list, tuple, set)) else [watch]
    ids = [item if isinstance(item, str) else getattr(item, "task_id", None) for item in items]
    if not ids or not all(isinstance(task_id, str) and task_id for task_id in ids):
        raise ConfigurationError(f"watch={watch!r}: give a training task, its task_id, or a list of them")
    return [task_id for task_id in ids if task_id]
