"""What importing a part of the package costs: each in an interpreter of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("boto3", "botocore", "obstore", "moto", "rich", "typer", "numpy", "fastapi")

SCRIPT = """
import importlib, json, sys
for name in {first!r}:
    importlib.import_module(name)
before = set(sys.modules)
for name in {then!r}:
    importlib.import_module(name)
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})))
print(json.dumps(sorted(name for name in sys.modules if name.startswith("airflow.providers.amazon.aws"))))
"""


def loaded(*then: str, first: tuple[str, ...] = ()) -> tuple[set[str], list[str]]:
    """Return the top-level packages that imports add, and the amazon provider's modules that are loaded at the end."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(first=first, then=then)],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    added, amazon = done.stdout.strip().splitlines()[-2:]
    return set(json.loads(added)), json.loads(amazon)


def test_parsing_a_dag_loads_nothing_heavy() -> None:
    """Operator, sensor, plugin and metadata add no AWS, no store and no provider to what airflow.sdk has loaded."""
    added, amazon = loaded(
        "airflow_spot.operators.training",
        "airflow_spot.sensors.deadline",
        "airflow_spot.policies",
        "airflow_spot.plugin",
        "airflow_spot.provider_info",
        first=("airflow.sdk", "airflow.sdk.bases.sensor", "airflow.plugins_manager"),
    )
    assert added.isdisjoint(HEAVY)
    assert amazon == []


def test_agent_knows_neither_airflow_nor_aws() -> None:
    """The agent in a training container imports no Airflow, no boto3 and none of the Airflow side."""
    added, _ = loaded("airflow_spot.agent", "airflow_spot.agent.cli")
    assert added.isdisjoint({"airflow", "boto3", "botocore", "moto", "numpy", "torch", "rich", "typer"})


def test_metadata_imports_nothing() -> None:
    """Every Airflow process reads the metadata at its start: it adds this package alone."""
    added, _ = loaded("airflow_spot.provider_info")
    assert added <= {"airflow_spot", "typing", "__future__"} | set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", ["operators", "sensors", "triggers", "links"])
def test_surface_checks_versions_first(name: str, here: Path) -> None:
    """Each Airflow-facing package checks the versions before it imports anything of Airflow."""
    source = (here / "airflow_spot" / name / "__init__.py").read_text()
    assert source.rstrip().endswith("check()")
