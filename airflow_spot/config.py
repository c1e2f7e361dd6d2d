"""The settings of section ``[airflow_spot]``. Only ``run_root`` has no default."""

from __future__ import annotations

import os

from airflow_spot.durations import duration
from airflow_spot.errors import ConfigurationError

SECTION = "airflow_spot"


def setting(option: str) -> str | None:
    """Return a setting as text, or None; without Airflow, from the environment variable that Airflow would read."""
    try:
        from airflow.sdk.configuration import conf
    except ImportError:
        return os.environ.get(f"AIRFLOW__{SECTION}__{option}".upper())
    value = conf.get(SECTION, option, fallback=None)
    return str(value) if value not in (None, "") else None


def run_root(given: str | None = None) -> str:
    """Return where training runs lie, without a trailing slash.

    :param given: the operator's ``run_root=``.
    :raises ConfigurationError: neither given nor configured, or not an object store.
    """
    root = (given or setting("run_root") or "").rstrip("/")
    if not root:
        raise ConfigurationError(
            "no run root: give run_root='s3://bucket/prefix' to the operator, or set [airflow_spot] run_root "
            "(AIRFLOW__AIRFLOW_SPOT__RUN_ROOT) for all of them"
        )
    if "://" not in root:
        raise ConfigurationError(f"run_root={root!r} is not an object store; give 's3://bucket/prefix'")
    return root


def heartbeat_seconds() -> float:
    """Return the time between two heartbeats of an agent."""
    seconds = duration(setting("heartbeat_interval") or "60", name="[airflow_spot] heartbeat_interval").total_seconds()
    if seconds <= 0:
        raise ConfigurationError(f"[airflow_spot] heartbeat_interval={seconds:g}: more than 0 seconds")
    return seconds


def orphan_after_seconds() -> float:
    """Return the age of ``owner.json`` at which an agent believes that nobody waits for it."""
    seconds = duration(setting("orphan_after") or "6h", name="[airflow_spot] orphan_after").total_seconds()
    if seconds <= 0:
        raise ConfigurationError(f"[airflow_spot] orphan_after={seconds:g}: more than 0 seconds")
    return seconds


def kms_key() -> str | None:
    """Return the KMS key that encrypts what is written, or None for the bucket's own."""
    return setting("kms_key")


def deployment() -> str:
    """Return the name under which this Airflow owns training runs; it tells two deployments on one root apart."""
    if name := setting("deployment"):
        return name
    try:
        from airflow.sdk.configuration import conf
    except ImportError:
        return "airflow"
    return str(conf.get("api", "base_url", fallback=None) or "airflow")
