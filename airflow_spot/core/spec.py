"""``TrainingSpec``: all that the loop knows of the operator, and what the record keeps under ``spec``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_spot.core.model import Tier


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
