"""Install the built wheel alone into a clean environment and prove that the agent needs nothing more.

Usage: ``python scripts/check_wheel.py DIST``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PROBE = """
import importlib.resources, importlib.util, sys
import airflow_spot.agent
heavy = [name for name in ("airflow", "boto3", "botocore", "numpy", "rich", "typer") if importlib.util.find_spec(name)]
assert not heavy, f"the base install brought {heavy}"
examples = importlib.resources.files("airflow_spot") / "examples"
wanted = ["final_training_run.py", "daily_dev_cycle.py", "trainers/train_digits.py", "trainers/evaluate_digits.py"]
missing = [name for name in wanted if not (examples / name).is_file()]
assert not missing, f"the wheel lacks examples {missing}"
assert (importlib.resources.files("airflow_spot") / "py.typed").is_file(), "the wheel lacks py.typed"
"""


def only(dist: Path, pattern: str) -> Path:
    """Return the one file of that kind.

    :raises SystemExit: there is none, or more than one.
    """
    found = sorted(dist.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"expected one {pattern} in {dist}, found {[path.name for path in found]}")
    return found[0]


def check(dist: Path) -> None:
    """Install the wheel in a fresh environment and ask it."""
    only(dist, "*.tar.gz")
    wheel = only(dist, "*.whl")
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(scratch, with_pip=True)
        python = Path(scratch) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel.resolve()], check=True)
        subprocess.run([python, "-I", "-c", PROBE], check=True)
        subprocess.run([python.with_name("spot-agent"), "--help"], check=True, stdout=subprocess.DEVNULL)
    print(f"{wheel.name}: installs alone, the agent starts, the examples are in it")


if __name__ == "__main__":
    check(Path(sys.argv[1]))
