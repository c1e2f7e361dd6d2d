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
LIVE = "training_job"
"""XCom key of the job that was last seen: ``{job_id, region_name}``."""

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


class _TrainingLink(BaseOperatorLink):
    """Shared: the value lies in an XCom of the task."""

    def _pull(self, operator: BaseOperator, ti_key: TaskInstanceKey, key: str) -> dict[str, Any]:
        """Return what the task pushed, from memory while it runs, else from XCom."""
        found = getattr(operator, "link_values", {}).get(key)
        if found is None:
            from airflow.sdk.execution_time.xcom import XCom

            found = XCom.get_value(ti_key=ti_key, key=key)
        return found if isinstance(found, dict) else {}


class TrainingRunLink(_TrainingLink):
    """The directory that holds everything about a training run."""

    @property
    def name(self) -> str:
        """The button's text."""
        return "Training run"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the S3 console's page of the directory, or its path."""
        pointer = self._pull(operator, ti_key, POINTER)
        return directory_url(pointer["uri"], pointer.get("region_name")) if pointer else ""


class BatchJobLink(_TrainingLink):
    """The job of the newest attempt that the task has seen."""

    @property
    def name(self) -> str:
        """The button's text."""
        return "Batch job"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the Batch console's page of the job, or nothing before there is one, or where no region is known."""
        job = self._pull(operator, ti_key, LIVE)
        return job_url(job["job_id"], job["region_name"]) if job.get("region_name") else ""
