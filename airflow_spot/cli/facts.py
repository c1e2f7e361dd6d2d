"""What a record and its heartbeats say, as plain values: shared by the tables and by ``--json``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_spot.core.outcomes import TABLE, Outcome
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.durations import words
from airflow_spot.errors import ContractError
from airflow_spot.rundir import codec
from airflow_spot.rundir.values import Attempt, AttemptState, Heartbeat, Phase, Record

Beats = Mapping[int, tuple[Heartbeat, datetime]]
"""Per attempt: its last heartbeat, and when the store received it."""

_STATES = {
    AttemptState.INTENDED: "being submitted",
    AttemptState.REFUSED: "throttled by AWS",
    AttemptState.UNRESOLVED: "unresolved",
    AttemptState.SUBMITTED: "queued",
    AttemptState.STANDBY: "standby",
    AttemptState.LIVE: "live",
    AttemptState.CLOSING: "closing",
    AttemptState.ENDED: "ended",
}
_PHASES = {
    Phase.HOLDING: "live",
    Phase.RESTORING: "restoring",
    Phase.TRAINING: "training",
    Phase.SAVING: "saving",
    Phase.LEAVING: "leaving",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the training is, by the furthest attempt that was live."""

    step: int | None
    total_steps: int | None
    committed_step: int | None
    steps_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the attempts cost.

    :param usd: None where a tier that was used has no price.
    :param seconds: job time of all attempts.
    :param estimated: an attempt still costs, or its price is only the tier's.
    """

    usd: float | None
    seconds: float
    estimated: bool


def plain(text: object, limit: int = 400) -> str:
    """Return text for a terminal: what a container wrote may hold control characters."""
    clean = "".join(char if char.isprintable() else " " for char in str(text))
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def spec_of(record: Record) -> TrainingSpec | None:
    """Return the operator's arguments, or None where a newer version wrote them in another shape."""
    try:
        return codec.decode(TrainingSpec, record.spec, what="spec")
    except ContractError:
        return None


def live(record: Record) -> Attempt | None:
    """Return the attempt that trains now."""
    return next((attempt for attempt in record.attempts if attempt.state is AttemptState.LIVE), None)


def outcome_words(name: str) -> str:
    """Return an outcome as a table shows it: ``out of memory``."""
    return plain(name).lower().replace("_", " ")


def state_words(attempt: Attempt, beats: Beats) -> str:
    """Return where an attempt stands, in a word or two."""
    if attempt.state is AttemptState.ENDED:
        return outcome_words(attempt.verdict.outcome) if attempt.verdict else "ended"
    if attempt.state is AttemptState.LIVE and attempt.number in beats:
        return _PHASES[beats[attempt.number][0].phase]
    if attempt.state is AttemptState.SUBMITTED and attempt.started_at is not None:
        return "started"
    return _STATES[attempt.state]


def why_words(attempt: Attempt, beats: Beats) -> str:
    """Return why an attempt ended, or what is to be said of one that has not."""
    if attempt.verdict is not None:
        return _ended_words(attempt)
    parts = [_notice_words(attempt, beats), attempt.closing_why, _error_words(attempt, beats)]
    if attempt.state is AttemptState.UNRESOLVED:
        parts.append("nobody knows whether its job exists; it is looked up and ended")
    return "; ".join(plain(part) for part in parts if part) or plain(attempt.why)


def _ended_words(attempt: Attempt) -> str:
    verdict = attempt.verdict
    assert verdict is not None
    known = verdict.outcome in Outcome.__members__
    sentence = verdict.sentence or (TABLE[Outcome(verdict.outcome)].means if known else outcome_words(verdict.outcome))
    unsure = "" if verdict.confidence == "high" else " (not certain)"
    return plain(sentence) + unsure


def _notice_words(attempt: Attempt, beats: Beats) -> str:
    notice = beats[attempt.number][0].notice if attempt.number in beats else None
    if notice is None:
        return ""
    left = "" if notice.seconds_left is None else f": {words(notice.seconds_left)} to act when it came"
    return f"notice ({notice.source}){left}"


def _error_words(attempt: Attempt, beats: Beats) -> str:
    return beats[attempt.number][0].last_error if attempt.number in beats else ""


def standing(record: Record) -> str:
    """Return where the whole training run stands, in one sentence without a full stop."""
    if record.result is not None:
        return f"ended {record.result.outcome}: {plain(record.result.message)}"
    if record.desired.state == "stopped":
        return f"stopped by {plain(record.desired.who)}: {plain(record.desired.why)}"
    if (now := live(record)) is not None:
        return f"training on {now.tier}, attempt {now.number}"
    waiting = [attempt for attempt in record.attempts if attempt.state is not AttemptState.ENDED]
    if waiting:
        return " and ".join(f"attempt {one.number} on {one.tier} {_STATES[one.state]}" for one in waiting)
    return "between attempts" if record.attempts else "not yet submitted"


def progress(record: Record, beats: Beats) -> Progress:
    """Return step, total and rate: the live attempt's heartbeat first, else what the record kept."""
    last = record.last_live
    beat = beats[last][0] if last is not None and last in beats else None
    kept = next((attempt for attempt in record.attempts if attempt.number == last), None)
    steps = [attempt.steps for attempt in record.attempts if attempt.steps is not None]
    saved = [attempt.committed_step for attempt in record.attempts if attempt.committed_step is not None]
    totals = [attempt.total_steps for attempt in record.attempts if attempt.total_steps is not None]
    return Progress(
        step=beat.step if beat and beat.step is not None else max(steps, default=None),
        total_steps=beat.total_steps if beat and beat.total_steps is not None else totals[-1] if totals else None,
        committed_step=beat.committed_step if beat and beat.committed_step is not None else max(saved, default=None),
        steps_per_second=beat.steps_per_second if beat else kept.steps_per_second if kept else None,
    )


def slack_seconds(record: Record, beats: Beats, now: datetime) -> float | None:
    """Return the slack: on spot the time left to ``promote_at``, on dependable capacity the spare time at the end."""
    if record.result is not None:
        kept = record.result.summary.get("slack_seconds")
        return float(kept) if isinstance(kept, (int, float)) else None
    if record.deadline is None:
        return None
    training = live(record)
    if training is not None and training.market != "spot":
        return _spare_seconds(record, progress(record, beats), record.deadline, now)
    return None if record.promote_at is None else (record.promote_at - now).total_seconds()


def _spare_seconds(record: Record, at: Progress, deadline: datetime, now: datetime) -> float | None:
    if at.step is None or at.total_steps is None or not at.steps_per_second:
        return None
    spec = spec_of(record)
    after = spec.downstream_seconds if spec else 0.0
    return (deadline - now).total_seconds() - after - (at.total_steps - at.step) / at.steps_per_second


def seconds_of(attempt: Attempt, now: datetime) -> float | None:
    """Return how long an attempt's container has been there, or None before it began."""
    began = attempt.started_at or attempt.live_at
    if began is None:
        return None
    return max(0.0, ((attempt.stopped_at or attempt.ended_at or now) - began).total_seconds())


def cost_of(attempt: Attempt, record: Record, now: datetime) -> float | None:
    """Return what an attempt has cost in USD: as settled, else its tier's price by its time."""
    if attempt.cost_usd is not None:
        return attempt.cost_usd
    spec, seconds = spec_of(record), seconds_of(attempt, now)
    tier = spec.tier(attempt.tier) if spec else None
    if tier is None or tier.price is None:
        return None
    return tier.price * (seconds or 0.0) / 3600


def cost(record: Record, now: datetime) -> Cost:
    """Return what the training run has cost so far, attempts that still train included."""
    running = [one for one in record.attempts if not one.terminal]
    seconds = sum(record.counters.billed_seconds.values()) + sum(seconds_of(one, now) or 0.0 for one in running)
    spec = spec_of(record)
    used = {*record.counters.billed_seconds, *(one.tier for one in record.attempts if seconds_of(one, now))}
    priced = spec is not None and all((tier := spec.tier(name)) and tier.price is not None for name in used)
    open_usd = sum(cost_of(one, record, now) or 0.0 for one in running)
    usd = record.counters.cost_usd + open_usd if priced else None
    return Cost(usd=usd, seconds=seconds, estimated=bool(running))


def promoted_at(record: Record) -> datetime | None:
    """Return when the training moved from spot to dependable capacity for the first time, in this generation."""
    seen_spot = False
    for attempt in record.attempts:
        if attempt.generation != record.generation:
            continue
        if attempt.market == "spot":
            seen_spot = True
        elif seen_spot:
            return attempt.intended_at or attempt.submitted_at
    return None


def early(record: Record) -> timedelta | None:
    """Return how long before its deadline a training run ended; negative: after it."""
    if record.result is None or record.result.at is None or record.deadline is None:
        return None
    return record.deadline - record.result.at


def document(record: Record, beats: Beats, now: datetime, *, uri: str) -> dict[str, Any]:
    """Return what ``show --json`` prints: the record as it lies in the store, and what follows from it."""
    spent = cost(record, now)
    return {
        "uri": uri,
        "now": codec.encode(now),
        "standing": standing(record),
        "slack_seconds": slack_seconds(record, beats, now),
        "progress": codec.encode(progress(record, beats)),
        "cost": {"usd": spent.usd, "seconds": spent.seconds, "estimated": spent.estimated},
        "heartbeats": {
            str(number): {"age_seconds": (now - modified).total_seconds(), **codec.encode(beat)}
            for number, (beat, modified) in sorted(beats.items())
        },
        "record": codec.encode(record),
    }


def summary_row(record: Record, *, uri: str) -> dict[str, Any]:
    """Return a training run as one row of ``runs``."""
    furthest = progress(record, {})
    current = live(record)
    return {
        "uri": uri,
        "run_key": record.run_key,
        "dag_id": record.owner.dag_id,
        "run_id": record.owner.run_id,
        "task_id": record.owner.task_id,
        "map_index": record.owner.map_index,
        "outcome": record.result.outcome if record.result else None,
        "desired": record.desired.state,
        "standing": standing(record),
        "tier": current.tier if current else None,
        "attempts": record.next_attempt - 1,
        "reclaims": record.counters.total_reclaims,
        "step": furthest.step,
        "began": codec.encode(record.began_at),
        "deadline": codec.encode(record.deadline),
        "promote_at": codec.encode(record.promote_at),
    }
