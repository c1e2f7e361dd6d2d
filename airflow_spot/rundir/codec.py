"""Dataclasses ⇄ JSON, strict on types, keeping fields that a newer version added.

A dataclass field ``extra: dict[str, Any]`` collects unknown keys and gives them back on encoding,
so that an older program that rewrites an object does not drop what a newer one wrote.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from airflow_spot.errors import ContractError
from airflow_spot.rundir.layout import CONTRACT

T = TypeVar("T")
_EXTRA = "extra"
_MAX_DEPTH = 20
_INSTANT = "an ISO 8601 instant with a zone"


def dumps(value: Any) -> bytes:
    """Return a dataclass as UTF-8 JSON; None is left out."""
    return json.dumps(encode(value), separators=(",", ":"), allow_nan=False).encode()


def loads(cls: type[T], data: bytes, *, what: str = "object") -> T:
    """Return the dataclass that JSON bytes hold.

    :raises ContractError: not JSON, not the right shape, or of a newer major contract.
    """
    try:
        raw = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{what} is not JSON: {error}", what=what) from error
    if isinstance(raw, dict) and isinstance(found := raw.get("contract", CONTRACT), int) and found > CONTRACT:
        raise ContractError(
            f"{what} follows contract {found}; this version reads up to {CONTRACT}. "
            "Install an airflow-provider-spot of the release that wrote it.",
            what=what,
        )
    return decode(cls, raw, what=what)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def encode(value: Any) -> Any:
    """Return a value as JSON types."""
    if is_dataclass(value) and not isinstance(value, type):
        out = {}
        for field in fields(value):
            item = getattr(value, field.name)
            if field.name == _EXTRA:
                out.update(item)
            elif item is not None:
                out[field.name] = encode(item)
        return out
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(cls: type[T], raw: Any, *, what: str = "object") -> T:
    """Return the dataclass that JSON types hold.

    :raises ContractError: names the field, what was expected and what came.
    """
    return typing.cast("T", _decode(cls, raw, what))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(hint: Any, raw: Any, where: str) -> Any:
    if hint is Any:
        _expect(_within(raw, _MAX_DEPTH), f"at most {_MAX_DEPTH} levels and finite numbers", type(raw).__name__, where)
        return raw
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(hint, raw, where)
    if is_dataclass(hint):
        return _decode_dataclass(typing.cast("type", hint), raw, where)
    if origin in (list, tuple):
        _expect(isinstance(raw, list), "a list", raw, where)
        item = typing.get_args(hint)[0]
        return origin(_decode(item, value, f"{where}[{index}]") for index, value in enumerate(raw))
    if origin is dict:
        _expect(isinstance(raw, dict), "an object", raw, where)
        item = typing.get_args(hint)[1]
        return {key: _decode(item, value, f"{where}.{key}") for key, value in raw.items()}
    return _decode_scalar(hint, raw, where)


def _decode_union(hint: Any, raw: Any, where: str) -> Any:
    options = typing.get_args(hint)
    if raw is None and type(None) in options:
        return None
    return _decode(next(option for option in options if option is not type(None)), raw, where)


def _decode_scalar(hint: Any, raw: Any, where: str) -> Any:
    if hint is datetime:
        return _decode_instant(raw, where)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        _expect(isinstance(raw, str) and raw in hint.__members__.values(), f"one of {[*map(str, hint)]}", raw, where)
        return hint(raw)
    if hint is float:
        _expect(isinstance(raw, (int, float)) and not isinstance(raw, bool) and _within(raw, 1), "a number", raw, where)
        return float(raw)
    _expect(isinstance(raw, hint) and (hint is bool or not isinstance(raw, bool)), hint.__name__, raw, where)
    return raw


def _within(raw: Any, depth: int) -> bool:
    """Whether a value can be written again: not too deep, no infinity, no number beyond a float."""
    if isinstance(raw, (dict, list)):
        return depth > 0 and all(_within(item, depth - 1) for item in (raw.values() if isinstance(raw, dict) else raw))
    return not isinstance(raw, (int, float)) or abs(raw) <= sys.float_info.max


def _decode_instant(raw: Any, where: str) -> datetime:
    _expect(isinstance(raw, str), _INSTANT, raw, where)
    try:
        instant = datetime.fromisoformat(raw)
        _expect(instant.tzinfo is not None, _INSTANT, raw, where)
        return instant.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ContractError(f"{where}: expected {_INSTANT}, found {raw[:80]!r}", what=where) from error


def _decode_dataclass(cls: type, raw: Any, where: str) -> Any:
    _expect(isinstance(raw, dict), "an object", raw, where)
    known, hints = {field.name: field for field in fields(cls)}, _hints(cls)
    values = {}
    for name, field in known.items():
        if name == _EXTRA:
            continue
        if name in raw:
            values[name] = _decode(hints[name], raw[name], f"{where}.{name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ContractError(f"{where} lacks {name!r}", what=where)
    if _EXTRA in known:
        values[_EXTRA] = {key: _decode(Any, raw[key], f"{where}.{key}") for key in raw if key not in known}
    return cls(**values)


def _expect(condition: bool, expected: str, raw: Any, where: str) -> None:
    if not condition:
        raise ContractError(f"{where}: expected {expected}, found {str(raw)[:80]!r}", what=where)
