"""What ECS says of the hosts: DescribeContainerInstances and DescribeTasks."""

from __future__ import annotations

from airflow_spot.localcloud.faults import ApiError
from airflow_spot.localcloud.hosts import Host
from airflow_spot.localcloud.jobs import Attempt, Job, container_instance_arn, task_arn
from airflow_spot.localcloud.resources import JSON
from airflow_spot.localcloud.scheduler import State


def answer(state: State, operation: str, params: JSON) -> JSON | None:
    """Return the answer; None where the question is not about our clusters.

    :raises ApiError: no such cluster.
    """
    if operation not in {"DescribeContainerInstances", "DescribeTasks"}:
        return None
    cluster = str(params.get("cluster", "default")).rsplit("/", 1)[-1]
    if cluster not in {each.cluster for each in state.environments.values()}:
        raise ApiError("ClusterNotFoundException", "Cluster not found.")
    if operation == "DescribeTasks":
        return _tasks(state, cluster, [str(each) for each in params.get("tasks") or []])
    return _instances(state, cluster, [str(each) for each in params.get("containerInstances") or []])


def _instances(state: State, cluster: str, wanted: list[str]) -> JSON:
    hosts = {host.container_instance: host for host in state.hosts.values() if host.cluster == cluster}
    found = [hosts.get(each.rsplit("/", 1)[-1]) for each in wanted]
    shown = [
        _instance(host, arn)
        for host, arn in zip(found, wanted, strict=True)
        # ECS forgets an instance that is gone.
        if host is not None and host.died is None
    ]
    known = {each["containerInstanceArn"] for each in shown}
    return {
        "containerInstances": shown,
        "failures": [{"arn": arn, "reason": "MISSING"} for arn in wanted if arn not in known],
    }


def _instance(host: Host, arn: str) -> JSON:
    status = "DRAINING" if host.warned else "ACTIVE"
    return {"containerInstanceArn": arn, "ec2InstanceId": host.id, "status": status, "agentConnected": True}


def _tasks(state: State, cluster: str, wanted: list[str]) -> JSON:
    pairs = [(job, attempt) for job in state.jobs.values() for attempt in _attempts(job)]
    by_id = {attempt.task: (job, attempt) for job, attempt in pairs if attempt.host.cluster == cluster}
    found = {arn: by_id.get(arn.rsplit("/", 1)[-1]) for arn in wanted}
    return {
        "tasks": [_task(job, attempt) for job, attempt in filter(None, found.values())],
        "failures": [{"arn": arn, "reason": "MISSING"} for arn, pair in found.items() if pair is None],
    }


def _attempts(job: Job) -> list[Attempt]:
    return [*job.attempts, *([job.current] if job.current else [])]


def _task(job: Job, attempt: Attempt) -> JSON:
    shown: JSON = {
        "taskArn": task_arn(job, attempt),
        "containerInstanceArn": container_instance_arn(job, attempt),
        "lastStatus": "STOPPED" if attempt.stopped is not None else "RUNNING",
    }
    if attempt.status_reason is not None:
        shown |= {"stoppedReason": attempt.status_reason, "stopCode": _stop_code(attempt)}
    return shown


def _stop_code(attempt: Attempt) -> str:
    if (attempt.status_reason or "").startswith("Host EC2"):
        return "TerminationNotice"
    if attempt.started is None:
        return "TaskFailedToStart"
    return "UserInitiated" if attempt.stop_reason else "EssentialContainerExited"
