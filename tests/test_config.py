"""The settings of ``[airflow_spot]``."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from airflow_spot import config
from airflow_spot.errors import ConfigurationError


def test_operator_s_run_root_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument comes before the setting; neither keeps its trailing slash."""
    monkeypatch.setenv("AIRFLOW__AIRFLOW_SPOT__RUN_ROOT", "s3://configured/")
    assert [config.run_root("s3://given/x/"), config.run_root(None)] == ["s3://given/x", "s3://configured"]


@pytest.mark.parametrize(("given", "said"), [(None, "no run root"), ("/mnt/runs", "is not an object store")])
def test_wrong_run_root(given: str | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run root, or a directory of this machine, is refused with what to give."""
    monkeypatch.delenv("AIRFLOW__AIRFLOW_SPOT__RUN_ROOT", raising=False)
    with pytest.raises(ConfigurationError, match=said):
        config.run_root(given)


def test_defaults() -> None:
    """Nothing but the run root needs to be set."""
    assert (config.heartbeat_seconds(), config.orphan_after_seconds(), config.kms_key()) == (60.0, 21600.0, None)
    assert config.deployment()


def test_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans are written like every other duration; what is none is refused by the setting's name."""
    monkeypatch.setenv("AIRFLOW__AIRFLOW_SPOT__ORPHAN_AFTER", "90m")
    monkeypatch.setenv("AIRFLOW__AIRFLOW_SPOT__HEARTBEAT_INTERVAL", "0")
    assert config.orphan_after_seconds() == 5400.0
    with pytest.raises(ConfigurationError, match="heartbeat_interval"):
        config.heartbeat_seconds()


def test_without_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Airflow is not installed the variable counts that Airflow would read."""
    real = builtins.__import__

    def refuse(name: str, *args: Any) -> Any:
        if name.startswith("airflow."):
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_SPOT__RUN_ROOT", "s3://plain")
    assert (config.run_root(), config.deployment()) == ("s3://plain", "airflow")
