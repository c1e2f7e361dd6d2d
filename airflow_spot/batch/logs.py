"""The last lines that a job wrote. A missing stream is a note, never an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_spot.core.seen import JobSeen

MOST_STREAMS = 10
PAGE = 10_000


def tail(client: Any, job: JobSeen, lines: int = 50) -> list[str]:
    """Return the last lines of every log stream of a job, oldest stream first.

    :param client: boto3's ``logs``; None where logs are not to be read.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    if client is None or lines <= 0:
        return []
    if not job.log_streams:
        return [f"[job {job.ref} has no log stream: its container did not start, or it logs elsewhere]"]
    out: list[str] = []
    for stream in job.log_streams[-MOST_STREAMS:]:
        if len(job.log_streams) > 1:
            out.append(f"[log stream {stream}]")
        try:
            out += _last(client, job.log_group, stream, lines)
        except (ClientError, BotoCoreError) as error:
            out.append(f"[log stream {stream} of {job.log_group} cannot be read: {error}]")
    return out


def _last(client: Any, group: str, stream: str, lines: int) -> list[str]:
    """Read backwards; a page may be empty and not the last, which is told by a token that repeats."""
    found: list[str] = []
    token: dict[str, str] = {}
    while len(found) < lines:
        page = client.get_log_events(
            logGroupName=group, logStreamName=stream, startFromHead=False, limit=min(lines, PAGE), **token
        )
        found = [event["message"].rstrip("\n") for event in page.get("events", ())] + found
        following = page.get("nextBackwardToken")
        if not following or following == token.get("nextToken"):
            break
        token = {"nextToken": following}
    return found[-lines:]
