"""What Airflow is told about the provider, and what it makes of it."""

from __future__ import annotations

import importlib
import json
from importlib.metadata import entry_points
from pathlib import Path

import airflow
import jsonschema

from airflow_spot.provider_info import get_provider_info


def test_passes_airflow_s_own_schema() -> None:
    """The metadata is valid against the schema that Airflow itself applies."""
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_every_name_exists() -> None:
    """Every module and class that the metadata names can be imported."""
    info = get_provider_info()
    for kind in ("operators", "sensors", "triggers"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                importlib.import_module(module)
    classes = [*info["extra-links"], *(plugin["plugin-class"] for plugin in info["plugins"])]
    for path in classes:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name)


def test_entry_points_lead_here() -> None:
    """Airflow finds metadata and plugin by their entry points."""
    found = {point.group: point.load() for point in entry_points().select(module="airflow_spot.provider_info")}
    assert found["apache_airflow_provider"] is get_provider_info
    [plugin] = entry_points(group="airflow.plugins", name="spot")
    assert plugin.load().name == "airflow_spot"


def test_airflow_reads_the_defaults() -> None:
    """Airflow knows the settings' defaults from the metadata alone."""
    from airflow.configuration import conf

    assert conf.get("airflow_spot", "orphan_after") == "6h"
    assert conf.get("airflow_spot", "heartbeat_interval") == "60"
