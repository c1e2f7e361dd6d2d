"""Sphinx configuration; the table of outcomes is made from the code at every build."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from airflow_spot import __version__  # noqa: E402 - found through the path above
from airflow_spot.core.outcomes import TABLE  # noqa: E402

project = "airflow-provider-spot"
author = "The airflow-provider-spot authors"
project_copyright = author
release = __version__

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_generated"]
html_theme = "furo"
html_title = f"{project} {release}"
suppress_warnings = ["myst.strikethrough"]


def outcomes_table() -> str:
    """Return a Markdown table with a row for every outcome."""
    lines = [
        "| outcome | what it means | the next attempt | counts against | to change it |",
        "| --- | --- | --- | --- | --- |",
    ]
    for outcome, row in TABLE.items():
        advice = row.advice or "–"
        lines.append(f"| `{outcome}` | {row.means} | {row.then} | {row.budget} | {advice} |")
    return "\n".join(lines) + "\n"


def write_generated(_app: Any) -> None:
    """Write what pages include."""
    target = HERE / "_generated"
    target.mkdir(exist_ok=True)
    (target / "outcomes.md").write_text(outcomes_table())


def setup(app: Any) -> None:
    """Register the generator with Sphinx."""
    app.connect("builder-inited", write_generated)
