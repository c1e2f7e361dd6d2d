"""JSON Schemas of the contract's objects, for whoever reads or writes a run directory without this package.

They lie beside this module in ``schemas/`` and follow from the dataclasses: after adding a field run
``python -m airflow_spot.rundir.schema``.
"""

from __future__ import annotations

import ast
import inspect
import json
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow_spot.rundir import values
from airflow_spot.rundir.layout import CONTRACT

OBJECTS: dict[str, type] = {
    "run": values.Record,
    "owner": values.OwnerLease,
    "request": values.Request,
    "claim": values.Claim,
    "heartbeat": values.Heartbeat,
    "end": values.End,
    "manifest": values.Manifest,
    "outcome": values.Attempt,
}
"""Each object of a run directory, by the name of its schema."""

_FOLDER = Path(__file__).with_name("schemas")
_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def load(name: str) -> dict[str, Any]:
    """Return the schema of an object, as it is checked in."""
    return typing.cast("dict[str, Any]", json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8")))


def build(name: str) -> dict[str, Any]:
    """Return the schema of an object, as the dataclasses say."""
    defs: dict[str, Any] = {}
    top = _object(OBJECTS[name], defs)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:airflow-spot:contract-{CONTRACT}:{name}",
    }
    return {**head, **top, **({"$defs": dict(sorted(defs.items()))} if defs else {})}


def _object(cls: type, defs: dict[str, Any]) -> dict[str, Any]:
    hints, notes = typing.get_type_hints(cls), _notes(cls)
    properties, required = {}, []
    for field in fields(cls):
        if field.name == "extra":
            continue
        note = {"description": notes[field.name]} if field.name in notes else {}
        properties[field.name] = (
            {"const": CONTRACT} if field.name == "contract" else _type(hints[field.name], defs) | note
        )
        if field.default is MISSING and field.default_factory is MISSING:
            required.append(field.name)
    return {
        "title": cls.__name__,
        "description": inspect.getdoc(cls) or "",
        "type": "object",
        "properties": properties,
        "required": required,
        # A newer version of the same contract adds fields; whoever rewrites an object keeps them.
        "additionalProperties": True,
    }


def _type(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [_type(arg, defs) for arg in args if arg is not type(None)]
        return {"anyOf": [*inner, {"type": "null"}]}
    if is_dataclass(hint):
        return _reference(typing.cast("type", hint), defs)
    if origin is tuple:
        return {"type": "array", "items": _type(args[0], defs)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(args[1], defs)}
    return _scalar(hint)


def _reference(cls: type, defs: dict[str, Any]) -> dict[str, Any]:
    if cls.__name__ not in defs:
        defs[cls.__name__] = {}
        defs[cls.__name__] = _object(cls, defs)
    return {"$ref": f"#/$defs/{cls.__name__}"}


def _scalar(hint: Any) -> dict[str, Any]:
    if hint is Any:
        return {}
    if hint is datetime:
        return {"type": "string", "format": "date-time"}
    if issubclass(hint, StrEnum):
        return {"enum": [member.value for member in hint]}
    return {"type": _SCALARS[hint]}


def _notes(cls: type) -> dict[str, str]:
    """Return what stands in quotes beneath each field."""
    (body,) = ast.parse(inspect.getsource(cls)).body
    notes = {}
    statements = typing.cast("ast.ClassDef", body).body
    for field, below in pairwise(statements):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            notes[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return notes


def main() -> None:
    """Write all schemas."""
    _FOLDER.mkdir(exist_ok=True)
    for name in OBJECTS:
        text = json.dumps(build(name), indent=2, ensure_ascii=False)
        (_FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
