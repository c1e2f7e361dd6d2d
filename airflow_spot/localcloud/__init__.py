"""A local AWS to rehearse on: Batch with real processes for jobs, markets that reclaim, S3, Logs, EC2, ECS and IAM.

In a program::

    from airflow_spot.localcloud import LocalCloud

    with LocalCloud(market="reclaims") as cloud:
        job = cloud.client("batch").submit_job(jobName="try", jobQueue="spot", jobDefinition="airflow-spot")["jobId"]
        cloud.reclaim(job, notice=4)

In a shell: ``airflow-spot localcloud --market reclaims``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_spot.localcloud.faults import Faults
    from airflow_spot.localcloud.model import LocalBatch
    from airflow_spot.localcloud.server import LocalCloud

__all__ = ["Faults", "LocalBatch", "LocalCloud"]

_WHERE = {"Faults": "faults", "LocalBatch": "model", "LocalCloud": "server"}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: the server needs moto, which takes seconds."""
    if name not in _WHERE:
        raise AttributeError(name)
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
