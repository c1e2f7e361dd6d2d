"""Where a person looks: the job in the AWS console, and the training run's directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

POINTER = "training_run"
"""XCom key of the pointer to a training run: ``{uri, aws_conn_id, region_name}``."""
JOB = "training_job"
"""Where the operator keeps the job that was last seen: ``{job_id, region_name}``."""

_DOMAINS = {"cn-": "amazonaws.cn", "us-gov-": "amazonaws-us-gov.com"}


def console(region: str) -> str:
    """Return the address of the AWS console that knows a region."""
    domain = next((domain for prefix, domain in _DOMAINS.items() if region.startswith(prefix)), "aws.amazon.com")
    return f"https://{region}.console.{domain}"


def job_url(job_id: str, region: str) -> str:
    """Return the page of a Batch job."""
    return f"{console(region)}/batch/home?region={region}#jobs/detail/{quote(job_id, safe='')}"


def directory_url(uri: str, region: str | None) -> str:
    """Return the S3 page of a run directory, or the directory itself where no console shows it."""
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not region:
        return uri
    return f"{console(region)}/s3/buckets/{bucket}?region={region}&prefix={quote(prefix.rstrip('/'))}/"


class TrainingRunLink(BaseOperatorLink):
    """The directory that holds everything about a training run."""

    @property
    def name(self) -> str:
        """The button's text."""
        return "Training run"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return the S3 console's page of the directory, or its path."""
        pointer = _value(operator, POINTER)
        return directory_url(pointer["uri"], pointer.get("region_name")) if pointer else ""


class BatchJobLink(BaseOperatorLink):
    """The job of the newest attempt. While the task is deferred its trigger writes it, for jobs come and go."""

    @property
    def name(self) -> str:
        """The button's text."""
        return "Batch job"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return the Batch console's page of the job, or nothing before there is one."""
        job = _value(operator, JOB)
        return job_url(job["job_id"], job["region_name"]) if job and job.get("region_name") else ""


def _value(operator: BaseOperator, key: str) -> dict[str, Any]:
    """Return what the running task knows: Airflow asks only there, and keeps the answer in XCom for the page."""
    found: dict[str, Any] = getattr(operator, "link_values", {}).get(key, {})
    return found
