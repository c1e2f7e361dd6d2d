"""What a container wrote, cut to what the Airflow side may keep: texts, ids and numbers within bounds."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

from airflow_spot.rundir.layout import artifacts_dir, parse_checkpoint_id
from airflow_spot.rundir.values import Claim, End, Heartbeat, Notice

R = TypeVar("R", Claim, End, Heartbeat)

_TEXT = 2000
_BAD = 50
_METRICS_BYTES = 4096
_MAX_COUNT = 10**12


def bounded(value: R) -> R:
    """Return a claim, heartbeat or end file without what could not be true or could not be kept.

    Checkpoint ids that are none become None, counts that are negative or absurd their default; texts are cut.
    """
    changes: dict[str, Any] = {"extra": {}}
    for field in fields(value):
        found = getattr(value, field.name)
        if type(found) is str:
            changes[field.name] = found[:_TEXT]
        elif isinstance(found, Notice):
            changes[field.name] = _notice(found)
        elif isinstance(found, (int, float)) and field.default is not MISSING and not 0 <= found < _MAX_COUNT:
            changes[field.name] = field.default
    return replace(value, **changes | _ids(value) | _results(value))


def _ids(value: Claim | End | Heartbeat) -> dict[str, Any]:
    names = [name for name in ("committed", "restored", "pin") if isinstance(getattr(value, name, None), str)]
    changes: dict[str, Any] = {name: None for name in names if not parse_checkpoint_id(getattr(value, name))}
    if not isinstance(value, Claim):
        changes["bad"] = tuple(id_ for id_ in value.bad if parse_checkpoint_id(id_))[:_BAD]
    return changes


def _results(value: Claim | End | Heartbeat) -> dict[str, Any]:
    if not isinstance(value, End):
        return {}
    changes: dict[str, Any] = {}
    if value.artifacts and not _of_attempt(value.artifacts, value.attempt):
        changes["artifacts"] = None
    if len(json.dumps(value.metrics)) > _METRICS_BYTES:
        changes["metrics"] = {"omitted": f"more than {_METRICS_BYTES} bytes of metrics"}
    return changes


def _of_attempt(prefix: str, attempt: int) -> bool:
    start = artifacts_dir(attempt)
    return prefix.startswith(start) and len(prefix) < len(start) + 40 and ".." not in prefix


def _notice(value: Notice) -> Notice:
    return replace(value, source=value.source[:_TEXT], action=value.action[:_TEXT], time=value.time[:_TEXT], extra={})
