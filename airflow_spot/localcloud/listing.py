"""Choosing and paging what the List operations show."""

from __future__ import annotations

import base64
import binascii

from airflow_spot.localcloud.checks import client_error
from airflow_spot.localcloud.jobs import Job, milliseconds
from airflow_spot.localcloud.resources import JSON


def select(jobs: list[Job], params: JSON) -> tuple[list[Job], int]:
    """Return the jobs that ListJobs shows, newest first, and the longest page that it gives.

    A filter sets aside ``jobStatus`` (but SHARE_IDENTIFIER); without either only RUNNING ones are shown.

    :raises ApiError: more than one filter, or one that is not known.
    """
    filters = params.get("filters") or []
    if len(filters) > 1:
        raise client_error("Only one filter is supported.")
    newest = sorted(jobs, key=lambda job: -job.serial)
    status = str(params.get("jobStatus") or "RUNNING")
    if not filters:
        return [job for job in newest if job.status == status], 1000
    name, values = str(filters[0].get("name")), [str(each) for each in filters[0].get("values") or []]
    chosen = [job for job in newest if any(_matches(job, name, value) for value in values)]
    if name == "SHARE_IDENTIFIER" and params.get("jobStatus"):
        chosen = [job for job in chosen if job.status == status]
    return chosen, 100


def _matches(job: Job, name: str, value: str) -> bool:
    match name:
        case "JOB_NAME":
            return _text(value, job.name)
        case "JOB_DEFINITION":
            return value in {job.definition.arn, job.definition.name} or _text(value, job.definition.name)
        case "BEFORE_CREATED_AT":
            return milliseconds(job.created) < int(value)
        case "AFTER_CREATED_AT":
            return milliseconds(job.created) > int(value)
        case "SHARE_IDENTIFIER":
            return job.request.get("shareIdentifier") == value
        case _:
            raise client_error(f"Filter {name} is not supported.")


def _text(pattern: str, text: str) -> bool:
    if pattern.endswith("*"):
        return text.lower().startswith(pattern[:-1].lower())
    return text.lower() == pattern.lower()


def page(items: list[JSON], key: str, params: JSON, longest: int) -> JSON:
    """Return one page of a list, with ``nextToken`` where more follows.

    :raises ApiError: a token that no page gave.
    """
    size = min(int(params.get("maxResults") or longest), longest)
    begin = _position(params.get("nextToken"))
    shown: JSON = {key: items[begin : begin + size]}
    if begin + size < len(items):
        shown["nextToken"] = base64.urlsafe_b64encode(str(begin + size).encode()).decode()
    return shown


def _position(token: str | None) -> int:
    if not token:
        return 0
    try:
        return int(base64.urlsafe_b64decode(token.encode()).decode())
    except (ValueError, binascii.Error) as error:
        raise client_error("Invalid nextToken.") from error
