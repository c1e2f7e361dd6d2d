"""Recorded Batch details, a Batch client of plain Python, and a moto server for EC2, ECS and Logs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from airflow_spot.batch.aws import Clients

CLUSTER = "AWSBatch-MySpotCE-34b9c50a-cf83-38e4-94f1-4b7b6119425a"
INSTANCE = "i-0737c70432d64f82a"
HOST_LOST = f"Host EC2 (instance {INSTANCE}) terminated."
ESSENTIAL = "Essential container in task exited"
_ECS = "arn:aws:ecs:us-west-2:111122223333"
ARNS = {
    "containerInstanceArn": f"{_ECS}:container-instance/{CLUSTER}/34fd0f5536dc43bcbc15153177602533",
    "taskArn": f"{_ECS}:task/{CLUSTER}/768909f634d64e42976ae404e740b386",
    "logStreamName": "train/default/768909f634d64e42976ae404e740b386",
}


def attempt(status_reason: str | None, **container: Any) -> dict[str, Any]:
    """One element of attempts[]; keys that are not given are absent, as at AWS."""
    out: dict[str, Any] = {"startedAt": 1765040596993, "stoppedAt": 1765040671155, "container": {**ARNS, **container}}
    return out | ({"statusReason": status_reason} if status_reason else {})


def detail(status: str, reason: str | None = None, attempts: list[dict[str, Any]] | None = None, **more: Any):
    """A job of DescribeJobs."""
    out = {"jobId": "J", "jobName": "train", "jobQueue": "arn:aws:batch:us-west-2:111122223333:job-queue/spot"}
    out |= {"status": status, "attempts": attempts or [], "createdAt": 1765040000000, "startedAt": 1765040596993}
    return out | ({"statusReason": reason} if reason else {}) | more


def lost_host(**more: Any) -> dict[str, Any]:
    """The recorded loss of a host: no exit code, no container reason."""
    return detail("FAILED", HOST_LOST, [attempt(HOST_LOST, networkInterfaces=[])], **more)


def as_tasks(job: dict[str, Any]) -> dict[str, Any]:
    """The same job in the shape of a definition with ecsProperties."""
    attempts = []
    for one in job["attempts"]:
        rest = {key: value for key, value in one.items() if key != "container"}
        inner = {
            key: one["container"][key] for key in ("exitCode", "reason", "logStreamName") if key in one["container"]
        }
        arns = {key: one["container"][key] for key in ("containerInstanceArn", "taskArn") if key in one["container"]}
        attempts.append({**rest, "taskProperties": [{**arns, "containers": [{"name": "main", **inner}]}]})
    return {**job, "container": {}, "attempts": attempts}


def client_error(code: str, status: int = 400, message: str = "no", operation: str = "Call") -> ClientError:
    """An error as botocore raises it."""
    meta = {"HTTPStatusCode": status, "HTTPHeaders": {"date": "Fri, 05 Dec 2025 10:00:00 GMT"}}
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": meta}, operation)


class Recorded:
    """A boto3-shaped client: each method gives its recorded reply, raises it, or calls it with the arguments."""

    def __init__(self, **replies: Any) -> None:
        self.replies = replies
        self.calls: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(**arguments: Any) -> Any:
            self.calls[name].append(arguments)
            reply = self.replies.get(name, {})
            reply = reply(**arguments) if callable(reply) else reply
            if isinstance(reply, Exception):
                raise reply
            return reply

        return call


def clients(batch: Any = None, **others: Any) -> Clients:
    """Clients over one recorded Batch."""
    batch = batch if batch is not None else Recorded()
    return Clients(batch=batch, batch_once=others.pop("batch_once", batch), **others)


@pytest.fixture(scope="session")
def moto_session():
    """A session and the address of a moto server on a free port (starts in about a second)."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    session = boto3.session.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name="us-west-2")
    yield session, f"http://{host}:{port}"
    server.stop()
