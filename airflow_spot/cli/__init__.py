"""The command ``airflow-spot``: a local cloud to rehearse on, and training runs to look at, promote and stop.

Importing this package costs nothing; typer, rich, boto3, Airflow and moto are loaded by the subcommand that needs them.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_MISSING = (
    "airflow-spot needs typer and rich, which the light base installation leaves out; "
    "install them with: pip install 'airflow-provider-spot[localcloud]' (on a laptop) "
    "or 'airflow-provider-spot[airflow]' (beside Airflow)"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (see ``docs/command-line.md``).

    :param argv: arguments without the program's name; None: those of the process.
    """
    if any(find_spec(name) is None for name in ("typer", "rich")):
        print(_MISSING, file=sys.stderr)
        return 1
    from airflow_spot.cli.app import run

    return run(sys.argv[1:] if argv is None else list(argv))
