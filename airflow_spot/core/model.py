"""Tiers, as a DAG author writes them. Imported whenever a DAG is parsed, so it holds nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
