"""The record: one writer wins, the others load again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_spot.errors import ContractError
from airflow_spot.rundir import record
from airflow_spot.rundir.values import Owner, Record

FIRST = Record(run_key="k", owner=Owner(deployment="d", dag_id="d", run_id="r", task_id="t"), spec={"keep": 1})


def test_there_is_none_at_first(store):
    """Absence is an answer."""
    assert record.load(store) is None


def test_what_is_created_is_loaded(store):
    """With the ETag that a save needs."""
    made = record.create(store, FIRST)

    assert made == record.load(store)
    assert made.record == replace(FIRST, write_id=made.record.write_id)


def test_the_second_to_create_is_refused(store):
    """It finds the record moved, and nothing changed."""
    made = record.create(store, FIRST)
    with pytest.raises(record.RecordMoved, match="read it again"):
        record.create(store, FIRST)

    assert made == record.load(store)


def test_of_two_that_loaded_the_first_to_save_wins(store):
    """The other is refused, though it would write the same."""
    made = record.create(store, FIRST)
    saved = record.save(store, replace(made.record, generation=2), made.etag)
    with pytest.raises(record.RecordMoved):
        record.save(store, replace(made.record, generation=2), made.etag)

    assert saved == record.load(store)


def test_unknown_fields_survive_a_save(store):
    """An older version does not drop what a newer one wrote."""
    made = record.create(store, FIRST)
    raw = json.loads(store.get("run.json").data)
    store.put("run.json", json.dumps(raw | {"labels": {"a": "b"}}).encode())
    loaded = record.load(store)
    record.save(store, replace(loaded.record, why="x"), loaded.etag)

    assert json.loads(store.get("run.json").data)["labels"] == {"a": "b"}
    assert made.etag != loaded.etag


def test_a_record_that_cannot_be_read_is_said(store):
    """It never passes for an empty run directory."""
    store.put("run.json", b'{"run_key": 1}')
    with pytest.raises(ContractError, match=r"run\.json.run_key: expected str, found '1'"):
        record.load(store)
