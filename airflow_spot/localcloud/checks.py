"""AWS Batch's checks of what it is sent, with its sentences."""

from __future__ import annotations

import re
from typing import Any

from airflow_spot.localcloud.faults import ApiError
from airflow_spot.localcloud.resources import JSON

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_PATTERN = re.compile(r"[A-Za-z0-9.:\s]{0,511}\*?|\*")
_DIGITS = re.compile(r"[0-9]{0,511}\*?")


def client_error(message: str) -> ApiError:
    """Return the error that AWS Batch gives for everything a caller did wrong."""
    return ApiError("ClientException", message, 400)


def name(value: Any, what: str) -> str:
    """Return a name that AWS would take.

    :raises ApiError: it would not.
    """
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise client_error(f"{what} name should match valid pattern")
    return value


def retry_strategy(strategy: JSON | None) -> None:
    """Check a retry strategy.

    :raises ApiError: number of attempts, number of entries, or a pattern that AWS refuses.
    """
    if not strategy:
        return
    entries = strategy.get("evaluateOnExit") or []
    attempts = strategy.get("attempts")
    if entries and attempts is None:
        raise client_error("Attempts must be specified when evaluateOnExit is specified.")
    if attempts is not None and not 1 <= int(attempts) <= 10:
        raise client_error("RetryStrategy attempts should be between 1 and 10.")
    if len(entries) > 5:
        raise client_error("Up to 5 evaluateOnExit condition can be specified.")
    for entry in entries:
        _exit_condition(entry)


def _exit_condition(entry: JSON) -> None:
    patterns = [(entry.get("onStatusReason"), _PATTERN), (entry.get("onReason"), _PATTERN)]
    patterns.append((entry.get("onExitCode"), _DIGITS))
    for value, allowed in patterns:
        if value is not None and not allowed.fullmatch(str(value)):
            raise client_error("Evaluate on exit condition contains restricted characters.")
    if str(entry.get("action", "")).upper() not in {"RETRY", "EXIT"}:
        raise client_error("Evaluate on exit action should be RETRY or EXIT.")


def timeout(value: JSON | None) -> None:
    """Check a time-out.

    :raises ApiError: shorter than AWS allows.
    """
    if value and int(value.get("attemptDurationSeconds") or 0) < 60:
        raise client_error("Job attempt duration must be at least 60 seconds")


def time_limits(actions: list[JSON]) -> None:
    """Check job-state time limits.

    :raises ApiError: a state, duration or action that AWS refuses.
    """
    for action in actions:
        if action.get("state") != "RUNNABLE" or action.get("action") not in {"CANCEL", "TERMINATE"}:
            raise client_error("jobStateTimeLimitActions: state must be RUNNABLE and action CANCEL or TERMINATE.")
        if not 600 <= int(action.get("maxTimeSeconds") or 0) <= 86400:
            raise client_error("jobStateTimeLimitActions: maxTimeSeconds must be between 600 and 86400.")


def environment(pairs: list[JSON]) -> None:
    """Check the environment of a submit.

    :raises ApiError: a name that AWS Batch keeps for itself.
    """
    for pair in pairs:
        if str(pair.get("name", "")).startswith("AWS_BATCH"):
            raise client_error("Environment variables cannot start with 'AWS_BATCH': this prefix is reserved.")


def exactly_one(params: JSON, keys: tuple[str, ...], message: str) -> str:
    """Return the one key of several that was given.

    :raises ApiError: none, or more than one.
    """
    given = [key for key in keys if params.get(key)]
    if len(given) != 1:
        raise client_error(message)
    return given[0]
