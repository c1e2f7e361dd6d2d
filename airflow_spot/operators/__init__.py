"""Operators: :class:`airflow_spot.operators.training.SpotTrainingOperator`."""

from __future__ import annotations

from airflow_spot.compat import check

check()
