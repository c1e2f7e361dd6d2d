"""The Airflow plugin: a listener that ends a training when a person ends its task."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from airflow_spot.plugin import listener


class SpotPlugin(AirflowPlugin):
    """Loaded by every Airflow process through the entry point ``airflow.plugins``; importing it stays light."""

    name = "airflow_spot"
    listeners = (listener,)
