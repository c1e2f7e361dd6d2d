"""The contract, from both sides: the checked-in schemas, the dataclasses and the golden files say the same."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from airflow_spot.errors import ContractError
from airflow_spot.rundir import codec, schema

GOLDEN = Path(__file__).parents[1] / "golden" / "contract-1"
FILES = sorted(path.stem for path in GOLDEN.glob("*.json"))


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def kind(name: str) -> str:
    return name.partition("-")[0]


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(schema.load(kind(name)), format_checker=Draft202012Validator.FORMAT_CHECKER)


def without(value: Any, path: str) -> Any:
    return {key: item for key, item in value.items() if key != path}


def kept(before: Any, after: Any) -> bool:
    """Whether all of ``before`` is in ``after``, unchanged; ``after`` may have fields that were added since."""
    if isinstance(before, dict):
        return isinstance(after, dict) and all(key in after and kept(item, after[key]) for key, item in before.items())
    if isinstance(before, list):
        return isinstance(after, list) and len(before) == len(after) and all(map(kept, before, after))
    return bool(before == after)


def test_every_object_of_the_contract_has_a_golden_file():
    """No object is without an example."""
    assert set(schema.OBJECTS) == {kind(name) for name in FILES}


@pytest.mark.parametrize("name", schema.OBJECTS)
def test_a_schema_follows_from_its_dataclass(name):
    """A field added to a dataclass is added to its schema: run ``python -m airflow_spot.rundir.schema``."""
    assert schema.build(name) == schema.load(name)


@pytest.mark.parametrize("name", schema.OBJECTS)
def test_a_schema_lists_exactly_the_fields(name):
    """Known fields are listed and unknown ones are let through."""
    found = schema.load(name)
    Draft202012Validator.check_schema(found)

    assert {field.name for field in fields(schema.OBJECTS[name])} - {"extra"} == set(found["properties"])
    assert found["additionalProperties"] is True
    assert all(part["additionalProperties"] is True for part in found.get("$defs", {}).values())


@pytest.mark.parametrize("name", FILES)
def test_a_golden_file_is_valid(name):
    """The schema takes what the other side wrote."""
    assert [error.message for error in validator(name).iter_errors(golden(name))] == []


@pytest.mark.parametrize("name", FILES)
def test_a_golden_file_survives_a_rewrite(name):
    """Reading and writing changes nothing, unknown fields included, and what is written is valid."""
    value = codec.decode(schema.OBJECTS[kind(name)], golden(name))
    again = json.loads(codec.dumps(value))

    assert kept(golden(name), again)
    assert value == codec.decode(schema.OBJECTS[kind(name)], again)
    assert [error.message for error in validator(name).iter_errors(again)] == []


@pytest.mark.parametrize("name", FILES)
def test_schema_and_codec_refuse_the_same_gaps(name):
    """A required field is required by both sides, an optional one by neither."""
    cls = schema.OBJECTS[kind(name)]
    for key in golden(name):
        rest = without(golden(name), key)
        if key in schema.load(kind(name))["required"]:
            assert not validator(name).is_valid(rest)
            with pytest.raises(ContractError):
                codec.decode(cls, rest)
        else:
            assert validator(name).is_valid(rest)
            codec.decode(cls, rest)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("wrong", [["list"], 1.5, {"an": "object"}], ids=["list", "fraction", "object"])
def test_schema_and_codec_refuse_the_same_types(name, wrong):
    """What one side calls the wrong type, the other does too."""
    cls = schema.OBJECTS[kind(name)]
    for key in schema.load(kind(name))["properties"]:
        changed = golden(name) | {key: wrong}
        if key == "contract" or not validator(name).is_valid(changed):
            with pytest.raises(ContractError):
                codec.decode(cls, changed)
        else:
            codec.decode(cls, changed)


@pytest.mark.parametrize("name", FILES)
def test_a_newer_major_is_refused_by_name(name):
    """Contract 2 is not guessed at: the message says what to install."""
    data = json.dumps(golden(name) | {"contract": 2}).encode()

    with pytest.raises(ContractError, match=r"follows contract 2; this version reads up to 1\. Install"):
        codec.loads(schema.OBJECTS[kind(name)], data, what=name)
