"""The command ``airflow-spot localcloud``."""

from __future__ import annotations

import json
import shlex
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from airflow_spot.errors import ConfigurationError
from airflow_spot.localcloud import setup as setups
from airflow_spot.localcloud.server import LocalCloud

PORT = 4566


def localcloud(
    port: Annotated[int, typer.Option("--port", help="Where to serve; 0 for any free port.", min=0, max=65535)] = PORT,
    market: Annotated[
        str | None, typer.Option("--market", metavar="FILE", help="A market script, or calm, reclaims, drought, demo.")
    ] = None,
    setup: Annotated[
        Path | None, typer.Option("--setup", metavar="FILE", help="Queues and job definitions in place of the usual.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="Where jobs get their scratch directories.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable that every job gets.")
    ] = None,
    print_env: Annotated[
        bool, typer.Option("--print-env", help="Print what points a shell and Airflow here; start only if need be.")
    ] = False,
) -> int:
    """Serve a local AWS: Batch with processes for jobs, S3, Logs, EC2, ECS, IAM and STS. Ctrl-C ends it and all jobs.

    There are the bucket airflow-spot and the job queues spot, reserved and on-demand.
    """
    if print_env and (found := _running(port)) is not None:
        _print_variables(found["variables"])
        return 0
    cloud = LocalCloud(
        port=port,
        market=market,
        setup=setups.load(setup) if setup else None,
        directory=state.absolute() if state else None,
        job_environment=_pairs(env or []),
    )
    ended = threading.Event()
    # Set before the first job can start: whoever stops us early must not leave one behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, lambda *_: ended.set())
    with cloud:
        if print_env:
            _print_variables(cloud.variables())
        print(f"local cloud ready at {cloud.endpoint_url} (Ctrl-C ends it and all its jobs)", flush=True)
        ended.wait()
    return 0


def _pairs(given: list[str]) -> dict[str, str]:
    if wrong := next((each for each in given if "=" not in each), None):
        raise ConfigurationError(f"--env {wrong}: give NAME=VALUE")
    return dict(each.split("=", 1) for each in given)


def _running(port: int) -> dict[str, Any] | None:
    """Return the status of a local cloud on a port; None where there is none."""
    if port == 0:
        return None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_localcloud/status", timeout=2) as reply:
            found = json.load(reply)
    except (urllib.error.URLError, OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "variables" in found else None


def _print_variables(variables: dict[str, str]) -> None:
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}", flush=True)
