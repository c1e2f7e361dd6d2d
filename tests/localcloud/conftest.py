"""Fakes and short cuts shared by the local cloud's tests."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_spot.localcloud.market import Markets, parse
from airflow_spot.testing import FakeBatch


class Cloud(FakeBatch):
    """A fake with the verbs that the tests read by."""

    def submit(self, queue: str = "spot", **request: Any) -> str:
        request = {"jobName": "job", "jobDefinition": "airflow-spot", **request}
        return str(self.submit_job(jobQueue=queue, **request)["jobId"])

    def describe(self, job: str) -> dict[str, Any]:
        return self.describe_jobs(jobs=[job])["jobs"][0]

    def status(self, job: str) -> str:
        return str(self.describe(job)["status"])

    def running_job(self, queue: str = "spot", **request: Any) -> str:
        job = self.submit(queue, **request)
        self.advance(4)
        assert self.status(job) == "RUNNING"
        return job


@pytest.fixture
def cloud() -> Cloud:
    """A calm cloud."""
    return Cloud()


def market(text: dict[str, Any] | list[dict[str, Any]]) -> Markets:
    """Return markets from their tables."""
    return parse({"market": [text] if isinstance(text, dict) else text})
