"""Which Airflow the surface needs: the one place that knows versions. Every Airflow-facing package imports it first."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

INSTALL = "pip install 'airflow-provider-spot[airflow]'"
AIRFLOW = (3, 3)
AMAZON = (9, 39)


@cache
def check() -> None:
    """Refuse an Airflow or amazon provider that is too old, from metadata alone: nothing is imported.

    :raises ImportError: names what is installed, what is needed and the line that installs it.
    """
    _at_least("Airflow", ("apache-airflow-core", "apache-airflow"), AIRFLOW)
    _at_least("the amazon provider", ("apache-airflow-providers-amazon",), AMAZON)


def _at_least(what: str, distributions: tuple[str, ...], needed: tuple[int, int]) -> None:
    found = next((text for name in distributions if (text := _version(name))), None)
    if found is None or _numbers(found) < needed:
        wanted = ".".join(map(str, needed))
        raise ImportError(f"airflow_spot needs {what} {wanted} or newer, found {found or 'none'}: {INSTALL}")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``3.3.0rc1`` is (3, 3)."""
    numbers = []
    for part in text.split(".")[:2]:
        digits = "".join(char for char in part if char.isdigit())
        numbers.append(int(digits or 0))
    return tuple(numbers)
