"""What the repository says of itself holds: policies, the registry's file, the documentation's pages."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_spot.core.outcomes import Outcome

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_spot"
OURS = [path for path in PACKAGE.rglob("*.py") if not {"localcloud", "testing"} & set(path.parts)]


def statements(name: str) -> list[dict[str, Any]]:
    """Return the statements of a policy of the documentation."""
    policy: dict[str, Any] = json.loads((ROOT / "docs" / "iam" / name).read_text())
    return list(policy["Statement"])


def actions(name: str) -> set[str]:
    """Return all that a policy allows."""
    return {action for statement in statements(name) for action in statement["Action"]}


def test_airflow_may_do_all_that_is_called() -> None:
    """Every AWS action that the package names is in the policy for Airflow."""
    named = {
        action for path in OURS for action in re.findall(r'"((?:batch|ec2|ecs|logs):[A-Z][A-Za-z]+)', path.read_text())
    }

    assert len(named) > 4
    assert set() == named - actions("airflow.json")


def test_the_job_role_may_not_decide() -> None:
    """A job deletes nothing, and writes neither record nor lease nor requests."""
    writes = [statement for statement in statements("job-role.json") if "s3:PutObject" in statement["Action"]]

    assert {"s3:GetObject", "s3:ListBucket", "s3:PutObject", "s3:AbortMultipartUpload"} == actions("job-role.json")
    assert [{"attempts", "checkpoints", "artifacts"}] == [
        {resource.split("/")[-2] for resource in statement["Resource"]} for statement in writes
    ]


def test_the_table_of_outcomes_is_whole() -> None:
    """The documentation's table has a row for every outcome."""
    spec = importlib.util.spec_from_file_location("conf", ROOT / "docs" / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)

    assert [*Outcome] == re.findall(r"^\| `(\w+)`", conf.outcomes_table(), flags=re.MULTILINE)


@pytest.mark.parametrize("path", re.findall(r"import-path: (\S+)", (ROOT / ".airflow-registry.yaml").read_text()))
def test_the_registry_names_what_is_there(path: str) -> None:
    """Each module of the registry's file can be imported and has its class."""
    module, _, name = path.rpartition(".")

    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("page", ["README.md", *sorted(path.name for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    """Each relative link of a page leads to a file."""
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text())]

    assert [] == [
        target for target in targets if target and "://" not in target and not (path.parent / target).exists()
    ]


@pytest.mark.parametrize("word", ["make demo", "make test", "third-party provider for Apache Airflow®", "demo.svg"])
def test_the_first_screen(word: str) -> None:
    """The README's first forty lines say what it is, how to see it and how to test it."""
    assert word in "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
