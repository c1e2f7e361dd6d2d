"""What the agent is told: the job's environment, Batch's variables and the options of ``spot-agent run``.

Precedence: option, then environment, then the default named here. All of it is read once, before anything is done.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_spot.durations import duration
from airflow_spot.errors import ConfigurationError
from airflow_spot.rundir.layout import CONTRACT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUN = "AIRFLOW_SPOT_RUN"
ATTEMPT = "AIRFLOW_SPOT_ATTEMPT"
METADATA_ENDPOINT = "http://169.254.169.254"
CHECKPOINT_DIR = "/opt/ml/checkpoints"
OUTPUT_DIR = "/opt/ml/model"
STOP_GRACE_SECONDS = 30.0
"""What ECS gives between SIGTERM and SIGKILL where nobody set a stop time-out."""
RECORD_PATIENCE_SECONDS = 300.0
"""A start that cannot read the record for so long ends: an unfenced trainer must not begin."""
HOLD_SECONDS = 5.0
NOTICE_SECONDS = 5.0
"""IMDS throttles by instance; every 5 s is what AWS recommends."""
SCAN_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the supervisor needs to know.

    :param job: the Batch job id, without a node's suffix.
    :param stop_grace_seconds: between SIGTERM and the SIGKILL of the container runtime.
    :param save_interval_seconds: None: Young and Daly's.
    :param complete: marker file name or glob; None: newer sibling or no open file.
    :param step_from: pattern whose first group is the step in a file or directory name.
    """

    run_uri: str
    attempt: int
    job: str
    command: tuple[str, ...]
    checkpoint_dir: Path
    output_dir: Path
    region: str | None = None
    kms_key: str | None = None
    heartbeat_seconds: float = 60.0
    orphan_after_seconds: float = 21600.0
    node: int = 0
    metadata_endpoint: str | None = METADATA_ENDPOINT
    save_interval_seconds: float | None = None
    stop_grace_seconds: float = STOP_GRACE_SECONDS
    complete: str | None = None
    step_from: str | None = None
    record_patience_seconds: float = RECORD_PATIENCE_SECONDS
    notice_seconds: float = NOTICE_SECONDS
    scan_seconds: float = SCAN_SECONDS

    @property
    def hold_seconds(self) -> float:
        """How often the record is read while holding or closing."""
        return min(HOLD_SECONDS, self.heartbeat_seconds)

    @property
    def commits(self) -> bool:
        """Whether this node claims, reports and commits."""
        return self.node == 0


def in_training_run(environment: Mapping[str, str]) -> bool:
    """Whether the environment belongs to a job of a training run."""
    return bool(environment.get(RUN))


def read_settings(
    environment: Mapping[str, str], command: Sequence[str], options: Mapping[str, str | None] | None = None
) -> Settings:
    """Return the settings.

    :param options: of the command line, by the name of the environment variable that stands for each.
    :raises ConfigurationError: names the variable or option, what was expected, and what to do.
    """
    values = {**environment, **{key: value for key, value in (options or {}).items() if value is not None}}
    _check_contract(values)
    if not command:
        raise ConfigurationError("no command to run; write it after two dashes: spot-agent run -- python train.py")
    heartbeat = _seconds(values, "AIRFLOW_SPOT_HEARTBEAT_SECONDS", 60.0)
    return Settings(
        run_uri=_needed(values, RUN),
        attempt=_whole(values, ATTEMPT),
        job=_needed(values, "AWS_BATCH_JOB_ID").partition("#")[0],
        command=tuple(command),
        checkpoint_dir=_directory(values, "AIRFLOW_SPOT_CHECKPOINT_DIR", CHECKPOINT_DIR),
        output_dir=_directory(values, "AIRFLOW_SPOT_OUTPUT_DIR", OUTPUT_DIR),
        region=values.get("AIRFLOW_SPOT_REGION") or None,
        kms_key=values.get("AIRFLOW_SPOT_KMS_KEY") or None,
        heartbeat_seconds=heartbeat,
        orphan_after_seconds=_seconds(values, "AIRFLOW_SPOT_ORPHAN_AFTER_SECONDS", 21600.0),
        node=_whole(values, "AWS_BATCH_JOB_NODE_INDEX", default=0),
        metadata_endpoint=_metadata_endpoint(values),
        # A rehearsal with short heartbeats has short notices, too.
        notice_seconds=min(NOTICE_SECONDS, max(1.0, heartbeat)),
        save_interval_seconds=_optional_seconds(values, "AIRFLOW_SPOT_SAVE_INTERVAL"),
        stop_grace_seconds=_seconds(values, "AIRFLOW_SPOT_STOP_GRACE", STOP_GRACE_SECONDS),
        complete=values.get("AIRFLOW_SPOT_COMPLETE") or None,
        step_from=_pattern(values, "AIRFLOW_SPOT_STEP_FROM"),
    )


def _check_contract(values: Mapping[str, str]) -> None:
    given = values.get("AIRFLOW_SPOT_CONTRACT") or str(CONTRACT)
    if not given.isdigit() or not 1 <= int(given) <= CONTRACT:
        raise ConfigurationError(
            f"AIRFLOW_SPOT_CONTRACT={given!r}, and this agent follows contract {CONTRACT}; "
            "install the airflow-provider-spot of the Airflow side into the training image",
            contract=given,
        )


def _needed(values: Mapping[str, str], name: str) -> str:
    if not values.get(name):
        raise ConfigurationError(
            f"{name} is not set, and {RUN} is; in a job of SpotTrainingOperator both are. "
            "Submit the training through it, or unset both to train without a training run",
            name=name,
        )
    return values[name]


def _whole(values: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = values.get(name) or (_needed(values, name) if default is None else str(default))
    if not text.isdigit() or len(text) > 9:
        raise ConfigurationError(f"{name}={text[:40]!r} is not a whole number", name=name)
    return int(text)


def _seconds(values: Mapping[str, str], name: str, default: float) -> float:
    found = _optional_seconds(values, name)
    return default if found is None else found


def _optional_seconds(values: Mapping[str, str], name: str) -> float | None:
    text = values.get(name)
    if not text:
        return None
    seconds = duration(text, name=name).total_seconds()
    if seconds <= 0:
        raise ConfigurationError(f"{name}={text!r} must be longer than nothing", name=name)
    return seconds


def _pattern(values: Mapping[str, str], name: str) -> str | None:
    text = values.get(name)
    if not text:
        return None
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise ConfigurationError(f"{name}={text!r} is not a regular expression: {error}", name=name) from error
    if groups < 1:
        raise ConfigurationError(f"{name}={text!r} has no group; put the step in one, as in 'step-(\\d+)'", name=name)
    return text


def _metadata_endpoint(values: Mapping[str, str]) -> str | None:
    if values.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    return (values.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or METADATA_ENDPOINT).rstrip("/")


def _directory(values: Mapping[str, str], name: str, usual: str) -> Path:
    """Return a directory that exists and can be written to.

    The usual one is made in a container only: elsewhere two jobs of one machine would share it.
    """
    if given := values.get(name):
        return _made(Path(given).absolute(), name)
    if os.access(usual, os.W_OK | os.X_OK):
        return Path(usual)
    if _in_container(values):
        try:
            return _made(Path(usual), name)
        except ConfigurationError:
            pass
    return Path(tempfile.mkdtemp(prefix=f"{Path(usual).name}-"))


def _made(path: Path, name: str) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"{name}={path} cannot be made: {error.strerror}; give a directory that can", name=name
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{name}={path} cannot be written to; give a directory that can", name=name)
    return path


def _in_container(values: Mapping[str, str]) -> bool:
    return os.getpid() == 1 or any(
        key in values for key in ("ECS_CONTAINER_METADATA_URI_V4", "ECS_CONTAINER_METADATA_URI")
    )
