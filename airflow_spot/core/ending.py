"""What is written into the record when an attempt, or the whole training run, ends. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_spot.core.outcomes import TABLE, Budget, Outcome
from airflow_spot.core.seen import AttemptSeen
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.durations import words
from airflow_spot.rundir.layout import parse_checkpoint_id
from airflow_spot.rundir.values import OPEN, Attempt, AttemptState, Counters, Record, Result, Verdict

KEPT_ATTEMPTS = 20


def put(record: Record, attempt: Attempt) -> Record:
    """Return the record with one attempt replaced."""
    attempts = tuple(attempt if old.number == attempt.number else old for old in record.attempts)
    return replace(record, attempts=attempts)


def end_attempt(record: Record, attempt: Attempt, seen: AttemptSeen, verdict: Verdict, now: datetime) -> Record:
    """Return the record in which an attempt has ended: it is fenced from here on, and its budget is charged."""
    steps, committed = _progress(attempt, seen)
    if attempt.live_at is not None and verdict.outcome != Outcome.SUCCEEDED.value:
        lost = max(0, steps - committed) if steps is not None else None
        verdict = replace(verdict, lost_steps=lost, lost_seconds=_lost_seconds(attempt, seen))
    ended = replace(
        attempt,
        state=AttemptState.ENDED,
        ended_at=now,
        verdict=verdict,
        steps=steps,
        committed_step=committed,
        total_steps=_total(attempt, seen),
        steps_per_second=_rate(attempt, seen),
    )
    return put(replace(record, counters=_charge(record.counters, verdict)), ended)


def settle(record: Record, attempt: Attempt, seen: AttemptSeen, spec: TrainingSpec) -> Record:
    """Return the record in which Batch calls an attempt's job terminal, or no job exists: its cost is known."""
    started = seen.job.started_at if seen.job else None
    stopped = (seen.job.stopped_at if seen.job else None) or attempt.ended_at
    seconds = max(0.0, (stopped - started).total_seconds()) if started and stopped else 0.0
    tier = spec.tier(attempt.tier)
    cost = seconds / 3600 * tier.price if tier and tier.price is not None else None
    done = replace(attempt, terminal=True, started_at=started, stopped_at=stopped if started else None, cost_usd=cost)
    billed = dict(record.counters.billed_seconds)
    billed[attempt.tier] = billed.get(attempt.tier, 0.0) + seconds
    counters = replace(record.counters, billed_seconds=billed, cost_usd=record.counters.cost_usd + (cost or 0.0))
    return put(replace(record, counters=counters), done)


def _progress(attempt: Attempt, seen: AttemptSeen) -> tuple[int | None, int]:
    """The furthest step reported, and the step that a successor goes on from."""
    pinned = parse_checkpoint_id(attempt.pin) if attempt.pin else None
    committed = [pinned.step if pinned else 0, attempt.committed_step or 0]
    steps = [attempt.steps]
    if seen.heartbeat:
        committed.append(seen.heartbeat.committed_step or 0)
        steps.append(seen.heartbeat.step)
    if seen.end:
        last = parse_checkpoint_id(seen.end.committed) if seen.end.committed else None
        committed.append(last.step if last else 0)
        steps.append(seen.end.final_step)
    known = [step for step in steps if step is not None]
    return (max(known) if known else None), max(committed)


def _lost_seconds(attempt: Attempt, seen: AttemptSeen) -> float | None:
    if attempt.live_at is None or seen.heartbeat is None:
        return None
    if seen.end is not None and seen.end.interrupted and seen.end.committed:
        return 0.0
    return seen.heartbeat.seconds_since_commit or seen.heartbeat.training_seconds


def _total(attempt: Attempt, seen: AttemptSeen) -> int | None:
    found = (seen.end.total_steps if seen.end else None) or (seen.heartbeat.total_steps if seen.heartbeat else None)
    return found or attempt.total_steps


def _rate(attempt: Attempt, seen: AttemptSeen) -> float | None:
    return (seen.heartbeat.steps_per_second if seen.heartbeat else None) or attempt.steps_per_second


def _charge(counters: Counters, verdict: Verdict) -> Counters:
    outcome = Outcome(verdict.outcome)
    budget = TABLE[outcome].budget
    reclaimed = outcome is Outcome.RECLAIMED
    return replace(
        counters,
        reclaims=counters.reclaims + (budget is Budget.RECLAIMS),
        infrastructure=counters.infrastructure + (budget is Budget.INFRASTRUCTURE),
        capacity=counters.capacity + (outcome is Outcome.NO_CAPACITY),
        total_reclaims=counters.total_reclaims + reclaimed,
        lost_steps=counters.lost_steps + (verdict.lost_steps or 0),
        lost_seconds=counters.lost_seconds + (verdict.lost_seconds or 0.0),
    )


def finish(
    record: Record,
    spec: TrainingSpec,
    *,
    outcome: Outcome,
    message: str,
    now: datetime,
    attempt: Attempt | None = None,
    facts: dict[str, Any] | None = None,
) -> Record:
    """Return the record with its result: in the same write every other open attempt is put to closing.

    :param facts: what only the run directory knows: its address, checkpoint, artefacts, metrics.
    """
    closed = tuple(close(old, now, "the training run has ended") for old in record.attempts)
    record = replace(record, attempts=closed, promotion=None, promote_at=None)
    retryable = TABLE[outcome].budget is Budget.RETRIES
    result = Result(
        outcome=outcome.value,
        message=message,
        generation=record.generation,
        attempt=attempt.number if attempt else None,
        retryable=retryable,
        at=now,
    )
    return replace(record, result=replace(result, summary=summary(record, spec, attempt, now) | (facts or {})))


def close(attempt: Attempt, now: datetime, why: str, outcome: Outcome = Outcome.SUPERSEDED) -> Attempt:
    """Return an open attempt as closing.

    One that AWS throttled has no job, so it has ended; one whose submit may have made a job becomes unresolved, and
    what is found is terminated.
    """
    if attempt.state not in OPEN:
        return attempt
    if attempt.state is AttemptState.REFUSED:
        verdict = Verdict(outcome=outcome.value, sentence=why)
        return replace(attempt, state=AttemptState.ENDED, ended_at=now, terminal=True, verdict=verdict)
    if attempt.state is AttemptState.INTENDED:
        return replace(attempt, state=AttemptState.UNRESOLVED, closing_at=now, closing_why=why)
    return replace(attempt, state=AttemptState.CLOSING, closing_at=now, closing_why=why, closing_outcome=outcome.value)


def is_success(result: Result | None) -> bool:
    """Whether there is a result, and it is the one that was wanted."""
    return result is not None and result.outcome == Outcome.SUCCEEDED.value


def summary(record: Record, spec: TrainingSpec, attempt: Attempt | None, now: datetime) -> dict[str, Any]:
    """Return the XCom summary of a training run; JSON of at most a few kilobytes."""
    lives = [item.live_at for item in record.attempts if item.live_at]
    slack = (record.deadline - now).total_seconds() if record.deadline else None
    return {
        "job_id": attempt.ref if attempt else None,
        "tier": attempt.tier if attempt else None,
        "attempts": record.counters.total_attempts,
        "reclaims": record.counters.total_reclaims,
        "promotions": record.counters.promotions,
        "steps": attempt.steps if attempt else None,
        "lost_steps": record.counters.lost_steps,
        "started": min(lives).isoformat() if lives else None,
        "ended": now.isoformat(),
        "deadline": record.deadline.isoformat() if record.deadline else None,
        "slack_seconds": round(slack, 1) if slack is not None else None,
        "cost": cost(record, spec, now),
    }


def cost(record: Record, spec: TrainingSpec, now: datetime) -> dict[str, Any]:
    """Return what the job time cost, and what the dearest tier would have cost: an estimate from the tiers' prices.

    On-demand is counted for the same job time less what reclaims lost: there nothing would have been done twice.
    """
    seconds = dict(record.counters.billed_seconds)
    for attempt in record.attempts:
        if not attempt.terminal and (began := attempt.started_at or attempt.live_at):
            seconds[attempt.tier] = seconds.get(attempt.tier, 0.0) + max(0.0, (now - began).total_seconds())
    prices = {tier.name: tier.price for tier in spec.tiers}
    dear = max((price for price in prices.values() if price is not None), default=None)
    known = all(prices.get(name) is not None for name in seconds)
    usd = sum(span / 3600 * (prices.get(name) or 0.0) for name, span in seconds.items())
    useful = max(0.0, sum(seconds.values()) - record.counters.lost_seconds)
    return {
        "usd": round(usd, 4) if known else None,
        "on_demand_usd": round(useful / 3600 * dear, 4) if dear is not None else None,
        "hours": round(sum(seconds.values()) / 3600, 4),
        "estimated": True,
    }


def sentence(attempt: Attempt, verdict: Verdict) -> str:
    """Return the line a user reads when an attempt has ended: cause, place, what was lost."""
    parts = [f"attempt {attempt.number} on {attempt.tier}: {verdict.sentence or TABLE[Outcome(verdict.outcome)].means}"]
    if verdict.lost_steps:
        lost = f" ({words(verdict.lost_seconds)})" if verdict.lost_seconds else ""
        parts.append(f"{verdict.lost_steps} steps lost{lost}")
    if Outcome(verdict.outcome) is Outcome.RECLAIMED and not attempt.committed_step:
        parts.append("no checkpoint was there: the training starts again from the beginning")
    return "; ".join(parts)


def forget(record: Record) -> tuple[Record, tuple[Attempt, ...]]:
    """Return the record with its last attempts, and those that leave it for ``outcome.json`` files."""
    settled = [
        item
        for item in record.attempts
        if item.state is AttemptState.ENDED and item.terminal and item.number != record.last_live
    ]
    gone = tuple(settled[: max(0, len(record.attempts) - KEPT_ATTEMPTS)])
    return replace(record, attempts=tuple(item for item in record.attempts if item not in gone)), gone
