"""``spot-agent``: runs a trainer as one attempt of a training run.

::

    spot-agent run [options] -- python train.py …

Exit codes
    the trainer's own; 128 + n where signal n ended it; 0 only where the training is complete and all of it is saved

    =====  =================================================================================================
    64     wrong arguments, or an environment that contradicts itself
    69     the store gave no answer for five minutes at the start
    74     the trainer exited with 0, and its last save or its model could not be stored
    75     left by itself: closed, stopped, fenced, lease; or the trainer exited with 0 after it was asked to stop
    78     misconfigured: the store refused; the log names role and bucket
    126    the command cannot be executed
    127    the command is not found
    143    SIGTERM came before the trainer was started
    =====  =================================================================================================

Outside a training run it says so once and becomes the command.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any

import airflow_spot
from airflow_spot.agent.settings import in_training_run, read_settings
from airflow_spot.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger("airflow_spot.agent")

EXIT_USAGE = 64
EXIT_INTERNAL = 70

_OPTIONS = {
    "--checkpoint-dir": ("AIRFLOW_SPOT_CHECKPOINT_DIR", "DIR", "where the trainer saves (/opt/ml/checkpoints)"),
    "--output-dir": ("AIRFLOW_SPOT_OUTPUT_DIR", "DIR", "where the trainer leaves the model (/opt/ml/model)"),
    "--save-interval": ("AIRFLOW_SPOT_SAVE_INTERVAL", "TIME", "between saves, e.g. 90 or 15m (what loses least)"),
    "--complete": ("AIRFLOW_SPOT_COMPLETE", "RULE", "a marker file's name, or a glob that only complete files match"),
    "--step-from": ("AIRFLOW_SPOT_STEP_FROM", "REGEX", "its first group is the step in a file or directory name"),
    "--stop-grace": ("AIRFLOW_SPOT_STOP_GRACE", "TIME", "between SIGTERM and SIGKILL of the container (30s)"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    root = _Parser(
        prog="spot-agent", description="Runs a trainer as one attempt of a training run.", allow_abbrev=False
    )
    root.add_argument("--version", action="version", version=f"spot-agent {airflow_spot.__version__}")
    verbs = root.add_subparsers(dest="verb", required=True, parser_class=_Parser)
    run = verbs.add_parser(
        "run", help="run a trainer", usage="spot-agent run [options] -- COMMAND …", allow_abbrev=False
    )
    for option, (variable, metavar, text) in _OPTIONS.items():
        run.add_argument(option, dest=variable, metavar=metavar, help=f"{text}; or {variable}")
    run.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return root


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Threads that still wait for the network do not hold it up."""
    given = parser().parse_args(arguments)
    options = {variable: getattr(given, variable) for variable, _, _ in _OPTIONS.values()}
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s spot-agent %(levelname)s %(message)s"
    )
    code = run(os.environ, command, options)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(environment: Mapping[str, str], command: Sequence[str], options: Mapping[str, str | None]) -> int:
    """Run a trainer and return the exit code."""
    if not in_training_run(environment):
        return _become(command, environment)
    try:
        settings = read_settings(environment, command, options)
    except ConfigurationError as error:
        log.error("%s", error)
        return EXIT_USAGE
    from airflow_spot.agent.supervise import EXIT_MISCONFIGURED, Supervisor
    from airflow_spot.errors import SpotError
    from airflow_spot.rundir.store import open_store

    try:
        store = open_store(settings.run_uri, region=settings.region, kms_key=settings.kms_key)
    except SpotError as error:
        log.error("MISCONFIGURED: %s", error)
        return EXIT_MISCONFIGURED
    supervisor = Supervisor(settings, store, environment)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: supervisor.signal(received))
    try:
        return supervisor.run()
    except Exception:
        # The process edge: what is not understood here must not look like the trainer's own exit code.
        log.exception("the agent failed; this is a fault of ours")
        return EXIT_INTERNAL


def _become(command: Sequence[str], environment: Mapping[str, str]) -> int:
    if not command:
        log.error("no command to run; write it after two dashes: spot-agent run -- python train.py")
        return EXIT_USAGE
    log.warning("not in a training run (AIRFLOW_SPOT_RUN is not set): nothing is saved or resumed")
    found = shutil.which(command[0], path=environment.get("PATH"))
    if found is None:
        log.error("%r is not found", command[0])
        return 127
    try:
        os.execve(found, list(command), dict(environment))  # noqa: S606 - no shell on purpose
    except OSError as error:
        log.error("%r cannot be executed: %s", command[0], error.strerror)
        return 126
