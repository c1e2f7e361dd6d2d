"""The operator's arguments: what is refused while a DAG is parsed, and how they become values. Needs no Airflow."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow_spot.core.model import Market, Tier
from airflow_spot.durations import as_text, duration, instant_or_duration
from airflow_spot.errors import ConfigurationError

FOREIGN = {
    "job_queue": "use `tiers`, e.g. tiers=[Tier.spot('queue'), Tier.on_demand('other-queue')]",
    "queues": "use `tiers`, e.g. tiers=[Tier.spot('queue'), Tier.on_demand('other-queue')]",
    "job_name": "leave it out: the name carries the training run's identity, so that a lost submit is found again",
    "job_id": "leave it out: a training run finds its own jobs",
    "overrides": "use `container_overrides`",
    "max_retries": "use `max_reclaims` and `max_infrastructure_failures` for limits, `poll_interval` for the pace",
    "status_retries": "leave it out: an unanswered DescribeJobs is asked again and costs nothing",
    "waiters": "leave it out: the loop watches all jobs of a connection with one call; `poll_interval` sets its pace",
    "waiter_delay": "use `poll_interval`",
    "waiter_max_attempts": "use `deadline`, or the task's `execution_timeout`",
    "retry_strategy": "leave it out: one job is one attempt; `tiers`, `max_reclaims` and `max_infrastructure_failures` "
    "say when there is another",
    "array_properties": "map the task: SpotTrainingOperator.partial(...).expand(...) gives each its own training run",
    "array_size": "map the task: SpotTrainingOperator.partial(...).expand(...) gives each its own training run",
    "node_overrides": "leave it out: jobs of several nodes are not supported on tiers that can be reclaimed",
    "eks_properties_override": "leave it out: jobs on EKS are not supported; use a job definition for ECS",
    "timeout": "use the task's `execution_timeout`, or `deadline`",
    "depends_on": "use task dependencies",
    "wait_for_completion": "leave it out: the task ends when the training has",
    "submit_job_timeout": "leave it out: each attempt carries a time-out",
    "awslogs_fetch_interval": "leave it out: the end of each attempt's log goes to the task log",
}
"""Arguments of BatchOperator and its like, and what to write instead."""

_TIER_KEYS = frozenset({"market", "job_queue", "name", "price", "max_wait", "max_wait_seconds", "speed"})


def refuse_unknown(names: Collection[str], known: Collection[str]) -> None:
    """Refuse an argument that nothing takes, with what to write instead.

    :param names: those given beyond the operator's own.
    :param known: every name that would be right.
    """
    for name in names:
        if advice := FOREIGN.get(name):
            raise ConfigurationError(f"SpotTrainingOperator has no argument {name!r}: {advice}")
        if name not in known:
            import difflib

            close = difflib.get_close_matches(name, [*known], n=1, cutoff=0.6)
            hint = f"did you mean {close[0]!r}?" if close else "see the operator's documentation for those it takes"
            raise ConfigurationError(f"SpotTrainingOperator has no argument {name!r}: {hint}")


def templated(value: Any) -> bool:
    """Return whether a value can be judged only once Airflow has rendered it: a template, or another task's output."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    return hasattr(value, "resolve")


def plain_tiers(tiers: Any) -> Any:
    """Return tiers as a template field can hold them: plain dicts, or the template itself.

    A frozen value in a template field is not rendered, so a queue name from a Variable would stay unrendered.
    """
    if isinstance(tiers, (Tier, Mapping)):
        raise ConfigurationError(f"tiers={tiers!r}: give a list of tiers, [Tier.spot(...), Tier.on_demand(...)]")
    if isinstance(tiers, Sequence) and not isinstance(tiers, str):
        return [_plain_tier(tier) for tier in tiers]
    return tiers


def _plain_tier(tier: Any) -> dict[str, Any]:
    if isinstance(tier, Mapping):
        return dict(tier)
    if not isinstance(tier, Tier):
        raise ConfigurationError(
            f"tiers holds {tier!r}; give Tier.spot(...), Tier.reserved(...) or Tier.on_demand(...)"
        )
    return {
        "market": tier.market.value,
        "job_queue": tier.job_queue,
        "name": tier.name,
        "price": tier.price,
        "max_wait_seconds": tier.max_wait_seconds,
        "speed": tier.speed,
    }


def read_tiers(tiers: Any) -> tuple[Tier, ...]:
    """Return tiers from dicts, or from the JSON that a template rendered to.

    :raises ConfigurationError: not a list of tiers, or one that :func:`check_tiers` refuses.
    """
    if isinstance(tiers, str):
        try:
            tiers = json.loads(tiers)
        except ValueError as error:
            raise ConfigurationError(f"tiers={tiers!r} rendered to no JSON list of tiers: {error}") from error
    tiers = plain_tiers(tiers)
    if not isinstance(tiers, list):
        raise ConfigurationError(f"tiers={tiers!r}: give a list, [Tier.spot(...), Tier.on_demand(...)]")
    found = tuple(_read_tier(tier) for tier in tiers)
    check_tiers(found)
    return found


def _read_tier(raw: Mapping[str, Any]) -> Tier:
    if unknown := sorted(set(raw) - _TIER_KEYS):
        raise ConfigurationError(f"a tier holds {unknown}; it takes {sorted(_TIER_KEYS)}")
    market = raw.get("market")
    if market not in [*Market]:
        raise ConfigurationError(f"a tier's market is {market!r}; give one of {[str(known) for known in Market]}")
    build = {"spot": Tier.spot, "reserved": Tier.reserved, "on_demand": Tier.on_demand}[str(market)]
    wait = raw.get("max_wait", raw.get("max_wait_seconds"))
    return build(
        raw.get("job_queue", ""),
        price=_number(raw.get("price"), "price"),
        max_wait=wait,
        name=raw.get("name"),
        speed=_number(raw.get("speed", 1.0), "speed"),
    )


def _rendered(tiers: Any) -> bool:
    """Return whether tiers can be judged: a queue may still be a template, a price may not."""
    if not isinstance(tiers, list):
        return not (isinstance(tiers, str) or templated(tiers))
    return not any(
        templated(value) for tier in tiers for key, value in tier.items() if key not in ("job_queue", "name")
    )


def _number(value: Any, name: str) -> float | None:
    """Return a number that a template may have rendered as text."""
    if value is None or isinstance(value, (int, float)):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"a tier's {name} is {value!r}; give a number") from None


def check_tiers(tiers: Sequence[Tier]) -> None:
    """Refuse a list of tiers that cannot work."""
    if not tiers:
        raise ConfigurationError("tiers is empty: give at least one, e.g. tiers=[Tier.spot('queue')]")
    if twice := _twice([tier.job_queue for tier in tiers]):
        raise ConfigurationError(
            f"two tiers share the job queue {twice!r}; give each its own: the queue decides what a job runs on"
        )
    if twice := _twice([tier.name for tier in tiers]):
        raise ConfigurationError(f"two tiers are named {twice!r}; give one of them another name=")
    if tiers[-1].max_wait_seconds is not None:
        raise ConfigurationError(
            f"max_wait on the last tier ({tiers[-1].name!r}): there is no next one; leave it out, or add a tier"
        )


def _twice(values: Sequence[str]) -> str | None:
    return next((value for index, value in enumerate(values) if value in values[:index]), None)


def span(value: Any, *, name: str, positive: bool = False) -> float:
    """Return seconds from any form of a duration.

    :param positive: refuse zero as well.
    """
    seconds = duration(value, name=name).total_seconds()
    if positive and seconds <= 0:
        raise ConfigurationError(f"{name}={value!r}: give more than 0 seconds")
    return seconds


def deadline_text(value: timedelta | datetime | str | None) -> str | None:
    """Return a deadline as the record keeps it: an ISO instant or an ISO duration."""
    if value is None or value == "":
        return None
    return as_text(instant_or_duration(value, name="deadline"))


def _count(value: Any, *, name: str, least: int) -> None:
    if value is not None and (not isinstance(value, int) or value < least):
        raise ConfigurationError(f"{name}={value!r}: give a whole number of at least {least}")


def check(given: Any) -> None:
    """Refuse whatever is wrong already among an operator's arguments; templates are skipped.

    :param given: the operator, or anything with its attributes.
    """
    _check_names(given)
    _check_choices(given)
    _check_spans(given)
    for name in ("max_reclaims", "promote_after_reclaims", "max_infrastructure_failures"):
        _count(getattr(given, name), name=name, least=0)
    _count(given.keep_checkpoints, name="keep_checkpoints", least=1)
    _check_proof(given)
    _check_work(given)
    check_policy(given.policy)
    _check_deadline(given, read_tiers(given.tiers) if _rendered(given.tiers) else None)


def _check_names(given: Any) -> None:
    name = given.job_definition
    if not name or not (isinstance(name, str) or templated(name)):
        raise ConfigurationError(f"job_definition={name!r}: give the name of a Batch job definition")
    if isinstance(given.command, str) and not templated(given.command):
        raise ConfigurationError(f"command={given.command!r}: give a list of words, as in ['python', 'train.py']")


def _check_choices(given: Any) -> None:
    for name, choices in (("on_infeasible", ("promote", "fail")), ("on_clear", ("resume", "fresh"))):
        value = getattr(given, name)
        if value not in choices:
            raise ConfigurationError(f"{name}={value!r}: give {choices[0]!r} or {choices[1]!r}")


def _check_spans(given: Any) -> None:
    for name in ("expected_duration", "downstream_duration", "changeover", "poll_interval"):
        value = getattr(given, name)
        if value is not None and not templated(value):
            span(value, name=name, positive=name in ("expected_duration", "poll_interval"))


def _check_proof(given: Any) -> None:
    """A plain image cannot say that it completed; something else has to."""
    if not given.agent and not given.success_object and not given.trust_exit_code:
        raise ConfigurationError(
            "agent=False: nothing in the container can say that the training is complete; give success_object= "
            "(an object that exists when it is) or trust_exit_code=True, or leave agent=True"
        )


def _check_work(given: Any) -> None:
    environment, priority, proof = given.environment, given.scheduling_priority_override, given.success_object
    if environment is not None and not templated(environment) and not isinstance(environment, Mapping):
        raise ConfigurationError(f"environment={environment!r}: give a mapping, as in {{'NAME': 'value'}}")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise ConfigurationError(f"scheduling_priority_override={priority!r}: give a whole number")
    if proof and not templated(proof) and not re.fullmatch(r"s3://[^/]+/.+[^/]", str(proof)):
        raise ConfigurationError(f"success_object={proof!r}: give the address of an object, as in 's3://bucket/done'")


def check_policy(policy: Any) -> None:
    """Refuse what is no policy of :mod:`airflow_spot.policies`."""
    if policy is None:
        return
    from airflow_spot import policies

    try:
        policies.from_json(dict(policy) if isinstance(policy, Mapping) else policies.to_json(policy))
    except (AttributeError, ConfigurationError) as error:
        raise ConfigurationError(
            f"policy={policy!r}: give a value of airflow_spot.policies, as in SlackRatio(ratio=1.2) ({error})"
        ) from error


def _check_deadline(given: Any, tiers: Sequence[Tier] | None) -> None:
    deadline = given.deadline
    if deadline in (None, ""):
        return
    if not templated(deadline):
        deadline_text(deadline)
    if given.expected_duration is None:
        raise ConfigurationError(
            f"deadline={str(deadline)!r} without expected_duration: give the time the training takes uninterrupted "
            "on the dependable tier; before the first heartbeat nothing else is known"
        )
    if tiers is not None and not any(tier.dependable for tier in tiers):
        raise ConfigurationError(
            f"deadline={str(deadline)!r} with spot tiers only: add Tier.reserved(...) or Tier.on_demand(...), "
            "where it can be kept"
        )
