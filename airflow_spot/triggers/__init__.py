"""Triggers: what runs in the triggerer while a task is deferred."""

from __future__ import annotations

from airflow_spot.compat import check

check()
