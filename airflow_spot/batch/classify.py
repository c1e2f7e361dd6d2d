"""Why a job ended or waits. Pure, and the only module that reads the vendor's texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_spot.core.outcomes import Outcome
from airflow_spot.core.seen import JobSeen, JobStatus
from airflow_spot.rundir.values import End, Heartbeat, Verdict

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_spot.batch.evidence import Evidence

DWELL_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """What keeps a waiting job from starting.

    :param outcome: ``NO_CAPACITY``, ``NEVER_FITS`` or ``MISCONFIGURED``: what it would be if it were ended now.
    :param settled: it has lasted long enough to act on; capacity is settled at once, and is no failure.
    :param sentence: what a user reads, with AWS's own words.
    """

    outcome: Outcome
    settled: bool
    sentence: str
    reason: str


def blocked_code(reason: str) -> str | None:
    """Return the code before the explanation; None where the text is none of Batch's blocked reasons."""
    code = reason.split(" - ", 1)[0].strip().upper()
    return code if code.startswith(("CAPACITY:", "MISCONFIGURATION:", "UNDETERMINED")) else None


def blocked(reason: str, waited_seconds: float) -> Blocked | None:
    """Return what Batch says of a job at the head of its queue that does not start."""
    code = blocked_code(reason)
    if code is None:
        return None
    outcome = Outcome.NO_CAPACITY
    if code.startswith("MISCONFIGURATION:"):
        fits = "RESOURCE" in code
        outcome = Outcome.NEVER_FITS if fits else Outcome.MISCONFIGURED
    settled = outcome is Outcome.NO_CAPACITY or waited_seconds >= DWELL_SECONDS
    return Blocked(outcome=outcome, settled=settled, sentence=f'AWS Batch says: "{reason}"', reason=reason)


def verdict(
    job: JobSeen,
    *,
    market: str,
    evidence: Evidence,
    end: End | None,
    agent: bool,
    stop_token: str,
    trusted: bool,
    heartbeat: Heartbeat | None = None,
    now: datetime | None = None,
) -> Verdict:
    """Return why a job ended (first form; the full table follows)."""
    if end is not None and end.completed:
        return Verdict(outcome=Outcome.SUCCEEDED)
    if stop_token and job.status_reason.startswith(stop_token):
        return Verdict(outcome=Outcome.STOPPED_BY_US)
    if job.status is JobStatus.SUCCEEDED:
        return Verdict(outcome=Outcome.SUCCEEDED if trusted else Outcome.INCOMPLETE)
    return Verdict(outcome=Outcome.UNKNOWN, confidence="low", sentence=job.status_reason)
