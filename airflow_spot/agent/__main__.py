"""``python -m airflow_spot.agent``: the same as ``spot-agent``."""

from __future__ import annotations

from airflow_spot.agent.cli import main

main()
