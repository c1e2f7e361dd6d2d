"""Commands of other packages, loaded when they are used: their names cost ``airflow-spot --help`` nothing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import typer

from airflow_spot.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence


def mounted(module: str, name: str, args: Sequence[str]) -> int:
    """Run a typer command that another module holds, and return its exit code.

    :raises ConfigurationError: what the module stands on is not installed.
    """
    if find_spec("moto") is None:
        raise ConfigurationError(
            "the local cloud stands on moto, which is not installed; "
            "install it with: pip install 'airflow-provider-spot[localcloud]'"
        )
    sub = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    sub.command(name)(getattr(import_module(module), name))
    return sub(args=list(args), prog_name=f"airflow-spot {name}", standalone_mode=False) or 0
