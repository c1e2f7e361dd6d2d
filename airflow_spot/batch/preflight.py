"""What can be known to fail before anything is submitted, by read calls alone.

What cannot work is refused; what may go wrong, or may not be looked at, is a warning. A look-up that AWS does not
answer proves nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from airflow_spot.batch import definitions as job_definitions
from airflow_spot.batch.aws import code_of, is_denied
from airflow_spot.batch.evidence import capacity_of
from airflow_spot.batch.requests import AGENT_COMMAND, job_name, starts_agent
from airflow_spot.batch.resources import Machine, Request, containers_of, machine, request_of
from airflow_spot.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_spot.batch.aws import Clients
    from airflow_spot.batch.definitions import Definitions
    from airflow_spot.core.model import Tier
    from airflow_spot.core.spec import TrainingSpec

_SPOT = frozenset({"SPOT", "FARGATE_SPOT"})
_TYPES_PAGE = 100
_GPU_FAMILY = re.compile(r"[gp]\d[a-z0-9-]*(\.\w+)?")
_NO_JOB = "00000000-0000-0000-0000-000000000000"


def check(
    clients: Clients,
    definitions: Definitions,
    spec: TrainingSpec,
    run_uri: str,
    *,
    hear: Callable[[Mapping[str, Any]], None],
) -> list[str]:
    """Return warnings about a set-up.

    :raises ConfigurationError: it cannot work; nothing was submitted.
    """
    asked = _Asked(clients, hear)
    definition = _definition(asked, definitions, spec)
    _check_permissions(asked, spec, run_uri)
    queues = [_queue(asked, tier, spec) for tier in spec.tiers]
    seen = [queue for queue in queues if queue is not None]
    _check_markets(asked, seen)
    if definition is not None:
        _check_definition(asked, definition, spec)
        for queue in seen:
            _check_nodes(definition, queue)
            _check_size(asked, request_of(definition, spec), definition, queue)
    return list(dict.fromkeys(asked.warnings))


@dataclass(slots=True)
class _Asked:
    """The clients, and what was found worth a warning."""

    clients: Clients
    hear: Callable[[Mapping[str, Any]], None]
    warnings: list[str] = field(default_factory=list)

    def try_call(self, action: str, client: Any, method: str, *, loses: str, **arguments: Any) -> Any:
        """Return a reply, or None with a warning that says what is lost without it."""
        if client is None:
            return None
        try:
            reply = getattr(client, method)(**arguments)
        except ClientError as error:
            self.hear(error.response)
            if is_denied(error):
                self.warnings.append(
                    f"{action} is not allowed: {loses}. Allow it to the role of the Airflow connection"
                )
            else:
                self.warnings.append(f"{action} gave no answer ({code_of(error)}): {loses}")
            return None
        except BotoCoreError as error:
            self.warnings.append(f"{action} gave no answer ({error}): {loses}")
            return None
        self.hear(reply)
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queue:
    """A tier's queue and the compute environments behind it."""

    tier: Tier
    arn: str
    environments: tuple[Mapping[str, Any], ...]

    @property
    def capacities(self) -> frozenset[str]:
        return frozenset(kind for one in self.environments if (kind := capacity_of(one)))

    @property
    def spot(self) -> bool:
        """Whether a job of this queue may come onto spot capacity."""
        return bool(self.capacities & _SPOT)

    @property
    def mixed(self) -> bool:
        return self.spot and bool(self.capacities - _SPOT)


def _definition(asked: _Asked, definitions: Definitions, spec: TrainingSpec) -> dict[str, Any] | None:
    loses = "the job definition is not checked"
    try:
        found = definitions.read(spec.job_definition)
    except (ClientError, BotoCoreError) as error:
        if isinstance(error, ClientError) and is_denied(error):
            asked.warnings.append(
                f"{job_definitions.ACTION} is not allowed: {loses}. Allow it to the role of the Airflow connection"
            )
        else:
            asked.warnings.append(f"{job_definitions.ACTION} gave no answer ({error}): {loses}")
        return None
    if found is None:
        raise ConfigurationError(
            f"job_definition={spec.job_definition!r}: there is no active AWS Batch job definition of that name in "
            "this region and account; register it, or correct the name, region_name or aws_conn_id",
            job_definition=spec.job_definition,
        )
    return found


def _check_permissions(asked: _Asked, spec: TrainingSpec, run_uri: str) -> None:
    """Make the reads that a training run cannot do without; whether SubmitJob is allowed, no read shows."""
    batch = asked.clients.batch
    name = job_name(run_uri, "", 1)
    by_name = [{"name": "JOB_NAME", "values": [name]}]
    queue = spec.tiers[0].job_queue
    calls: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("batch:DescribeJobs", lambda: batch.describe_jobs(jobs=[_NO_JOB])),
        ("batch:ListJobs", lambda: batch.list_jobs(jobQueue=queue, filters=by_name)),
    )
    for action, call in calls:
        try:
            asked.hear(call())
        except ClientError as error:
            asked.hear(error.response)
            if is_denied(error):
                raise ConfigurationError(
                    f"{action} is not allowed to the role of the Airflow connection ({error}); without it a job "
                    "cannot be watched. Allow it on Resource '*'",
                    action=action,
                ) from error
        except BotoCoreError as error:
            asked.warnings.append(f"{action} gave no answer: {error}")
    loses = "whether a lost machine was a spot reclaim stays less certain"
    _dry_run(asked, "ec2:DescribeInstances", "describe_instances", loses)


def _dry_run(asked: _Asked, action: str, method: str, loses: str) -> None:
    """Ask EC2 whether a call would be allowed; only a clear no is told."""
    if asked.clients.ec2 is None:
        return
    try:
        getattr(asked.clients.ec2, method)(DryRun=True)
    except ClientError as error:
        if is_denied(error):
            asked.warnings.append(f"{action} is not allowed: {loses}. Allow it to the role of the Airflow connection")
    except BotoCoreError as error:
        asked.warnings.append(f"{action} gave no answer ({error}): {loses}")


def _queue(asked: _Asked, tier: Tier, spec: TrainingSpec) -> _Queue | None:
    batch, name = asked.clients.batch, tier.job_queue
    loses = f"job queue {name!r} is not checked"
    reply = asked.try_call("batch:DescribeJobQueues", batch, "describe_job_queues", loses=loses, jobQueues=[name])
    if reply is None:
        return None
    found = next(iter(reply.get("jobQueues", ())), None)
    if found is None:
        raise _refused(tier, "does not exist in this region and account; create it, or correct the name or region_name")
    _check_queue(asked, tier, found, spec)
    return _Queue(tier=tier, arn=str(found.get("jobQueueArn", name)), environments=_environments(asked, tier, found))


def _check_queue(asked: _Asked, tier: Tier, found: Mapping[str, Any], spec: TrainingSpec) -> None:
    state, status = found.get("state", "ENABLED"), found.get("status", "VALID")
    if state != "ENABLED":
        raise _refused(tier, f"is {state}: AWS refuses jobs; enable it, or name another queue")
    if status in {"INVALID", "DELETING", "DELETED"}:
        why = found.get("statusReason") or "no reason given"
        raise _refused(tier, f"is {status} (AWS says: {why!r}); repair it, or name another queue")
    if found.get("jobQueueType") == "SAGEMAKER_TRAINING":
        raise _refused(tier, "takes SageMaker service jobs only; name a queue with compute environments")
    fair_share = bool(found.get("schedulingPolicyArn"))
    if fair_share and not spec.share_identifier:
        raise _refused(tier, "has a fair-share policy: AWS refuses jobs without a share; give share_identifier=")
    if spec.share_identifier and not fair_share:
        asked.warnings.append(
            f"Tier {tier.name!r}: job queue {tier.job_queue!r} has no fair-share policy, so AWS may refuse "
            f"share_identifier={spec.share_identifier!r}"
        )


def _refused(tier: Tier, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"Tier {tier.name!r}: job queue {tier.job_queue!r} {what}", tier=tier.name, job_queue=tier.job_queue
    )


def _environments(asked: _Asked, tier: Tier, queue: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    names = [item["computeEnvironment"] for item in queue.get("computeEnvironmentOrder", ())]
    if not names:
        return ()
    reply = asked.try_call(
        "batch:DescribeComputeEnvironments", asked.clients.batch, "describe_compute_environments",
        loses="market and sizes of the queues are not checked", computeEnvironments=names,
    )  # fmt: skip
    found = tuple((reply or {}).get("computeEnvironments", ()))
    usable = [one for one in found if one.get("state") != "DISABLED" and one.get("status") != "INVALID"]
    if found and not usable:
        asked.warnings.append(
            f"Tier {tier.name!r}: every compute environment of job queue {tier.job_queue!r} is DISABLED or INVALID; "
            "jobs will wait until one is enabled"
        )
    return found


def _check_markets(asked: _Asked, queues: list[_Queue]) -> None:
    """Compare what the tiers say with what the queues are."""
    uses = Counter(queue.arn for queue in queues)
    for queue in queues:
        tier = queue.tier
        if queue.mixed and uses[queue.arn] > 1:
            raise _refused(
                tier,
                f"mixes {_listed(queue.capacities)} compute environments and serves {uses[queue.arn]} tiers: a move "
                "between them would change nothing. Give each tier a queue of one market",
            )
        if queue.mixed:
            asked.warnings.append(
                f"Tier {tier.name!r}: job queue {tier.job_queue!r} mixes {_listed(queue.capacities)} compute "
                "environments: Batch chooses the market, so cost and reclaims may be other than the tier says. "
                "Use a queue of one market"
            )
        elif queue.capacities and queue.spot == tier.dependable:
            asked.warnings.append(_wrong_market(queue))


def _wrong_market(queue: _Queue) -> str:
    tier, kinds = queue.tier, _listed(queue.capacities)
    so = "AWS may take its machines back, and it keeps no deadline" if tier.dependable else "it costs the full price"
    return f"Tier {tier.name!r} says {tier.market}, but job queue {tier.job_queue!r} has {kinds} capacity: {so}"


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))


def _check_definition(asked: _Asked, definition: Mapping[str, Any], spec: TrainingSpec) -> None:
    attempts = int((definition.get("retryStrategy") or {}).get("attempts") or 1)
    if attempts > 1:
        asked.warnings.append(
            f"Job definition {spec.job_definition!r} retries {attempts} times inside Batch; that is overridden by one "
            "attempt, since each attempt is ours to place and to count (max_reclaims, max_infrastructure_failures)"
        )
    if not spec.agent or spec.command or spec.container_overrides.get("command"):
        return
    command = _command(definition)
    if not starts_agent(command):
        shown = " ".join(command) if command else "none"
        raise ConfigurationError(
            f"job_definition={spec.job_definition!r}: its command ({shown}) does not start the agent. Give the "
            f"operator command=[...], or begin the definition's command by '{' '.join(AGENT_COMMAND)} --', or set "
            "agent=False for a plain image without resume",
            job_definition=spec.job_definition,
        )


def _command(definition: Mapping[str, Any]) -> list[str]:
    pods = ((definition.get("eksProperties") or {}).get("podProperties") or {}).get("containers") or ()
    for container in (*containers_of(definition), *pods):
        return [*(container.get("entryPoint") or ()), *(container.get("command") or ()), *(container.get("args") or ())]
    return []


def _check_nodes(definition: Mapping[str, Any], queue: _Queue) -> None:
    nodes = int((definition.get("nodeProperties") or {}).get("numNodes") or 0)
    if (nodes or definition.get("type") == "multinode") and queue.spot:
        raise _refused(
            queue.tier,
            f"has spot capacity, and the job definition is multi-node ({nodes} nodes): AWS Batch leaves such a job in "
            "RUNNABLE for ever. Use an on-demand queue, or a single-node definition",
        )


def _check_size(asked: _Asked, request: Request, definition: Mapping[str, Any], queue: _Queue) -> None:
    names = {str(name) for one in queue.environments for name in _types(one)}
    if not names or "eksProperties" in definition:
        return
    if not request.gpus and all(_GPU_FAMILY.fullmatch(name) for name in names):
        asked.warnings.append(
            f"Tier {queue.tier.name!r}: job queue {queue.tier.job_queue!r} has GPU machines ({_listed(names)}), but "
            "the job asks for no GPU and will see none; add one to the definition's resourceRequirements"
        )
    # A family, or 'optimal', may bring a machine of any size: nothing can be claimed.
    if any("." not in name for name in names):
        return
    machines = _machines(asked, sorted(names))
    if machines:
        _check_fit(asked, request, machines, queue.tier)


def _types(environment: Mapping[str, Any]) -> list[str]:
    """Return what a compute environment may launch; one that says nothing may launch anything."""
    resources = environment.get("computeResources") or {}
    return list(resources.get("instanceTypes") or ["optimal"])


def _machines(asked: _Asked, names: list[str]) -> list[Machine]:
    """Return the machines, or none where one of them could not be looked at."""
    reply = asked.try_call(
        "ec2:DescribeInstanceTypes", asked.clients.ec2, "describe_instance_types",
        loses="whether the job fits the machines is not checked", InstanceTypes=names[:_TYPES_PAGE],
    )  # fmt: skip
    found = [machine(detail) for detail in (reply or {}).get("InstanceTypes", ())]
    return found if {one.name for one in found} == set(names) else []


def _check_fit(asked: _Asked, request: Request, machines: list[Machine], tier: Tier) -> None:
    fitting = [one for one in machines if one.holds(request)]
    if not fitting:
        raise _refused(
            tier,
            f"has no machine that holds the job: it asks for {request}, and there are "
            f"{'; '.join(map(str, machines))}. Ask for less, or add a larger instance type",
        )
    if request.memory_mib and all(one.tight(request) for one in fitting):
        largest = max(fitting, key=lambda one: one.memory_mib)
        asked.warnings.append(
            f"Tier {tier.name!r}: the job asks for {request.memory_mib:g} MiB, and {largest.name} has "
            f"{largest.memory_mib} MiB before its own needs; it may wait in RUNNABLE for ever. "
            f"Ask for at most {int(largest.memory_mib * 0.92)} MiB"
        )
