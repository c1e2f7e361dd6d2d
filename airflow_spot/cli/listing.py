"""``airflow-spot runs``: the training runs under a run root."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_spot.cli import facts, where
from airflow_spot.rundir import layout
from airflow_spot.rundir.values import Record

if TYPE_CHECKING:
    from airflow_spot.errors import ContractError


def rows(reach: where.Reach, *, dag_id: str | None = None, still_open: bool = False) -> list[dict[str, Any]]:
    """Return a row for each training run, the newest first; one that cannot be read says why.

    Blocks: one LIST of the run root and one GET for each training run.
    """
    keys = where.run_directories(reach.store, _prefix(dag_id))
    found = [_row(record, f"{reach.uri}/{key}", key) for key, record in where.records(reach.store, keys)]
    wanted = [row for row in found if not (still_open and row["outcome"])]
    return sorted(wanted, key=lambda row: (row["began"] or "", row["run_key"]), reverse=True)


def _prefix(dag_id: str | None) -> str:
    """Return where a DAG's training runs lie; those with a ``run_key=`` of their own lie elsewhere."""
    if dag_id is None:
        return ""
    return layout.run_key(dag_id=dag_id, run_id="any", task_id="any").split("/")[0] + "/"


def _row(record: Record | ContractError, uri: str, key: str) -> dict[str, Any]:
    if isinstance(record, Record):
        return facts.summary_row(record, uri=uri)
    names = ("dag_id", "run_id", "task_id", "map_index", "outcome", "desired", "tier", "attempts", "reclaims", "step")
    empty = dict.fromkeys((*names, "began", "deadline", "promote_at"))
    return {"uri": uri, "run_key": key, **empty, "standing": f"cannot be read: {record}"}
