"""``SpotTrainingOperator``: one training on AWS Batch, on spot capacity as long as that is safe."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    TaskDeferralError,
    TaskDeferralTimeout,
    TaskDeferred,
)

from airflow_spot.errors import BatchUnavailable, ConfigurationError, StoppedByPerson, StoreError, StoreUnavailable
from airflow_spot.links.training import JOB, POINTER, BatchJobLink, TrainingRunLink
from airflow_spot.operators.arguments import check, deadline_text, plain_tiers, read_tiers, refuse_unknown, span

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_spot.core.model import Tier
    from airflow_spot.core.snapshot import Policy
    from airflow_spot.core.spec import TrainingSpec
    from airflow_spot.engine import Finished, Superseded
    from airflow_spot.opening import Opened
    from airflow_spot.rundir.values import Owner, Record, Result
    from airflow_spot.session import Session

_STOP_SECONDS = 20.0
"""How long a killed worker waits for its stop; Airflow kills the process after about a minute."""
_SLICE_SECONDS = 1.0


class SpotTrainingOperator(BaseOperator):
    """Train on AWS Batch, on spot capacity while the deadline allows it, on dependable capacity when it must be.

    Reclaims, promotions and retries of lost machines happen while the task is deferred; they take no worker slot and
    none of the task's own ``retries``. The task's return value is a summary of the training run.

    :param job_definition: name or ARN; it keeps image, GPUs, memory, job role, log driver and stop time-out.
    :param tiers: places to train, in order of preference, or a template that renders to a JSON list of them.
    :param command: what the container runs; with ``agent=True`` it is put behind ``spot-agent run … --``.
        None: the job definition's command, which must then begin with ``spot-agent run``.
    :param environment: variables for the container.
    :param container_overrides: as in ``BatchOperator``; so ``ecs_properties_override``, ``parameters``, ``tags``,
        ``share_identifier``, ``scheduling_priority_override``, ``aws_conn_id``, ``region_name``, ``verify``,
        ``botocore_config`` and ``awslogs_enabled``.
    :param poll_interval: seconds between two looks at AWS.
    :param deadline: a timedelta counts from the DAG run's start; a string is a template that gives an ISO instant or a
        duration. Needs ``expected_duration`` and a tier that is not spot.
    :param expected_duration: what the training takes on the dependable tier, uninterrupted.
    :param downstream_duration: what has to happen after it before the deadline.
    :param changeover: the most that a move between tiers costs, until this training run has shown more.
    :param on_infeasible: when the deadline cannot be kept any more: ``promote`` at once, or ``fail``.
    :param policy: a value of :mod:`airflow_spot.policies`; None: the default rule.
    :param max_reclaims: end after so many; None: no limit.
    :param promote_after_reclaims: go to the dependable tier after so many; None: never for that reason.
    :param max_infrastructure_failures: end after so many lost hosts, failed starts and the like.
    :param run_root: ``s3://bucket/prefix`` for run directories; else ``[airflow_spot] run_root``.
    :param run_key: a name under which the training goes on across DAG runs; the map index is always appended.
    :param agent: whether ``spot-agent`` runs in the container. Without it there is no resume and no fence.
    :param success_object: for ``agent=False``: the object whose existence says that the training is complete.
    :param trust_exit_code: for ``agent=False``: exit code 0 says so.
    :param keep_checkpoints: how many of the training run's line are kept.
    :param cancel_on_kill: whether a kill of the task ends the training.
    :param on_clear: after a Clear of the task: ``resume``, or ``fresh`` from the beginning.
    :param deferrable: False: the worker waits, and runs the same loop.
    """

    template_fields: Sequence[str] = (
        "job_definition",
        "tiers",
        "command",
        "environment",
        "container_overrides",
        "ecs_properties_override",
        "parameters",
        "tags",
        "share_identifier",
        "aws_conn_id",
        "region_name",
        "poll_interval",
        "deadline",
        "expected_duration",
        "downstream_duration",
        "changeover",
        "run_root",
        "run_key",
        "success_object",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "tiers": "json",
        "command": "json",
        "environment": "json",
        "container_overrides": "json",
        "ecs_properties_override": "json",
        "parameters": "json",
        "tags": "json",
    }
    operator_extra_links = (TrainingRunLink(), BatchJobLink())
    ui_color = "#f4d9a8"

    # job_definition and tiers are required; the defaults let a wrong argument be named before a missing one.
    def __init__(
        self,
        *,
        job_definition: str = "",
        tiers: Sequence[Tier | Mapping[str, Any]] | str = (),
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        container_overrides: Mapping[str, Any] | None = None,
        ecs_properties_override: Mapping[str, Any] | None = None,
        parameters: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        share_identifier: str | None = None,
        scheduling_priority_override: int | None = None,
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        verify: bool | str | None = None,
        botocore_config: Mapping[str, Any] | None = None,
        awslogs_enabled: bool = True,
        poll_interval: float | str | timedelta = 30,
        deadline: timedelta | datetime | str | None = None,
        expected_duration: timedelta | float | str | None = None,
        downstream_duration: timedelta | float | str = timedelta(0),
        changeover: timedelta | float | str = timedelta(minutes=15),
        on_infeasible: str = "promote",
        policy: Policy | None = None,
        max_reclaims: int | None = None,
        promote_after_reclaims: int | None = None,
        max_infrastructure_failures: int = 5,
        run_root: str | None = None,
        run_key: str | None = None,
        agent: bool = True,
        success_object: str | None = None,
        trust_exit_code: bool = False,
        keep_checkpoints: int = 3,
        cancel_on_kill: bool = True,
        on_clear: str = "resume",
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        refuse_unknown(kwargs, _known_arguments(type(self).__mro__))
        super().__init__(**kwargs)
        self.job_definition = job_definition
        self.tiers = plain_tiers(tiers)
        self.command = command
        self.environment = environment
        self.container_overrides = container_overrides
        self.ecs_properties_override = ecs_properties_override
        self.parameters = parameters
        self.tags = tags
        self.share_identifier = share_identifier
        self.scheduling_priority_override = scheduling_priority_override
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        self.botocore_config = botocore_config
        self.awslogs_enabled = awslogs_enabled
        self.poll_interval = poll_interval
        self.deadline = deadline
        self.expected_duration = expected_duration
        self.downstream_duration = downstream_duration
        self.changeover = changeover
        self.on_infeasible = on_infeasible
        self.policy = policy
        self.max_reclaims = max_reclaims
        self.promote_after_reclaims = promote_after_reclaims
        self.max_infrastructure_failures = max_infrastructure_failures
        self.run_root = run_root
        self.run_key = run_key
        self.agent = agent
        self.success_object = success_object
        self.trust_exit_code = trust_exit_code
        self.keep_checkpoints = keep_checkpoints
        self.cancel_on_kill = cancel_on_kill
        self.on_clear = on_clear
        self.deferrable = deferrable
        self.link_values: dict[str, dict[str, Any]] = {}
        self._handle: _Handle | None = None
        self._killed = False
        check(self)

    def execute(self, context: Context) -> dict[str, Any]:
        """Create or adopt the training run, then wait for its result: deferred, or here.

        :raises AirflowFailException: a set-up that cannot work, or a result that a retry would not change.
        """
        try:
            check(self)
            handle = self._locate(context)
            context["ti"].xcom_push(key=POINTER, value=self.link_values[POINTER])
            opened = self._open(context, handle)
        except (ConfigurationError, StoppedByPerson) as error:
            raise AirflowFailException(str(error)) from error
        except (StoreUnavailable, BatchUnavailable) as error:
            raise AirflowException(self._out_of_reach(error)) from error
        except StoreError as error:
            raise AirflowFailException(self._out_of_reach(error)) from error
        if opened.record.result is not None:
            return self._finish(opened.record.result)
        if self._killed:
            # What on_kill stopped was undone by opening: stop what is there now.
            said = self._stop("the task was killed") if self.cancel_on_kill else "the training goes on"
            raise AirflowException(f"the task was killed while it began: {said}")
        if not self.deferrable:
            return self._wait(handle, opened.record.generation, context)
        self.log.info("Deferring; the loop goes on in the triggerer. Training run: %s", handle.uri)
        raise self._deferral(handle, opened.record.generation)

    def _deferral(self, handle: _Handle, generation: int) -> TaskDeferred:
        return TaskDeferred(
            trigger=self._trigger(handle, generation),
            method_name="execute_complete",
            timeout=self.execution_timeout,
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the result that the trigger's event holds, as :meth:`execute` would."""
        from airflow_spot.rundir import codec
        from airflow_spot.rundir.values import Result

        event = event or {}
        handle = self._locate(context)
        raw = event.get("result")
        if raw is None or event.get("try_number", handle.try_number) != handle.try_number:
            self._wait_again_for_ours(handle)
            raise AirflowFailException(
                "another task has taken over this training run, or started its next generation; "
                "this task's part in it has ended"
            )
        self.link_values[POINTER]["region_name"] = event["region"]
        return self._finish(codec.decode(Result, raw, what="the trigger's event"))

    def _wait_again_for_ours(self, handle: _Handle) -> None:
        """Defer again where the event came from the trigger of an earlier try, and this try still waits.

        Airflow names triggers by a number that a database may use twice (SQLite does), so the last word of a cleared
        try's trigger can reach the next try.

        :raises TaskDeferred: this try is the one the training run belongs to.
        """
        from airflow_spot.rundir import record

        loaded = record.load(self._session(handle).store)
        if loaded is None:
            return
        found = loaded.record
        if (found.owner, found.try_number) == (handle.owner, handle.try_number):
            self.log.info("That was the trigger of an earlier try; waiting for generation %s", found.generation)
            raise self._deferral(handle, found.generation)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume as always; but end the training when the deferral timed out or the trigger failed: nobody waits."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout) as error:
            timed_out = isinstance(error, TaskDeferralTimeout)
            self._locate(context)
            self._stop(f"the task's execution_timeout passed: {error}" if timed_out else f"the trigger failed: {error}")
            raise

    def on_kill(self) -> None:
        """End the training when the worker's process is killed, by a person or by ``execution_timeout``."""
        self._killed = True
        if self._handle is None:
            self.log.info("Killed before anything was submitted")
        if not self.cancel_on_kill or self._handle is None:
            return
        # We may have interrupted a holder of any lock, so the stop works in a thread of its own, with its own clients.
        stopper = threading.Thread(target=self._stop, args=("the task was killed",), name="airflow-spot-kill")
        stopper.start()
        stopper.join(_STOP_SECONDS)

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Map the task; each instance has a training run of its own.

        Tiers become plain dicts here too: Airflow serializes what a mapped task shares.
        """
        refuse_unknown(kwargs, _known_arguments(cls.__mro__))
        if "tiers" in kwargs:
            kwargs["tiers"] = plain_tiers(kwargs["tiers"])
        if kwargs.get("policy") is not None:
            kwargs["policy"] = _policy_json(kwargs["policy"])
        partial: OperatorPartial = super().partial(**kwargs)
        return partial

    def _locate(self, context: Context) -> _Handle:
        """Work out where the training run lies, and what the links show."""
        from airflow_spot.config import deployment, run_root
        from airflow_spot.rundir import layout
        from airflow_spot.rundir.values import Owner

        ti = context["ti"]
        map_index = -1 if ti.map_index is None else ti.map_index
        key = layout.run_key(
            dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=map_index, given=self.run_key or None
        )
        handle = _Handle(
            uri=f"{run_root(self.run_root)}/{key}",
            run_key=key,
            owner=Owner(
                deployment=deployment(), dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=map_index
            ),
            try_number=ti.try_number,
        )
        self._handle = handle
        self.link_values[POINTER] = {
            "uri": handle.uri,
            "aws_conn_id": self.aws_conn_id,
            "region_name": self.region_name,
            "deployment": handle.owner.deployment,
        }
        return handle

    def _open(self, context: Context, handle: _Handle) -> Opened:
        """Check the set-up against AWS and create or adopt the record; nothing was submitted before this."""
        from airflow_spot.opening import open_training_run

        session = self._session(handle)
        spec = self.training_spec(bucket_region=session.bucket_region)
        self._check_set_up(session, spec)
        opened = open_training_run(
            session.store,
            session.backend,
            who=handle.owner,
            spec=spec,
            try_number=handle.try_number,
            max_tries=context["ti"].max_tries,
            began=_began(context),
            run_key=handle.run_key,
        )
        handle.generation = opened.record.generation
        if ref := next((attempt.ref for attempt in reversed(opened.record.attempts) if attempt.ref), None):
            self.link_values[JOB] = {"job_id": ref, "region_name": session.region}
        return opened

    def _check_set_up(self, session: Session, spec: TrainingSpec) -> None:
        """Refuse a set-up that cannot work; not beside a job that still runs, which has to be adopted first."""
        from airflow_spot.rundir import record

        kept = record.load(session.store)
        runs = kept is not None and any(item.ref and not item.terminal for item in kept.record.attempts)
        try:
            for warning in session.backend.preflight(spec, session.store.uri):
                self.log.warning("%s", warning)
        except BatchUnavailable as error:
            self.log.warning("AWS does not answer, the set-up was not checked: %s", error)
        except ConfigurationError as error:
            if not runs:
                raise
            self.log.warning("The set-up cannot work any more, but a job runs and is waited for: %s", error)

    def _out_of_reach(self, error: Exception) -> str:
        """Return the sentence for a run directory or an AWS that cannot be used."""
        handle = self._handle
        where = handle.uri if handle else self.run_root
        endpoint = handle.endpoint if handle and handle.endpoint else "as the connection says"
        return (
            f"{where} cannot be used, nothing was submitted: {error}. Look at run_root= ([airflow_spot] run_root), at "
            f"endpoint ({endpoint}) and credentials of connection {self.aws_conn_id!r}, and at what its role may do"
        )

    def training_spec(self, *, bucket_region: str | None = None) -> TrainingSpec:
        """Return the arguments as the loop takes them; templates must have been rendered.

        :param bucket_region: where the run directory's bucket lies.
        """
        from airflow_spot import config
        from airflow_spot.core.spec import TrainingSpec

        expected = None if self.expected_duration in (None, "") else self.expected_duration
        return TrainingSpec(
            job_definition=self.job_definition,
            tiers=read_tiers(self.tiers),
            command=None if self.command is None else tuple(map(str, self.command)),
            environment={name: str(value) for name, value in (self.environment or {}).items()},
            container_overrides=dict(self.container_overrides or {}),
            ecs_properties_override=dict(self.ecs_properties_override) if self.ecs_properties_override else None,
            parameters=dict(self.parameters or {}),
            tags=dict(self.tags or {}),
            share_identifier=self.share_identifier,
            scheduling_priority_override=self.scheduling_priority_override,
            awslogs_enabled=self.awslogs_enabled,
            deadline=deadline_text(self.deadline),
            expected_seconds=None
            if expected in (None, "")
            else span(expected, name="expected_duration", positive=True),
            downstream_seconds=span(self.downstream_duration, name="downstream_duration"),
            changeover_seconds=span(self.changeover, name="changeover"),
            on_infeasible=self.on_infeasible,
            policy=_policy_json(self.policy),
            max_reclaims=self.max_reclaims,
            promote_after_reclaims=self.promote_after_reclaims,
            max_infrastructure_failures=self.max_infrastructure_failures,
            agent=self.agent,
            success_object=self.success_object,
            trust_exit_code=self.trust_exit_code,
            keep_checkpoints=self.keep_checkpoints,
            on_clear=self.on_clear,
            poll_seconds=span(self.poll_interval, name="poll_interval", positive=True),
            heartbeat_seconds=config.heartbeat_seconds(),
            orphan_after_seconds=config.orphan_after_seconds(),
            bucket_region=bucket_region,
            kms_key=config.kms_key(),
        )

    def _trigger(self, handle: _Handle, generation: int) -> Any:
        from airflow_spot.rundir import codec
        from airflow_spot.triggers.training import SpotTrainingTrigger

        return SpotTrainingTrigger(
            run=handle.uri,
            generation=generation,
            try_number=handle.try_number,
            owner=codec.encode(handle.owner),
            poll_interval=span(self.poll_interval, name="poll_interval"),
            cancel_on_kill=self.cancel_on_kill,
            **self._connection(),
        )

    def _wait(self, handle: _Handle, generation: int, context: Context) -> dict[str, Any]:
        """Run the loop in this worker until it ends; should it fail, nobody waits, so the training is stopped."""
        from airflow_spot.engine import Finished

        try:
            step = self._loop(handle, generation)
        except BaseException as error:
            if not self._killed:
                self._stop(f"the worker's loop failed: {error}")
            raise
        return self._finish(step.result) if isinstance(step, Finished) else self.execute_complete(context, None)

    def _loop(self, handle: _Handle, generation: int) -> Finished | Superseded:
        from airflow_spot.engine import Loop, Waiting, advance
        from airflow_spot.triggers.training import Backoff, outages

        session = self._session(handle)
        loop = Loop(
            store=session.store,
            backend=session.backend,
            generation=generation,
            try_number=handle.try_number,
            say=self.log.info,
            object_modified=session.object_modified,
        )
        backoff = Backoff(span(self.poll_interval, name="poll_interval"))
        while True:
            try:
                step = advance(loop)
            except outages() as error:
                seconds = backoff.next(error)
                self.log.warning("No answer, nothing is decided; next look in %.0f s: %s", seconds, error)
                self._sleep(seconds)
                continue
            backoff.reset()
            handle.known = loop.loaded.record if loop.loaded else None
            if not isinstance(step, Waiting):
                return step
            self._sleep(step.seconds)

    def _sleep(self, seconds: float) -> None:
        """Sleep, but notice a kill: a signal handler cannot end a sleep."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._killed:
                raise AirflowException("the task was killed; the training was told to stop")
            time.sleep(min(left, _SLICE_SECONDS))

    def _finish(self, result: Result) -> dict[str, Any]:
        """Return a success, raise anything else: retryable or not, as the result says."""
        summary = result.summary
        if job := summary.get("job_id"):
            self.link_values[JOB] = {"job_id": job, "region_name": self._region()}
        if result.outcome == "SUCCEEDED":
            self.log.info("%s", result.message)
            return summary
        if result.retryable:
            raise AirflowException(result.message)
        raise AirflowFailException(result.message)

    def _stop(self, why: str) -> str:
        """Stop the training run of this try; what cannot be reached is said, never raised: the lease covers it."""
        from airflow_spot.session import connect_alone
        from airflow_spot.stopping import stop_for

        handle = self._handle
        assert handle is not None
        try:
            report = stop_for(
                connect_alone(handle.uri, **self._connection()),
                owner=handle.owner,
                try_number=handle.try_number,
                generation=handle.generation,
                who="operator",
                why=why,
                known=handle.known,
            )
        except Exception:  # the edge of a process that is about to die
            said = (
                f"{handle.uri} could not be stopped; `airflow-spot stop` ends it, and its agent leaves by itself when "
                "nobody has waited for it for [airflow_spot] orphan_after"
            )
            self.log.exception("%s", said)
            return said
        self.log.info("Stop of %s: %s", handle.uri, report)
        return "the training was stopped" if report.stopped else report.why

    def _session(self, handle: _Handle) -> Session:
        from airflow_spot.session import connect

        session = connect(handle.uri, **self._connection())
        self.link_values[POINTER]["region_name"] = session.region
        handle.endpoint = session.endpoint
        return session

    def _region(self) -> str | None:
        return self.link_values.get(POINTER, {}).get("region_name")

    def _connection(self) -> dict[str, Any]:
        return {
            "aws_conn_id": self.aws_conn_id,
            "region_name": self.region_name,
            "verify": self.verify,
            "botocore_config": self.botocore_config,
        }


class _Handle:
    """The training run of this try. A plain class: it is made while a DAG is parsed, where a dataclass costs too much.

    :param generation: known once the record was opened; None: whichever the record has.
    :param known: the record as the loop saw it last, for a stop while the store gives no answer.
    """

    __slots__ = ("endpoint", "generation", "known", "owner", "run_key", "try_number", "uri")

    def __init__(self, *, uri: str, run_key: str, owner: Owner, try_number: int) -> None:
        self.uri = uri
        self.run_key = run_key
        self.owner = owner
        self.try_number = try_number
        self.generation: int | None = None
        self.endpoint: str | None = None
        self.known: Record | None = None


@cache
def _known_arguments(bases: tuple[type, ...]) -> frozenset[str]:
    """Return every argument that a class and its bases take by name."""
    import inspect

    known = {"default_args", "_airflow_mapped_validation_only"}
    for base in bases:
        if (init := vars(base).get("__init__")) is not None:
            known |= set(inspect.signature(init).parameters) - {"self", "args", "kwargs"}
    return frozenset(known)


def _policy_json(policy: Any) -> dict[str, Any]:
    """Return a policy as the record keeps it; an already plain one comes from a mapped task."""
    if isinstance(policy, Mapping):
        return dict(policy)
    from airflow_spot.policies import to_json

    return to_json(policy)


def _began(context: Context) -> datetime:
    """Return when the DAG run began; a deadline that is a duration counts from there."""
    dag_run = context["dag_run"]
    began = dag_run.start_date or dag_run.run_after
    return began.astimezone(UTC) if began else datetime.now(UTC)
