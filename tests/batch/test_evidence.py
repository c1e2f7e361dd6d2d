"""What became of the machine: recorded Batch, and EC2 and ECS of a moto server."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

from airflow_spot.batch.aws import AwsClock, Clients
from airflow_spot.batch.evidence import Evidence, Gatherer, capacity_of, cluster_of
from airflow_spot.batch.jobs import job_seen
from airflow_spot.rundir.values import Heartbeat, Phase

from .conftest import ARNS, CLUSTER, INSTANCE, Recorded, client_error, clients, detail, lost_host


def environment(kind: str, name: str = "ce", cluster: str = CLUSTER) -> dict:
    return {
        "computeEnvironmentName": name,
        "computeEnvironmentArn": f"arn:aws:batch:us-west-2:1:compute-environment/{name}",
        "ecsClusterArn": f"arn:aws:ecs:us-west-2:1:cluster/{cluster}",
        "computeResources": {"type": kind},
    }


def batch(*environments: dict, **replies) -> Recorded:
    return Recorded(describe_compute_environments={"computeEnvironments": list(environments)}, **replies)


def gather(made: Clients, job: dict | None = None, **options) -> Evidence:
    return Gatherer(made, AwsClock()).gather(job_seen(job or lost_host()), **{"market": "spot"} | options)


def instance_reply(**fields) -> dict:
    seen = {"InstanceId": INSTANCE, "InstanceType": "g5.xlarge", "Placement": {"AvailabilityZone": "us-west-2a"}}
    return {"Reservations": [{"Instances": [seen | fields]}]}


def test_reclaimed_instance():
    """Compute environment, instance and spot request are all asked, and all answers are told."""
    ec2 = Recorded(
        describe_instances=instance_reply(
            InstanceLifecycle="spot",
            State={"Name": "terminated"},
            StateReason={"Code": "Server.SpotInstanceTermination"},
            StateTransitionReason="Service initiated (2025-12-06 17:03:00 GMT)",
        ),
        describe_spot_instance_requests={
            "SpotInstanceRequests": [{"Status": {"Code": "instance-terminated-no-capacity"}}]
        },
    )
    found = gather(clients(batch(environment("EC2", "other", "X"), environment("SPOT")), ec2=ec2))
    assert found == Evidence(
        compute_environment="ce",
        capacity="SPOT",
        instance=INSTANCE,
        instance_type="g5.xlarge",
        zone="us-west-2a",
        lifecycle="spot",
        state="terminated",
        state_reason="Server.SpotInstanceTermination",
        spot_status="instance-terminated-no-capacity",
        lines=(
            "compute environment ce is of type SPOT",
            (
                f"EC2: {INSTANCE} is terminated, spot, g5.xlarge in us-west-2a: "
                "Server.SpotInstanceTermination Service initiated (2025-12-06 17:03:00 GMT)"
            ),
            f"EC2: the spot request of {INSTANCE} has status instance-terminated-no-capacity",
        ),
    )


def test_no_permission_lowers_nothing_but_knowledge(caplog):
    """Each denied action is named in the evidence and logged once, and ends nothing."""
    denied = client_error("UnauthorizedOperation", 403)
    made = clients(
        batch(environment("SPOT")), ec2=Recorded(describe_instances=denied, describe_spot_instance_requests=denied)
    )
    gatherer = Gatherer(made, AwsClock())
    with caplog.at_level(logging.WARNING):
        found = [gatherer.gather(job_seen(lost_host()), market="spot") for _ in range(2)]
    assert found[0] == found[1]
    assert found[0].capacity == "SPOT"
    assert found[0].denied == ("ec2:DescribeInstances", "ec2:DescribeSpotInstanceRequests")
    assert len(caplog.records) == 2


def test_environments_are_kept():
    """The compute environments are read once for many attempts, over all pages."""
    pages = {
        None: {"computeEnvironments": [environment("EC2", "other", "X")], "nextToken": "2"},
        "2": {"computeEnvironments": [environment("SPOT")]},
    }
    recorded = Recorded(describe_compute_environments=lambda nextToken=None: pages[nextToken])  # noqa: N803
    gatherer = Gatherer(clients(recorded), AwsClock())
    assert [gatherer.gather(job_seen(lost_host()), market="spot").capacity for _ in range(3)] == ["SPOT"] * 3
    assert len(recorded.calls["describe_compute_environments"]) == 2


def test_queue_stands_in_for_a_cluster_that_no_environment_has():
    """A job without ARNs is placed by its queue, if all its compute environments are of one market."""
    job = detail("FAILED", "x")
    queue = {"jobQueues": [{"computeEnvironmentOrder": [{"computeEnvironment": "a"}, {"computeEnvironment": "b"}]}]}
    same = batch(environment("SPOT", "a"), environment("SPOT", "b"), describe_job_queues=queue)
    assert (gather(clients(same), job).compute_environment, gather(clients(same), job).capacity) == ("a, b", "SPOT")
    mixed = batch(environment("SPOT", "a"), environment("EC2", "b"), describe_job_queues=queue)
    assert gather(clients(mixed), job).capacity is None


def test_job_that_never_had_a_machine():
    """Nothing is asked for a job that was cancelled in the queue."""
    job = {"jobId": "J", "status": "FAILED", "statusReason": "no", "attempts": []}
    recorded = batch(environment("SPOT"))
    assert gather(clients(recorded), job) == Evidence(lines=("the job never had a machine",))
    assert not recorded.calls


def test_capacity_block():
    """The end of a Capacity Block is looked up."""
    ends = datetime(2026, 1, 1, tzinfo=UTC)
    ec2 = Recorded(
        describe_instances=instance_reply(InstanceLifecycle="capacity-block", CapacityReservationId="cr-1"),
        describe_capacity_reservations={"CapacityReservations": [{"EndDate": ends}]},
    )
    assert gather(clients(batch(environment("EC2")), ec2=ec2)).reservation_ends == ends


def test_node_of_a_pod_is_looked_up_by_its_name():
    """A pod tells its node, and EC2 knows nodes by their private name."""
    ec2 = Recorded(describe_instances=instance_reply())
    job = detail("FAILED", "x", eksAttempts=[{"nodeName": "ip-10-0-0-1.ec2.internal"}])
    assert gather(clients(batch(), ec2=ec2), job).instance == INSTANCE
    assert ec2.calls["describe_instances"][0]["Filters"] == [
        {"Name": "private-dns-name", "Values": ["ip-10-0-0-1.ec2.internal"]}
    ]


def test_moto_instance_that_was_terminated(moto_session):
    """A real look-up gives type, zone and reason of an on-demand instance; no spot request is asked for."""
    session, endpoint = moto_session
    ec2 = session.client("ec2", endpoint_url=endpoint)
    image = ec2.describe_images()["Images"][0]["ImageId"]
    instance = ec2.run_instances(ImageId=image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1)["Instances"][0][
        "InstanceId"
    ]
    ec2.terminate_instances(InstanceIds=[instance])
    made = clients(batch(environment("EC2")), ec2=Clients.from_session(session, endpoint_url=endpoint).ec2)
    found = gather(made, detail("FAILED", f"Host EC2 (instance {instance}) terminated."))
    assert (found.instance, found.instance_type, found.lifecycle) == (instance, "g4dn.xlarge", "on-demand")
    assert (found.state, found.state_reason) == ("terminated", "Client.UserInitiatedShutdown")
    assert found.zone.startswith("us-west-2")


def test_moto_instance_that_is_gone(moto_session):
    """An unknown instance is no error: a filter is used, not an id."""
    made = Clients.from_session(moto_session[0], endpoint_url=moto_session[1])
    found = gather(clients(batch(environment("SPOT")), ec2=made.ec2))
    assert (found.instance, found.state, found.state_reason, found.denied) == (INSTANCE, "gone", None, ())


def test_moto_instance_behind_a_container_instance(moto_session):
    """Where no text names the instance, ECS tells which one the container ran on."""
    import json

    session, endpoint = moto_session
    ec2, ecs = session.client("ec2", endpoint_url=endpoint), session.client("ecs", endpoint_url=endpoint)
    image = ec2.describe_images()["Images"][0]["ImageId"]
    instance = ec2.run_instances(ImageId=image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1)["Instances"][0][
        "InstanceId"
    ]
    ecs.create_cluster(clusterName="AWSBatch-x")
    document = {"instanceId": instance, "region": "us-west-2"}
    registered = ecs.register_container_instance(cluster="AWSBatch-x", instanceIdentityDocument=json.dumps(document))
    arn = registered["containerInstance"]["containerInstanceArn"]
    if cluster_of(arn) is None:  # moto's default account gives the old form
        arn = arn.replace("container-instance/", "container-instance/AWSBatch-x/")
    made = Clients.from_session(session, endpoint_url=endpoint)
    job = detail("FAILED", "x", [{"container": {"containerInstanceArn": arn, "exitCode": 143}}])
    found = gather(clients(batch(environment("SPOT", cluster="AWSBatch-x")), ec2=made.ec2, ecs=made.ecs), job)
    assert (found.instance, found.instance_type, found.state) == (instance, "g4dn.xlarge", "running")


def test_agents_own_instance_is_used():
    """Where neither text nor ECS names an instance, the agent's heartbeat does."""
    beat = Heartbeat(attempt=1, job="J", incarnation=1, phase=Phase.TRAINING, instance="i-0000000a")
    ec2 = Recorded(describe_instances={"Reservations": []})
    assert gather(clients(batch(), ec2=ec2), detail("FAILED", "x"), heartbeat=beat).instance == "i-0000000a"


@pytest.mark.parametrize(
    ("arn", "cluster"),
    [(ARNS["taskArn"], CLUSTER), ("arn:aws:ecs:us-west-2:1:container-instance/abc", None), (None, None)],
)
def test_cluster_of(arn, cluster):
    """The middle segment of an ARN names the cluster; old ARNs have none."""
    assert cluster == cluster_of(arn)


def test_managed_instances_may_be_spot():
    """A compute environment of managed instances says inside how it buys."""
    template = {"instanceLaunchTemplate": {"capacityOptionType": "SPOT"}}
    resources = {"type": "ECS_MANAGED_INSTANCES", "managedInstancesProvider": template}
    assert capacity_of({"computeResources": resources}) == "SPOT"
    assert capacity_of({}) is None
