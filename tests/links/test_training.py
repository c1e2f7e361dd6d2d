"""Where the links lead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_spot.links.training import BatchJobLink, TrainingRunLink, directory_url, job_url


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("eu-west-1", "eu-west-1.console.aws.amazon.com"),
        ("cn-north-1", "cn-north-1.console.amazonaws.cn"),
        ("us-gov-west-1", "us-gov-west-1.console.amazonaws-us-gov.com"),
    ],
)
def test_job_page_knows_the_partition(region: str, host: str) -> None:
    """A job's page is in the console of its region and partition."""
    assert job_url("j-1", region) == f"https://{host}/batch/home?region={region}#jobs/detail/j-1"


def test_directory_page() -> None:
    """A directory in S3 has a page; anything else is shown as it is."""
    page = directory_url("s3://bucket/runs/dag/manual__2026/train/-1", "eu-west-1")
    assert page == (
        "https://eu-west-1.console.aws.amazon.com/s3/buckets/bucket?region=eu-west-1&"
        "prefix=runs/dag/manual__2026/train/-1/"
    )
    assert directory_url("memory://bucket/run", "eu-west-1") == "memory://bucket/run"


@pytest.mark.parametrize(
    ("link", "values", "url"),
    [
        (TrainingRunLink(), {"training_run": {"uri": "s3://b/r", "region_name": None}}, "s3://b/r"),
        (BatchJobLink(), {"training_job": {"job_id": "j", "region_name": "us-east-1"}}, job_url("j", "us-east-1")),
    ],
    ids=["directory", "job"],
)
def test_links_of_a_running_task(link: Any, values: dict[str, Any], url: str) -> None:
    """While the task runs its links come from memory, without a question to Airflow."""
    assert link.get_link(SimpleNamespace(link_values=values), ti_key=None) == url


def test_no_link_before_there_is_something() -> None:
    """A task that knows nothing yet has empty links, and asks Airflow nothing."""
    bare = SimpleNamespace()
    assert [TrainingRunLink().get_link(bare, ti_key="k"), BatchJobLink().get_link(bare, ti_key="k")] == ["", ""]
