"""The agent: the small program in the training container, and what a trainer imports of it.

``spot-agent run -- python train.py`` restores, saves, reports and reads notices around a trainer. A trainer that wants
more than files in a directory says ``from airflow_spot.agent import attach``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_spot.agent.trainer import Detached, TrainingRun, attach

__all__ = ["Detached", "TrainingRun", "attach"]


def __getattr__(name: str) -> Any:
    """Resolve public names when they are used: the supervisor needs none of them."""
    if name in __all__:
        from airflow_spot.agent import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
