"""The agent goes into training images: it is light, and it brings nothing of the Airflow side."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = (
    "airflow",
    "boto3",
    "botocore",
    "torch",
    "numpy",
    "airflow_spot.engine",
    "airflow_spot.batch",
    "airflow_spot.core",
)


@pytest.mark.parametrize(
    "module", ["airflow_spot.agent.supervise", "airflow_spot.agent.cli", "airflow_spot.agent.trainer"]
)
def test_nothing_heavy_is_imported(module):
    """In a clean interpreter, with all that a start needs."""
    code = f"""
import sys
import {module}
from airflow_spot.rundir.store import open_store
open_store("s3://bucket/run", region="us-east-1")
print(*[name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_trainers_face_is_standard_library_only():
    """Importing attach loads no third-party package at all."""
    code = """
import sys
before = set(sys.modules)
from airflow_spot.agent import attach
third = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(*sorted(third))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["airflow_spot"]


def test_it_starts_in_well_under_half_a_second():
    """Beyond the interpreter itself; the best of three, since other work may be going on."""

    def seconds(code):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - begun

    code = "import airflow_spot.agent.supervise, airflow_spot.agent.cli\n"
    code += "from airflow_spot.rundir.store import open_store\n"
    code += "open_store('s3://bucket/run', region='us-east-1')"
    assert min(seconds(code) for _ in range(3)) - min(seconds("pass") for _ in range(3)) < 0.5
