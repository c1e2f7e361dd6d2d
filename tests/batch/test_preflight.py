"""What is refused or warned of before a submit. Sizes come from a moto server's EC2."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from airflow_spot.batch.aws import Clients
from airflow_spot.batch.client import BatchBackend
from airflow_spot.core.model import Tier
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.errors import ConfigurationError

from .conftest import Recorded, client_error, clients

RUN = "s3://bucket/root/key"
SPOT, ON_DEMAND = Tier.spot("spot"), Tier.on_demand("on-demand")
AGENT = ["spot-agent", "run", "--", "python", "train.py"]


def requirements(**values: float) -> list[dict[str, str]]:
    return [{"type": kind, "value": str(value)} for kind, value in values.items()]


def definition(**fields: Any) -> dict[str, Any]:
    container = {"command": AGENT, "resourceRequirements": requirements(VCPU=4, MEMORY=14000, GPU=1)}
    base = {"jobDefinitionName": "train", "revision": 1, "status": "ACTIVE", "type": "container"}
    return base | {"containerProperties": container} | fields


def container(**fields: Any) -> dict[str, Any]:
    """A definition whose container is changed."""
    return definition(containerProperties=definition()["containerProperties"] | fields)


def environment(name: str, kind: str, types: list[str] | None = None, **fields: Any) -> dict[str, Any]:
    resources = {"type": kind, "instanceTypes": types or ["g4dn.xlarge"]}
    return {
        "computeEnvironmentName": name,
        "state": "ENABLED",
        "status": "VALID",
        "computeResources": resources,
    } | fields


def queue(name: str, *environments: str, **fields: Any) -> dict[str, Any]:
    order = [{"order": number, "computeEnvironment": one} for number, one in enumerate(environments, 1)]
    base = {"jobQueueName": name, "jobQueueArn": f"arn:aws:batch:us-west-2:1:job-queue/{name}", "state": "ENABLED"}
    return base | {"status": "VALID", "computeEnvironmentOrder": order} | fields


class Account:
    """A Batch account as its describe calls show it."""

    def __init__(self) -> None:
        self.environments = {
            one["computeEnvironmentName"]: one for one in (environment("ce-spot", "SPOT"), environment("ce-od", "EC2"))
        }
        self.queues = {"spot": queue("spot", "ce-spot"), "on-demand": queue("on-demand", "ce-od")}
        self.definition: dict[str, Any] | None = definition()
        self.replies: dict[str, Any] = {}

    def check(self, ec2: Any = None, **fields: Any) -> list[str]:
        """Preflight a spec against this account."""
        base = {"job_definition": "train", "tiers": (SPOT, ON_DEMAND)}
        batch = Recorded(**{
            "describe_job_definitions": {"jobDefinitions": [self.definition] if self.definition else []},
            "describe_job_queues": self._queues,
            "describe_compute_environments": self._environments,
        } | self.replies)  # fmt: skip
        return BatchBackend(clients(batch, ec2=ec2)).preflight(TrainingSpec(**base | fields), RUN)

    def _queues(self, jobQueues: list[str]) -> dict[str, Any]:  # noqa: N803
        return {"jobQueues": [self.queues[one] for one in jobQueues if one in self.queues]}

    def _environments(self, computeEnvironments: list[str]) -> dict[str, Any]:  # noqa: N803
        return {"computeEnvironments": [self.environments[one] for one in computeEnvironments]}


@pytest.fixture
def account() -> Account:
    return Account()


@pytest.fixture(scope="module")
def ec2(moto_session):
    return Clients.from_session(moto_session[0], endpoint_url=moto_session[1]).ec2


def test_sound_set_up_has_no_warnings(account, ec2):
    """A set-up that can work passes in silence."""
    assert account.check(ec2) == []


def test_missing_definition(account):
    """A job definition that is not there is named."""
    account.definition = None
    with pytest.raises(
        ConfigurationError, match=r"job_definition='train'.*no active AWS Batch job definition.*register"
    ):
        account.check()


def test_definition_without_the_agent(account):
    """agent=True with neither a command nor a definition that starts the agent would train without a fence."""
    account.definition = container(command=["python", "train.py"])
    with pytest.raises(
        ConfigurationError, match=r"its command \(python train.py\) does not start the agent.*command=\[...\]"
    ):
        account.check()
    assert account.check(agent=False) == []
    assert account.check(command=("python", "train.py")) == []
    assert account.check(container_overrides={"command": ["python", "train.py"]}) == []


@pytest.mark.parametrize("command", [AGENT, ["python", "-m", "airflow_spot.agent", "run", "--", "x"]])
def test_definition_that_starts_the_agent(account, command):
    """The agent counts by name and as a module, in a definition of either kind."""
    account.definition = container(command=command)
    assert account.check() == []
    containers = [{"name": "side", "essential": False}, {"name": "main", "command": command}]
    account.definition = definition(ecsProperties={"taskProperties": [{"containers": containers}]}, type="container")
    del account.definition["containerProperties"]
    assert [text for text in account.check() if "agent" in text] == []


def test_own_retries_of_the_definition(account):
    """The definition's own retry strategy is overridden, and that is said."""
    account.definition = definition(retryStrategy={"attempts": 3})
    (warning,) = account.check()
    assert "retries 3 times inside Batch; that is overridden" in warning


def test_multi_node_on_spot(account):
    """A multi-node job on a spot queue would wait for ever."""
    account.definition = definition(type="multinode", nodeProperties={"numNodes": 2, "nodeRangeProperties": []})
    with pytest.raises(ConfigurationError, match=r"'spot'.*multi-node .2 nodes.*RUNNABLE for ever"):
        account.check(command=("x",))
    assert account.check(command=("x",), tiers=(ON_DEMAND,)) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"state": "DISABLED"}, "is DISABLED.*enable it"),
        ({"status": "INVALID", "statusReason": "no CE"}, "is INVALID .AWS says: 'no CE'"),
        ({"schedulingPolicyArn": "arn:x"}, "fair-share.*give share_identifier="),
        ({"jobQueueType": "SAGEMAKER_TRAINING"}, "SageMaker"),
    ],
)
def test_queue_that_takes_no_jobs(account, fields, words):
    """A queue that would refuse the job is refused before, by tier and name."""
    account.queues["spot"] |= fields
    with pytest.raises(ConfigurationError, match=f"Tier 'spot': job queue 'spot' .*{words}"):
        account.check()


def test_missing_queue(account):
    """A queue that is not there is named, with its tier."""
    del account.queues["on-demand"]
    with pytest.raises(ConfigurationError, match="Tier 'on_demand': job queue 'on-demand' does not exist"):
        account.check()


def test_share_identifier(account):
    """A share satisfies a fair-share queue, and is warned of where a queue has none."""
    account.queues["spot"] |= {"schedulingPolicyArn": "arn:x"}
    (warning,) = account.check(share_identifier="ml")
    assert "'on-demand' has no fair-share policy" in warning


def test_two_tiers_on_one_mixed_queue(account):
    """A move between two tiers on one mixed queue would change nothing."""
    account.queues["both"] = queue("both", "ce-spot", "ce-od")
    with pytest.raises(ConfigurationError, match="mixes EC2 and SPOT compute environments and serves 2 tiers"):
        account.check(tiers=(Tier.spot("both"), Tier.on_demand("both")))


def test_one_mixed_queue(account):
    """A single mixed queue works, but its market is Batch's choice."""
    account.queues["both"] = queue("both", "ce-spot", "ce-od")
    (warning,) = account.check(tiers=(Tier.spot("both"), ON_DEMAND))
    assert "Batch chooses the market" in warning


def test_market_that_the_queue_does_not_have(account):
    """A tier whose name is not its queue's market is said: a deadline would rest on it."""
    first, second = account.check(tiers=(Tier.spot("on-demand"), Tier.reserved("spot")))
    assert "it costs the full price" in first
    assert "it keeps no deadline" in second


def test_no_usable_compute_environment(account):
    """A queue with nothing enabled behind it keeps jobs waiting."""
    account.environments["ce-spot"]["state"] = "DISABLED"
    (warning,) = account.check()
    assert "every compute environment of job queue 'spot' is DISABLED or INVALID" in warning


@pytest.mark.parametrize("request_", [{"GPU": 8}, {"VCPU": 64}, {"MEMORY": 999999}], ids=str)
def test_job_that_no_machine_holds(account, ec2, request_):
    """A job that is larger than every machine of a tier is refused, with both sizes."""
    account.definition = container(
        resourceRequirements=requirements(**{"VCPU": 4, "MEMORY": 8000, "GPU": 1} | request_)
    )
    with pytest.raises(ConfigurationError, match=r"no machine that holds the job: .*there are g4dn\.xlarge"):
        account.check(ec2)


def test_override_counts_in_the_size(account, ec2):
    """What the operator overrides is what must fit."""
    overrides = {"resourceRequirements": requirements(GPU=4)}
    with pytest.raises(ConfigurationError, match="4 GPUs"):
        account.check(ec2, container_overrides=overrides)
    account.environments["ce-spot"]["computeResources"]["instanceTypes"] = ["g4dn.xlarge", "g4dn.12xlarge"]
    assert account.check(ec2, container_overrides=overrides, tiers=(SPOT,)) == []


@pytest.mark.parametrize("types", [["optimal"], ["g5"], ["g4dn.xlarge", "p4d"], None], ids=str)
def test_families_claim_nothing(account, ec2, types):
    """A family, 'optimal' or no list at all may bring any machine: nothing is refused."""
    account.definition = container(resourceRequirements=requirements(VCPU=4, MEMORY=999999, GPU=8))
    for one in account.environments.values():
        one["computeResources"]["instanceTypes"] = types or []
    assert account.check(ec2) == []


def test_nearly_all_memory(account, ec2):
    """Who asks for all of a machine's memory never starts: the machine needs some itself."""
    account.definition = container(resourceRequirements=requirements(VCPU=4, MEMORY=16000, GPU=1))
    warning = account.check(ec2, tiers=(SPOT,))[0]
    assert "g4dn.xlarge has 16384 MiB" in warning
    assert "Ask for at most 15073 MiB" in warning


@pytest.mark.parametrize("types", [["g4dn.xlarge"], ["g5", "p4d.24xlarge"]], ids=str)
def test_gpu_machines_without_a_gpu(account, ec2, types):
    """A job that forgot its GPU would train on the CPU of a GPU machine."""
    account.environments["ce-spot"]["computeResources"]["instanceTypes"] = types
    account.definition = container(resourceRequirements=requirements(VCPU=4, MEMORY=8000))
    (warning,) = account.check(ec2, tiers=(SPOT,))
    assert "asks for no GPU" in warning


@pytest.mark.parametrize(
    ("method", "action"),
    [
        ("describe_job_queues", "batch:DescribeJobQueues"),
        ("describe_compute_environments", "batch:DescribeComputeEnvironments"),
        ("describe_job_definitions", "batch:DescribeJobDefinitions"),
    ],
)
def test_permission_that_is_missed(account, method, action):
    """What may not be read is a warning that names the action, once."""
    account.replies[method] = client_error("AccessDeniedException", 403)
    warnings = account.check()
    assert warnings
    assert all(f"{action} is not allowed" in text for text in warnings)
    assert len(warnings) == len(set(warnings))


@pytest.mark.parametrize(("method", "action"), [("describe_jobs", "DescribeJobs"), ("list_jobs", "ListJobs")])
def test_permission_that_is_needed(account, method, action):
    """Without describing and listing jobs nothing can be watched: refused before a submit."""
    account.replies[method] = client_error("AccessDeniedException", 403)
    with pytest.raises(ConfigurationError, match=f"batch:{action} is not allowed"):
        account.check()


def test_permission_for_evidence(account):
    """Without EC2's word reclaims are less certain, and a dry run shows it."""
    denied = client_error("UnauthorizedOperation", 403)
    warnings = account.check(Recorded(describe_instances=denied, describe_instance_types=denied))
    assert any("ec2:DescribeInstances is not allowed" in text for text in warnings)
    assert any("ec2:DescribeInstanceTypes is not allowed" in text for text in warnings)


def test_no_answer_proves_nothing(account):
    """An outage of the checks refuses nothing."""
    gone = EndpointConnectionError(endpoint_url="x")
    account.replies = dict.fromkeys(("describe_job_queues", "describe_job_definitions", "describe_jobs"), gone)
    assert any("gave no answer" in text for text in account.check())


def test_old_fields_of_a_definition(account, ec2):
    """vcpus and memory of old definitions are read as well."""
    account.definition = definition(containerProperties={"command": AGENT, "vcpus": 200, "memory": 1000})
    with pytest.raises(ConfigurationError, match="200 vCPUs"):
        account.check(ec2)
