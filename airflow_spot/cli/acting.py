"""``airflow-spot promote`` and ``stop``: what a person asks of a training run."""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_spot.cli import facts, where
from airflow_spot.errors import ConfigurationError, StoreDenied
from airflow_spot.rundir import codec

if TYPE_CHECKING:
    from airflow_spot.errors import SpotError
    from airflow_spot.rundir.values import Record
    from airflow_spot.stopping import StopReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was done.

    :param done: False where there was nothing to do any more.
    """

    done: bool
    sentence: str
    document: dict[str, Any]


def who() -> str:
    """Return who asks, as the record shows it: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def promote(reach: where.Reach, *, tier: str | None, why: str) -> Answer:
    """Post a promotion for the training run's present generation. Calling it twice is harmless.

    :raises ConfigurationError: no such tier, or the training run has no dependable one.
    """
    from airflow_spot.rundir import requests

    record = where.load(reach).record
    if record.result is not None or record.desired.state == "stopped":
        return _nothing_to_do(record, reach.uri)
    name = _tier(record, tier)
    request = requests.new_request(
        "promote", who=who(), why=why, generation=record.generation, at=where.now(reach.backend), tier=tier
    )
    requests.post(reach.store, request)
    sentence = f"asked for a promotion to {name}; whoever waits in Airflow does it at its next look"
    return Answer(done=True, sentence=sentence, document={"uri": reach.uri, "request": codec.encode(request)})


def _tier(record: Record, wanted: str | None) -> str:
    """Return the name of the tier that a promotion goes to, of those that the loop takes."""
    spec = facts.spec_of(record)
    if spec is None:
        return wanted or "dependable capacity"
    dependable = [tier.name for tier in spec.tiers if tier.dependable]
    if not dependable:
        raise ConfigurationError("this training run has only spot tiers; there is none to promote it to")
    if wanted is not None and wanted not in dependable:
        fault = "is a spot tier" if spec.tier(wanted) else "is no tier of this training run"
        raise ConfigurationError(f"--tier={wanted} {fault}; it can be promoted to: {', '.join(dependable)}")
    return wanted or dependable[0]


def stop(reach: where.Reach, *, why: str) -> Answer:
    """Write that a person wants the training run stopped, and terminate its jobs. Harmless when repeated.

    Where the record cannot be written, a request is left for whoever waits in Airflow.
    """
    from airflow_spot import stopping
    from airflow_spot.rundir.record import RecordMoved

    record = where.load(reach).record
    try:
        report = stopping.stop(
            reach.store,
            reach.backend,
            who=who(),
            why=why,
            generation=record.generation,
            try_number=record.try_number,
            by_person=True,
        )
    except (RecordMoved, StoreDenied) as error:
        return _ask_to_stop(reach, record, why=why, error=error)
    if record.result is not None and report.stopped and not report.terminated:
        return _after_the_end(reach, record, report)
    jobs = f"told to end: {', '.join(report.terminated)}" if report.terminated else "it had no job to end"
    first = "stopped" if record.result is None else f"it had {facts.standing(record)}"
    sentence = f"{first}; {jobs}" if report.stopped else f"not stopped: {report.why}"
    return Answer(done=report.stopped, sentence=sentence, document={"uri": reach.uri, **codec.encode(report)})


def _after_the_end(reach: where.Reach, record: Record, report: StopReport) -> Answer:
    """Return what a stop without a job to end has done: it may have forbidden the task's next try."""
    if record.desired.by_person or not where.load(reach).record.desired.by_person:
        return _nothing_to_do(record, reach.uri)
    sentence = f"stopped: it had {facts.standing(record)}, and the task's own retries will not go on with it"
    return Answer(done=True, sentence=sentence, document={"uri": reach.uri, **codec.encode(report)})


def _ask_to_stop(reach: where.Reach, record: Record, *, why: str, error: SpotError) -> Answer:
    from airflow_spot.rundir import requests

    request = requests.new_request(
        "stop", who=who(), why=why, generation=record.generation, at=where.now(reach.backend)
    )
    requests.post(reach.store, request)
    sentence = f"the record could not be written ({error}); a request was left, and whoever waits in Airflow stops it"
    return Answer(done=True, sentence=sentence, document={"uri": reach.uri, "request": codec.encode(request)})


def _nothing_to_do(record: Record, uri: str) -> Answer:
    sentence = f"nothing to do: this training run has {facts.standing(record)}"
    if record.result is None:
        sentence = f"nothing to do: this training run was {facts.standing(record)}"
    return Answer(done=False, sentence=sentence, document={"uri": uri, "nothing_to_do": facts.standing(record)})
