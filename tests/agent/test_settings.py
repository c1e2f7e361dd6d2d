"""What the agent is told, and what it refuses."""

from __future__ import annotations

import pytest

from airflow_spot.agent.settings import read_settings
from airflow_spot.errors import ConfigurationError

COMMAND = ["python", "train.py"]


@pytest.fixture
def environment(tmp_path):
    return {
        "AIRFLOW_SPOT_RUN": "s3://bucket/run",
        "AIRFLOW_SPOT_ATTEMPT": "3",
        "AIRFLOW_SPOT_CONTRACT": "1",
        "AWS_BATCH_JOB_ID": "job-3",
        "AIRFLOW_SPOT_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        "AIRFLOW_SPOT_OUTPUT_DIR": str(tmp_path / "model"),
    }


def test_the_environment_becomes_settings(environment):
    """Names, defaults and durations in one grammar."""
    found = read_settings({**environment, "AIRFLOW_SPOT_SAVE_INTERVAL": "15m"}, COMMAND)
    assert (found.attempt, found.job, found.heartbeat_seconds, found.hold_seconds) == (3, "job-3", 60.0, 5.0)
    assert found.save_interval_seconds == 900.0
    assert found.checkpoint_dir.is_dir()


def test_an_option_wins_over_the_environment(environment):
    """Option, then environment, then default."""
    options = {"AIRFLOW_SPOT_STOP_GRACE": "2m", "AIRFLOW_SPOT_COMPLETE": None}
    found = read_settings({**environment, "AIRFLOW_SPOT_STOP_GRACE": "9"}, COMMAND, options)
    assert (found.stop_grace_seconds, found.complete) == (120.0, None)


def test_a_node_of_a_job_belongs_to_the_job(environment):
    """The suffix of a node is not part of the job id; only the first node commits."""
    found = read_settings({**environment, "AWS_BATCH_JOB_ID": "job-3#1", "AWS_BATCH_JOB_NODE_INDEX": "1"}, COMMAND)
    assert (found.job, found.commits) == ("job-3", False)


def test_metadata_can_be_turned_off(environment):
    """By the variable that every SDK knows."""
    assert read_settings({**environment, "AWS_EC2_METADATA_DISABLED": "true"}, COMMAND).metadata_endpoint is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"AIRFLOW_SPOT_CONTRACT": "2"}, "contract 1"),
        ({"AIRFLOW_SPOT_ATTEMPT": ""}, "AIRFLOW_SPOT_ATTEMPT is not set"),
        ({"AIRFLOW_SPOT_ATTEMPT": "three"}, "not a whole number"),
        ({"AWS_BATCH_JOB_ID": ""}, "AWS_BATCH_JOB_ID is not set"),
        ({"AIRFLOW_SPOT_SAVE_INTERVAL": "often"}, "is not a duration"),
        ({"AIRFLOW_SPOT_SAVE_INTERVAL": "0"}, "longer than nothing"),
        ({"AIRFLOW_SPOT_STEP_FROM": "step-("}, "not a regular expression"),
        ({"AIRFLOW_SPOT_STEP_FROM": "step"}, "has no group"),
        ({"AIRFLOW_SPOT_CHECKPOINT_DIR": "/proc/none"}, "cannot be made"),
    ],
)
def test_what_contradicts_itself_is_refused(environment, change, words):
    """Each message names the variable and says what to do."""
    with pytest.raises(ConfigurationError, match=words):
        read_settings({**environment, **change}, COMMAND)


def test_no_command_is_refused(environment):
    """With the way to write it."""
    with pytest.raises(ConfigurationError, match=r"-- python train\.py"):
        read_settings(environment, [])
