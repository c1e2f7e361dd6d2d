"""The example DAGs keep their shape, read nothing while they are parsed, and hold nothing else for Airflow."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .conftest import DAGS, load


@pytest.fixture(scope="module", params=["final_training_run", "daily_dev_cycle"])
def example(request: pytest.FixtureRequest) -> ModuleType:
    """A DAG file, imported as the DAG processor does."""
    module = load(DAGS / f"{request.param}.py")
    del sys.modules[request.param]
    return module


def edges(dag: Any) -> dict[str, set[str]]:
    """Return what follows each task."""
    return {task.task_id: set(task.downstream_task_ids) for task in dag.tasks}


SHAPES = {
    "final_training_run": {"train": {"evaluate"}, "evaluate": set(), "deadline": set()},
    "daily_dev_cycle": {"check": {"trial"}, "trial": {"choose"}, "choose": set()},
}


def test_shape(example: ModuleType) -> None:
    """Tasks and edges are as documented."""
    assert SHAPES[example.dag.dag_id] == edges(example.dag)


def test_nothing_is_read_while_parsing(example: ModuleType) -> None:
    """Queues and job definition are templates of Variables with a default, so parsing asks no database."""
    trainings = [task for task in example.dag.tasks if hasattr(task, "tiers") or "tiers" in _partial(task)]

    for task in trainings:
        tiers = _partial(task).get("tiers") or task.tiers
        definition = _partial(task).get("job_definition") or task.job_definition
        for text in [definition, *(tier["job_queue"] for tier in tiers)]:
            assert text.startswith("{{ var.value.get('")


def _partial(task: Any) -> dict[str, Any]:
    return dict(getattr(task, "partial_kwargs", {}))


def test_the_defaults_are_those_of_the_local_cloud(example: ModuleType) -> None:
    """With no Variable set, the names are those that a local cloud has from the start."""
    from airflow_spot.localcloud.setup import Setup

    usual = Setup.usual()
    known = {queue["jobQueueName"] for queue in usual.queues}
    known |= {definition["jobDefinitionName"] for definition in usual.definitions}
    source = Path(str(example.__file__)).read_text()
    named = ("spot", "reserved", "on-demand", "train-digits")

    assert {name for name in named if f', "{name}")' in source} <= known


# Airflow's own reader of .airflowignore uses a deprecated pattern class.
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_the_trainers_are_no_dags() -> None:
    """The DAG processor leaves the trainers alone."""
    from airflow.utils.file import list_py_file_paths

    found = {Path(path).name for path in list_py_file_paths(str(DAGS))}

    assert {"final_training_run.py", "daily_dev_cycle.py"} == found
