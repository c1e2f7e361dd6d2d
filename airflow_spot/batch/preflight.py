"""What can be known to fail before anything is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_spot.batch.aws import Clients
    from airflow_spot.batch.definitions import Definitions
    from airflow_spot.core.model import TrainingSpec


def check(
    clients: Clients,
    definitions: Definitions,
    spec: TrainingSpec,
    run_uri: str,
    *,
    hear: Callable[[Mapping[str, Any]], None],
) -> list[str]:
    """Return warnings (first form; the checks follow)."""
    return []
