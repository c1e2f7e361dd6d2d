"""Why an attempt ended, and what follows from it: one table, a row for every outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Why an attempt ended."""

    SUCCEEDED = "SUCCEEDED"
    RECLAIMED = "RECLAIMED"
    HOST_LOST = "HOST_LOST"
    NO_CAPACITY = "NO_CAPACITY"
    NEVER_FITS = "NEVER_FITS"
    START_FAILED = "START_FAILED"
    MISCONFIGURED = "MISCONFIGURED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    TIMED_OUT = "TIMED_OUT"
    USER_ERROR = "USER_ERROR"
    STALLED = "STALLED"
    STOPPED_BY_US = "STOPPED_BY_US"
    STOPPED_BY_OTHERS = "STOPPED_BY_OTHERS"
    SUPERSEDED = "SUPERSEDED"
    INCOMPLETE = "INCOMPLETE"
    RESERVATION_ENDED = "RESERVATION_ENDED"
    UNKNOWN = "UNKNOWN"


class Then(StrEnum):
    """Where the next attempt goes, if there is one."""

    FIRST_CHOICE = "the policy's choice"
    NEXT_TIER = "next tier"
    END = "end"


class Budget(StrEnum):
    """Which limit an outcome counts against. There are three, and no more."""

    NONE = "none"
    RETRIES = "retries"
    """The task's own ``retries``: Airflow decides."""
    RECLAIMS = "max_reclaims"
    INFRASTRUCTURE = "max_infrastructure_failures"


@dataclass(frozen=True, slots=True)
class Row:
    """What follows from an outcome.

    :param means: the start of the sentence a user reads.
    :param advice: which setting changes it, or what to look at.
    """

    then: Then
    budget: Budget
    means: str
    advice: str = ""


TABLE: dict[Outcome, Row] = {
    Outcome.SUCCEEDED: Row(Then.END, Budget.NONE, "the training completed"),
    Outcome.RECLAIMED: Row(
        Then.FIRST_CHOICE, Budget.RECLAIMS, "AWS took the spot machine back", "max_reclaims, promote_after_reclaims"
    ),
    Outcome.HOST_LOST: Row(
        Then.FIRST_CHOICE,
        Budget.INFRASTRUCTURE,
        "the machine went away, not by a spot reclaim",
        "max_infrastructure_failures",
    ),
    Outcome.NO_CAPACITY: Row(Then.NEXT_TIER, Budget.NONE, "the queue had no capacity", "Tier(max_wait=...)"),
    Outcome.NEVER_FITS: Row(
        Then.END, Budget.NONE, "no machine of the queue can hold the job", "the job definition's vCPUs, memory and GPUs"
    ),
    Outcome.START_FAILED: Row(
        Then.FIRST_CHOICE, Budget.INFRASTRUCTURE, "the container did not start", "max_infrastructure_failures"
    ),
    Outcome.MISCONFIGURED: Row(
        Then.END, Budget.NONE, "the set-up cannot work", "the named role, image, endpoint or entry point"
    ),
    Outcome.OUT_OF_MEMORY: Row(
        Then.END, Budget.RETRIES, "the container ran out of memory", "the job definition's memory, or the batch size"
    ),
    Outcome.TIMED_OUT: Row(Then.END, Budget.RETRIES, "the attempt ran into Batch's time-out", "the attempt time-out"),
    Outcome.USER_ERROR: Row(Then.END, Budget.RETRIES, "the training program failed", "the task's retries"),
    Outcome.STALLED: Row(
        Then.FIRST_CHOICE, Budget.INFRASTRUCTURE, "the training stood still", "max_infrastructure_failures"
    ),
    Outcome.STOPPED_BY_US: Row(Then.FIRST_CHOICE, Budget.NONE, "we stopped it"),
    Outcome.STOPPED_BY_OTHERS: Row(Then.END, Budget.NONE, "someone else terminated the job", "clear the task to go on"),
    Outcome.SUPERSEDED: Row(Then.FIRST_CHOICE, Budget.NONE, "another attempt took its place"),
    Outcome.INCOMPLETE: Row(
        Then.FIRST_CHOICE,
        Budget.INFRASTRUCTURE,
        "the job ended without saying that the training was complete",
        "run.finish(), or success_object= for a plain image",
    ),
    Outcome.RESERVATION_ENDED: Row(Then.NEXT_TIER, Budget.NONE, "the reserved capacity ended"),
    Outcome.UNKNOWN: Row(
        Then.FIRST_CHOICE,
        Budget.INFRASTRUCTURE,
        "the job ended for a reason we do not know",
        "max_infrastructure_failures",
    ),
}
