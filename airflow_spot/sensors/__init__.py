"""Sensors: :class:`airflow_spot.sensors.deadline.SpotDeadlineSensor`."""

from __future__ import annotations

from airflow_spot.compat import check

check()
