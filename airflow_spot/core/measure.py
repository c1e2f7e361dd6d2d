"""From a view to the snapshot that a policy looks at: work left, waiting times, what has proved impossible."""

from __future__ import annotations

from datetime import timedelta

from airflow_spot.core.outcomes import Outcome
from airflow_spot.core.seen import AttemptSeen, JobStatus
from airflow_spot.core.snapshot import Queued, Snapshot
from airflow_spot.core.view import View
from airflow_spot.rundir.layout import parse_checkpoint_id
from airflow_spot.rundir.values import Attempt, AttemptState, Record, Verdict


def snapshot(view: View) -> Snapshot:
    """Return what a policy may look at."""
    record, spec = view.record, view.spec
    ended = [
        item for item in record.attempts if item.generation == record.generation and item.verdict and item.ended_at
    ]
    last = max(ended, key=lambda item: (item.ended_at or view.now, item.number), default=None)
    deadline = record.deadline - timedelta(seconds=spec.downstream_seconds) if record.deadline else None
    live, promotion = view.live, record.promotion
    beat = view.seen.of(live.number).heartbeat if live else None
    return Snapshot(
        now=view.now,
        tiers=spec.tiers,
        deadline=deadline,
        window_seconds=(deadline - record.began_at).total_seconds() if deadline and record.began_at else None,
        expected_seconds=spec.expected_seconds,
        work_left_seconds=work_left(view),
        changeover_seconds=max(spec.changeover_seconds, record.counters.longest_changeover_seconds),
        on_infeasible=spec.on_infeasible,
        live=live.tier if live else None,
        live_runs=beat is not None and beat.step is not None,
        live_left_seconds=live_left(view),
        live_uncommitted_seconds=(beat.seconds_since_commit or beat.training_seconds) if beat else 0.0,
        queued=tuple(_queued(view, item) for item in view.queued),
        unusable=frozenset(item.tier for item in ended if item.verdict and hopeless(item.verdict)),
        last_tier=last.tier if last else None,
        last_outcome=Outcome(last.verdict.outcome) if last and last.verdict else None,
        last_ended_at=last.ended_at if last else None,
        barren=_barren(record),
        attempts=len(ended) + len(view.queued) + (live is not None),
        reclaims=record.counters.reclaims,
        promote_after_reclaims=spec.promote_after_reclaims,
        promotion_why=promotion.why if promotion else None,
        promotion_tier=promotion.tier if promotion else None,
        stay_until=record.stay_until,
    )


def work_left(view: View) -> float | None:
    """Return seconds of work on the dependable tier, from the last committed checkpoint of the line.

    Until a rate was measured the user's estimate stands in, scaled by what is committed.
    """
    expected, total, rate = view.spec.expected_seconds, None, None
    for attempt, seen in _trained(view):
        total = (seen.heartbeat.total_steps if seen.heartbeat else None) or attempt.total_steps or total
        tier = view.spec.tier(attempt.tier)
        measured = _rate(attempt, seen)
        rate = measured * _to_dependable(view, tier.speed if tier else 1.0) if measured else rate
    committed = _committed(view)
    if total and rate:
        return max(0, total - committed) / rate
    if expected is None:
        return None
    return expected * (1 - min(committed, total) / total) if total else expected


def live_left(view: View) -> float | None:
    """Return seconds of work on the live attempt's tier, at the rate it has shown; None where nothing tells."""
    work, live = work_left(view), view.live
    tier = view.spec.tier(live.tier) if live else None
    if work is None or live is None or tier is None:
        return None
    beat = view.seen.of(live.number).heartbeat
    if beat is not None and beat.steps_per_second and beat.total_steps:
        return max(0, beat.total_steps - _committed(view)) / beat.steps_per_second
    return work * _to_dependable(view, tier.speed)


def _trained(view: View) -> list[tuple[Attempt, AttemptSeen]]:
    """The attempts of the line that were live, oldest first."""
    return [
        (item, seen) for item, seen in view.each() if item.live_at is not None and item.number >= view.record.line_from
    ]


def _rate(attempt: Attempt, seen: AttemptSeen) -> float | None:
    return (seen.heartbeat.steps_per_second if seen.heartbeat else None) or attempt.steps_per_second


def _committed(view: View) -> int:
    """The step that the next attempt would go on from, as far as heartbeats tell."""
    last = view.last_live()
    if last is None:
        return 0
    beat = view.seen.of(last.number).heartbeat
    pinned = parse_checkpoint_id(last.pin) if last.pin else None
    return max(pinned.step if pinned else 0, last.committed_step or 0, (beat.committed_step or 0) if beat else 0)


def _to_dependable(view: View, speed: float) -> float:
    dependable = view.spec.dependable
    return (dependable.speed if dependable else 1.0) / speed


def _queued(view: View, attempt: Attempt) -> Queued:
    job = view.seen.of(attempt.number).job
    waits = job is not None and job.status is JobStatus.RUNNABLE and job.created_at is not None
    waited = (view.now - job.created_at).total_seconds() if waits and job and job.created_at else None
    runs = attempt.state is AttemptState.STANDBY or (job is not None and job.status is JobStatus.RUNNING)
    return Queued(tier=attempt.tier, waited_seconds=waited, runs=runs)


def hopeless(verdict: Verdict) -> bool:
    """Whether an attempt ended for a reason that its tier will give again."""
    return Outcome(verdict.outcome) in (Outcome.MISCONFIGURED, Outcome.NEVER_FITS)


def _barren(record: Record) -> int:
    """Attempts in a row, newest first, that ended without a new checkpoint."""
    count = 0
    for item in reversed(record.attempts):
        if item.state is not AttemptState.ENDED or item.verdict is None or item.generation != record.generation:
            continue
        outcome = Outcome(item.verdict.outcome)
        if outcome in (Outcome.SUPERSEDED, Outcome.STOPPED_BY_US, Outcome.NO_CAPACITY):
            continue
        pinned = int(item.pin[:12]) if item.pin else 0
        if (item.committed_step or 0) > pinned:
            break
        count += 1
    return count
