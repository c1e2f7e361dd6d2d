"""Tiers and the operator's arguments, as values.

``Tier`` is what a DAG author writes; ``TrainingSpec`` is all that the loop needs to know of the operator,
and what the record keeps under ``spec``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from airflow_spot.durations import duration
from airflow_spot.errors import ConfigurationError


class Market(StrEnum):
    """How capacity is bought. Whoever is not spot is dependable."""

    SPOT = "spot"
    RESERVED = "reserved"
    ON_DEMAND = "on_demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A place to train. Build one with :meth:`spot`, :meth:`reserved` or :meth:`on_demand`.

    :param job_queue: name or ARN of the AWS Batch job queue.
    :param price: USD per hour; None: hours are reported, not dollars.
    :param max_wait_seconds: time in RUNNABLE before the next tier is asked as well; None: wait for ever.
    :param name: shown in logs and reports; the market unless given.
    :param speed: training speed relative to the dependable tier.
    """

    market: Market
    job_queue: str
    name: str
    price: float | None = None
    max_wait_seconds: float | None = None
    speed: float = 1.0

    @classmethod
    def spot(cls, job_queue: str, **options: Any) -> Self:
        """Return a tier whose machines AWS may take back at two minutes' notice, or at none."""
        return cls._of(Market.SPOT, job_queue, **options)

    @classmethod
    def reserved(cls, job_queue: str, **options: Any) -> Self:
        """Return a tier on capacity that is already paid for."""
        return cls._of(Market.RESERVED, job_queue, **options)

    @classmethod
    def on_demand(cls, job_queue: str, **options: Any) -> Self:
        """Return a tier at the full price; it holds as far as AWS has capacity."""
        return cls._of(Market.ON_DEMAND, job_queue, **options)

    @classmethod
    def _of(
        cls,
        market: Market,
        job_queue: str,
        *,
        price: float | None = None,
        max_wait: timedelta | float | str | None = None,
        name: str | None = None,
        speed: float = 1.0,
    ) -> Self:
        if not job_queue or not isinstance(job_queue, str):
            raise ConfigurationError(f"Tier.{market}(job_queue={job_queue!r}): give the name of a Batch job queue")
        if price is not None and not 0 <= price < math.inf:
            raise ConfigurationError(f"Tier.{market}(price={price}): USD per hour, not negative")
        if not 0 < speed < math.inf:
            raise ConfigurationError(f"Tier.{market}(speed={speed}): above 0; 1.0 is the dependable tier's speed")
        wait = None if max_wait is None else duration(max_wait, name="max_wait").total_seconds()
        return cls(
            market=market,
            job_queue=job_queue,
            name=name or market.value,
            price=price,
            max_wait_seconds=wait,
            speed=float(speed),
        )

    @property
    def dependable(self) -> bool:
        """Whether AWS does not take its machines back."""
        return self.market is not Market.SPOT


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """All that the loop knows of the operator. JSON by :mod:`airflow_spot.rundir.codec`; times in seconds."""

    job_definition: str
    tiers: tuple[Tier, ...]
    command: tuple[str, ...] | None = None
    """Without the agent's prefix; None: the job definition's."""
    environment: dict[str, str] = field(default_factory=dict)
    container_overrides: dict[str, Any] = field(default_factory=dict)
    ecs_properties_override: dict[str, Any] | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    share_identifier: str | None = None
    scheduling_priority_override: int | None = None
    awslogs_enabled: bool = True
    deadline: str | None = None
    """As given, for a Clear to count afresh: an ISO instant or a duration."""
    expected_seconds: float | None = None
    downstream_seconds: float = 0.0
    changeover_seconds: float = 900.0
    on_infeasible: str = "promote"
    policy: dict[str, Any] = field(default_factory=dict)
    """``{name, params}``; empty: the default rule."""
    max_reclaims: int | None = None
    promote_after_reclaims: int | None = None
    max_infrastructure_failures: int = 5
    agent: bool = True
    success_object: str | None = None
    trust_exit_code: bool = False
    keep_checkpoints: int = 3
    on_clear: str = "resume"
    poll_seconds: float = 30.0
    heartbeat_seconds: float = 60.0
    orphan_after_seconds: float = 6 * 3600.0
    attempt_timeout_seconds: float = 14 * 86400.0
    """Batch's own time-out of each attempt: the last net under a lost job."""
    bucket_region: str | None = None
    kms_key: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def tier(self, name: str) -> Tier | None:
        """Return the tier of that name."""
        return next((tier for tier in self.tiers if tier.name == name), None)

    @property
    def dependable(self) -> Tier | None:
        """The last tier whose market is not spot: where a deadline is kept."""
        return next((tier for tier in reversed(self.tiers) if tier.dependable), None)
