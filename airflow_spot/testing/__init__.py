"""Fakes for tests of your own DAGs, operators and trainers; no AWS account, no waiting, no network.

:class:`FakeClock`
    A clock that stands still until :meth:`FakeClock.advance`.

:class:`FakeBatch`
    A boto3 Batch client (the real one, with its checks, paginators and ``ClientError``) over the model of the local
    cloud in place of the network. Jobs are scripted by :class:`Behaviour`, hosts are lost on demand, and ``Date``
    headers follow the clock::

        batch = FakeBatch()
        batch.script(Behaviour(after=100), Behaviour(exit_code=1))     # the first start and all later ones
        job = batch.submit_job(jobName="a", jobQueue="spot", jobDefinition="airflow-spot")["jobId"]
        batch.clock.advance(30)
        batch.reclaim(job)
        batch.clock.advance(30)
        assert batch.describe_jobs(jobs=[job])["jobs"][0]["statusReason"].startswith("Host EC2")

    ``batch.client("ec2")`` and ``batch.client("ecs")`` know the same hosts. ``batch.faults`` throttles, refuses and
    loses replies; ``batch.calls`` names the operations that came.

:class:`FakeMetadata`
    The instance metadata service (IMDSv2) of one host, over HTTP on this machine::

        with FakeMetadata() as metadata:
            monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url)
            metadata.notice(seconds=120)

The whole local cloud, with real processes, is :class:`airflow_spot.localcloud.LocalCloud`.
"""

from __future__ import annotations

from airflow_spot.localcloud.faults import ApiError, Faults, Loss
from airflow_spot.testing.batch import FakeBatch
from airflow_spot.testing.clock import FakeClock
from airflow_spot.testing.metadata import FakeMetadata
from airflow_spot.testing.runner import Behaviour, ScriptedRunner

__all__ = [
    "ApiError",
    "Behaviour",
    "FakeBatch",
    "FakeClock",
    "FakeMetadata",
    "Faults",
    "Loss",
    "ScriptedRunner",
]
