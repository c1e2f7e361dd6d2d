"""Names in, names out."""

from __future__ import annotations

import pytest

from airflow_spot.errors import UnsafePath
from airflow_spot.rundir import layout


def test_a_run_key_names_dag_run_task_and_index():
    """What is safe stays as it is; what is replaced gets a hash, so that no two become one."""
    key = layout.run_key(dag_id="train", run_id="manual__2026-11-30T12:00:00+00:00", task_id="fit.all")
    other = layout.run_key(dag_id="train", run_id="manual__2026-11-30T12_00_00+00:00", task_id="fit.all")

    dag, run, task, index = key.split("/")
    assert ("train", "fit.all", "-1") == (dag, task, index)
    assert run.startswith("manual__2026-11-30T12_00_00+00_00-")
    assert key != other


def test_a_given_run_key_stands_in():
    """The map index is always appended; parts that would leave the root are replaced."""
    given = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": 4}

    assert layout.run_key(given="final/7b", **given) == "final/7b/4"
    assert ".." not in layout.run_key(given="../..", **given).split("/")
    with pytest.raises(UnsafePath, match="names nothing"):
        layout.run_key(given="//", **given)


def test_checkpoint_ids_sort_by_step():
    """And are taken apart again."""
    ids = [layout.checkpoint_id(step, 3, "7f3a") for step in (9, 10, 12000)]

    assert sorted(ids) == ids
    assert layout.parse_checkpoint_id(ids[2]) == (12000, 3, "7f3a")
    assert layout.parse_checkpoint_id(ids[2] + "/x") is None
    assert layout.parse_checkpoint_id("latest") is None


@pytest.mark.parametrize("name", ["a", "a/b.c", "ü", "a b", "..a", "a" * 512])
def test_plain_names_pass(name):
    """Relative and within bounds."""
    assert layout.safe_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        "./a",
        "a\\b",
        "a\nb",
        "a\x7f",
        "a" * 513,
        "ü" * 257,
        "a\udc80",
        "\ud800",
    ],
)
def test_other_names_are_refused(name):
    """Nothing was written."""
    with pytest.raises(UnsafePath, match="nothing was written"):
        layout.safe_name(name)
