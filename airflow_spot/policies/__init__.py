"""Policies: when training belongs on dependable capacity. Pure values that explain themselves.

The safety net lies under every one of them whenever there is a deadline.
"""

from __future__ import annotations

from typing import Any

from airflow_spot.core.snapshot import Policy
from airflow_spot.errors import ConfigurationError
from airflow_spot.policies.safety_net import SafetyNet
from airflow_spot.policies.slack_ratio import SlackRatio

__all__ = ["SafetyNet", "SlackRatio", "from_json", "to_json"]

_BY_NAME: dict[str, type[SlackRatio]] = {SlackRatio.name: SlackRatio}


def to_json(policy: Policy | None) -> dict[str, Any]:
    """Return a policy as the record keeps it; None stands for the default rule."""
    return {} if policy is None else {"name": policy.name, "params": policy.params()}


def from_json(raw: dict[str, Any]) -> Policy:
    """Return the policy that a record names, with the safety net under it.

    :raises ConfigurationError: an unknown name or parameter.
    """
    name = raw.get("name", SlackRatio.name)
    if name not in _BY_NAME:
        raise ConfigurationError(f"policy {name!r} is unknown; there are {sorted(_BY_NAME)}")
    try:
        return SafetyNet(_BY_NAME[name](**raw.get("params", {})))
    except TypeError as error:
        raise ConfigurationError(f"policy {name!r}: {error}") from error
