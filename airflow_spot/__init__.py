"""Spot prices for AWS Batch training from Apache Airflow: no work lost to reclaims, deadlines kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_spot.core.model import Tier

__version__ = "0.1.0"
__all__ = ["Tier", "__version__"]


def __getattr__(name: str) -> Any:
    """Resolve public names when they are used: provider discovery and the agent import this package first."""
    if name == "Tier":
        from airflow_spot.core.model import Tier

        return Tier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
