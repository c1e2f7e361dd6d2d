"""Links on a task's page."""

from __future__ import annotations

from airflow_spot.compat import check

check()
