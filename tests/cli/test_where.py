"""Which training run is meant, and how it is reached; over a whole local cloud."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from airflow_spot import session
from airflow_spot.cli import app, where
from airflow_spot.errors import ConfigurationError
from airflow_spot.localcloud import LocalCloud
from airflow_spot.rundir import layout, record

from .conftest import Place, a_record

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def cloud() -> Iterator[LocalCloud]:
    """One local cloud for this module; starting it costs a few seconds of imports."""
    with LocalCloud() as cloud:
        yield cloud


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A process without any AWS setting, whatever this machine has."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AIRFLOW_SPOT_AWS_CONN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    # Set and deleted again, so that what --endpoint-url sets does not outlive the test.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    session.forget()
    yield monkeypatch
    session.forget()


def test_the_local_cloud_is_reached_without_airflow(cloud: LocalCloud, bare: pytest.MonkeyPatch, capsys) -> None:
    """Endpoint and region as options, credentials from the environment: the store and Batch both answer."""
    environment = cloud.environment()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        bare.setenv(name, environment[name])
    access = ["--endpoint-url", environment["AWS_ENDPOINT_URL"], "--region", environment["AWS_REGION"]]
    root = f"s3://{cloud.bucket}/runs-of-this-test"
    assert app.run(["runs", "--run-root", root, *access]) == 0
    assert capsys.readouterr().out == f"no training runs at {root}\n"
    value = a_record()
    reach = where.connect(f"{root}/{value.run_key}", where.Access(region=environment["AWS_REGION"]))
    record.create(reach.store, value)
    assert app.run(["show", value.run_key, "--run-root", root, "--json", *access]) == 0
    assert json.loads(capsys.readouterr().out)["record"]["run_key"] == value.run_key
    assert app.run(["runs", "--run-root", root, "--json", *access]) == 0
    assert [row["run_key"] for row in json.loads(capsys.readouterr().out)] == [value.run_key]


def test_without_a_region_the_option_is_named(bare: pytest.MonkeyPatch) -> None:
    """No region anywhere is told before anything is asked."""
    with pytest.raises(ConfigurationError, match="no AWS region: give --region, or set AWS_DEFAULT_REGION"):
        where.connect("memory://x", where.Access())


def test_a_connection_needs_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """--aws-conn-id without Airflow says what to use in its place."""
    monkeypatch.setattr(where, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="--aws-conn-id=mine needs Airflow, which is not installed here"):
        where.connect("memory://x", where.Access(aws_conn_id="mine"))


def test_names_are_made_into_the_key_that_the_operator_uses() -> None:
    """Unsafe characters of a run id are replaced as the operator replaces them."""
    names = ["final", "manual__2026-12-01T08:00:00+00:00", "train"]
    key = layout.run_key(dag_id=names[0], run_id=names[1], task_id=names[2], map_index=2)
    assert where.run_uri(names, map_index=2, root="s3://bucket/runs/") == f"s3://bucket/runs/{key}"


def test_run_directories_within_a_run_directory_are_none(place: Place) -> None:
    """Files called run.json below a training run's directory are its checkpoints' own."""
    store = place.put(a_record())
    store.put("checkpoints/x/data/run.json", b"{}")
    store.put("artifacts/a0001/y/data/run.json", b"{}")
    place.root.put("run.json", b"{}")
    assert where.run_directories(place.root) == [a_record().run_key]
