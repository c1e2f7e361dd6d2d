"""The version check of the Airflow surface."""

from __future__ import annotations

import pytest

from airflow_spot import compat


@pytest.fixture(autouse=True)
def forget() -> None:
    """Each test checks anew."""
    compat.check.cache_clear()


@pytest.mark.parametrize("versions", [{}, {"apache-airflow-core": "3.3.0rc1"}, {"apache-airflow-core": None}])
def test_new_enough(versions: dict[str, str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed here passes; Airflow may go by either of its distributions."""
    real = compat._version
    monkeypatch.setattr(compat, "_version", lambda name: versions.get(name, real(name)))
    compat.check()


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"apache-airflow-core": "3.2.9"}, "needs Airflow 3.3 or newer, found 3.2.9"),
        ({"apache-airflow-core": None, "apache-airflow": None}, "needs Airflow 3.3 or newer, found none"),
        ({"apache-airflow-providers-amazon": "9.38.1"}, "needs the amazon provider 9.39 or newer, found 9.38.1"),
    ],
)
def test_too_old(versions: dict[str, str | None], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too old, or missing: the import fails with what was found and the line that installs it."""
    real = compat._version
    monkeypatch.setattr(compat, "_version", lambda name: versions.get(name, real(name)))
    with pytest.raises(ImportError) as caught:
        compat.check()
    assert said in str(caught.value)
    assert str(caught.value).endswith("pip install 'airflow-provider-spot[airflow]'")
