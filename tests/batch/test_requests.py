"""SubmitJob as data."""

from __future__ import annotations

import re

import pytest

from airflow_spot.batch.requests import job_name, run_token, starts_agent, stop_reason, stop_token, submit_request
from airflow_spot.core.model import Tier
from airflow_spot.core.spec import TrainingSpec

RUN = {"run_uri": "s3://bucket/root/dag/manual__2026/train/-1", "run_key": "dag/manual__2026/train/-1", "attempt": 3}
SPOT = Tier.spot("gpu-spot")
AGENT = ("spot-agent", "run")


def spec(**fields) -> TrainingSpec:
    return TrainingSpec(**{"job_definition": "train-gpu", "tiers": (SPOT,), "command": ("python", "train.py")} | fields)


def env_of(container: dict) -> dict[str, str]:
    return {item["name"]: item["value"] for item in container["environment"]}


def test_job_name_is_stable_and_readable():
    """The name shows the training run and the attempt, and tells other run roots apart."""
    name = job_name(**RUN)
    assert f"dag-manual__2026-train--1-{run_token(RUN['run_uri'])}-a0003" == name
    assert name != job_name("s3://other/root/dag/manual__2026/train/-1", RUN["run_key"], 3)
    assert name == job_name(RUN["run_uri"] + "/", RUN["run_key"], 3)


@pytest.mark.parametrize("key", ["", "___", "x" * 500, "ä/ö+ü", "-/-", "manual__2026-01-01T00:00:00+00:00"])
def test_job_name_is_always_legal(key):
    """Any run key gives a name that AWS takes."""
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", job_name("s3://b/" + key, key, 12345))


def test_stop_reason_begins_with_the_token_and_fits():
    """Our own stop is known by its beginning, however long the rest."""
    reason = stop_reason(RUN["run_uri"], "w" * 3000)
    assert reason.startswith(stop_token(RUN["run_uri"]))
    assert len(reason) == 1024


def test_container_request():
    """A plain definition gets command, environment, time-out and exactly one attempt."""
    request = submit_request(spec(environment={"SEED": "1"}, bucket_region="eu-west-1", kms_key="k"), SPOT, **RUN)
    override = request.pop("containerOverrides")
    assert request == {
        "jobName": job_name(**RUN),
        "jobQueue": "gpu-spot",
        "jobDefinition": "train-gpu",
        "retryStrategy": {"attempts": 1},
        "timeout": {"attemptDurationSeconds": 14 * 86400},
    }
    assert override["command"] == ["spot-agent", "run", "--", "python", "train.py"]
    assert env_of(override) == {
        "SEED": "1",
        "AIRFLOW_SPOT_RUN": RUN["run_uri"],
        "AIRFLOW_SPOT_ATTEMPT": "3",
        "AIRFLOW_SPOT_CONTRACT": "1",
        "AIRFLOW_SPOT_REGION": "eu-west-1",
        "AIRFLOW_SPOT_KMS_KEY": "k",
        "AIRFLOW_SPOT_HEARTBEAT_SECONDS": "60",
        "AIRFLOW_SPOT_ORPHAN_AFTER_SECONDS": "21600",
    }


def test_optional_arguments_are_passed_on():
    """Parameters, tags, share and priority reach SubmitJob; a priority of 0 does too."""
    request = submit_request(
        spec(parameters={"p": "1"}, tags={"t": "1"}, share_identifier="ml", scheduling_priority_override=0), SPOT, **RUN
    )
    picked = {name: request[name] for name in ("parameters", "tags", "shareIdentifier", "schedulingPriorityOverride")}
    assert picked == {
        "parameters": {"p": "1"},
        "tags": {"t": "1"},
        "shareIdentifier": "ml",
        "schedulingPriorityOverride": 0,
    }


def test_short_timeout_is_raised_to_what_aws_takes():
    """AWS refuses less than a minute."""
    assert submit_request(spec(attempt_timeout_seconds=5), SPOT, **RUN)["timeout"] == {"attemptDurationSeconds": 60}


def test_user_overrides_survive_and_ours_win():
    """The user's container overrides stay, and cannot point the agent at another training run."""
    overrides = {
        "resourceRequirements": [{"type": "GPU", "value": "1"}],
        "environment": [{"name": "A", "value": "1"}, {"name": "AIRFLOW_SPOT_RUN", "value": "s3://evil"}],
    }
    container = submit_request(spec(container_overrides=overrides), SPOT, **RUN)["containerOverrides"]
    assert container["resourceRequirements"] == overrides["resourceRequirements"]
    assert env_of(container)["A"] == "1"
    assert env_of(container)["AIRFLOW_SPOT_RUN"] == RUN["run_uri"]
    assert overrides["environment"][1]["value"] == "s3://evil"


@pytest.mark.parametrize(
    ("fields", "command"),
    [
        ({"command": None}, None),
        ({"agent": False}, ["python", "train.py"]),
        ({"command": (*AGENT, "--save-interval", "9", "--", "x")}, [*AGENT, "--save-interval", "9", "--", "x"]),
        ({"command": None, "container_overrides": {"command": ["x"]}}, ["spot-agent", "run", "--", "x"]),
    ],
    ids=["definition's", "plain image", "already prefixed", "from container_overrides"],
)  # fmt: skip
def test_agent_prefix(fields, command):
    """The agent is put before a command once, and only where it is in use."""
    assert submit_request(spec(**fields), SPOT, **RUN)["containerOverrides"].get("command") == command


def test_ecs_properties_request():
    """A definition with ecsProperties gets its overrides at the essential container; others keep theirs."""
    definition = {
        "revision": 7,
        "ecsProperties": {
            "taskProperties": [
                {"containers": [{"name": "log", "essential": False}, {"name": "main", "essential": True}]}
            ]
        },
    }
    override = {"taskProperties": [{"containers": [{"name": "log", "command": ["tail"]}]}]}
    request = submit_request(spec(ecs_properties_override=override), SPOT, **RUN, definition=definition)
    main, side = request["ecsPropertiesOverride"]["taskProperties"][0]["containers"]
    assert request["jobDefinition"] == "train-gpu:7"
    assert "containerOverrides" not in request
    assert (main["name"], main["command"][:3]) == ("main", ["spot-agent", "run", "--"])
    assert env_of(main)["AIRFLOW_SPOT_ATTEMPT"] == "3"
    assert side == {"name": "log", "command": ["tail"]}


def test_multi_node_request():
    """Every node of a multi-node job gets the agent."""
    request = submit_request(spec(), SPOT, **RUN, definition={"nodeProperties": {"numNodes": 2}})
    node = request["nodeOverrides"]["nodePropertyOverrides"][0]
    assert node["targetNodes"] == "0:"
    assert node["containerOverrides"]["command"][:2] == ["spot-agent", "run"]


def test_eks_request():
    """A pod gets command and environment in its own words."""
    definition = {"eksProperties": {"podProperties": {"containers": [{"name": "main"}]}}}
    request = submit_request(spec(), SPOT, **RUN, definition=definition)
    container = request["eksPropertiesOverride"]["podProperties"]["containers"][0]
    assert container["name"] == "main"
    assert {"name": "AIRFLOW_SPOT_ATTEMPT", "value": "3"} in container["env"]


@pytest.mark.parametrize("name", ["train-gpu:3", "arn:aws:batch:us-east-1:1:job-definition/train-gpu:3"])
def test_given_revision_is_kept(name):
    """A revision that the user pinned is not pinned again."""
    assert submit_request(spec(job_definition=name), SPOT, **RUN, definition={"revision": 9})["jobDefinition"] == name


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["spot-agent", "run", "--", "x"], True),
        (["/opt/venv/bin/spot-agent", "run"], True),
        (["python", "-m", "airflow_spot.agent", "run", "--", "x"], True),
        (["/usr/bin/python3.12", "-m", "airflow_spot.agent", "run"], True),
        (["sh", "-c", "exec spot-agent run -- python train.py"], True),
        (["bash", "-lc", "spot-agent run -- python train.py"], True),
        (["spot-agent", "check"], False),
        (["python", "train.py"], False),
        (["sh", "-c", "echo 'unbalanced"], False),
        ([], False),
    ],
)
def test_starts_agent(command, expected):
    """The agent is recognised by name, as a module, and behind a shell."""
    assert expected == starts_agent(command)


def test_request_is_what_botocore_takes():
    """AWS's own service model accepts every kind of request."""
    import boto3
    from botocore.validate import ParamValidator

    shape = boto3.client("batch", region_name="us-east-1").meta.service_model.operation_model("SubmitJob").input_shape
    kinds = [
        None,
        {"ecsProperties": {"taskProperties": [{"containers": [{"name": "m"}]}]}},
        {"nodeProperties": {"numNodes": 2}},
        {"eksProperties": {"podProperties": {"containers": [{"name": "m"}]}}},
    ]
    for definition in kinds:
        report = ParamValidator().validate(submit_request(spec(), SPOT, **RUN, definition=definition), shape)
        assert report.generate_report() == ""
