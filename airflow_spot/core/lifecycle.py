"""The life of a training run as a list of rules: what one caller does next, given the record and one look at the world.

Pure. Each rule returns at most one :class:`Step`: a new record to be written by compare-and-swap, then at most one
effect. The first rule that has something to do wins; after each step the caller looks again. So a caller may die
between any two lines, and another one goes on from the record.

Order matters: a result and a stop come before everything; what has become known is written down before it is acted
on; an attempt is ended (which fences it) in one write, and only after the world was read again does the next go live.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from airflow_spot.core.ending import close, end_attempt, finish, put, sentence, settle
from airflow_spot.core.measure import hopeless, snapshot
from airflow_spot.core.outcomes import TABLE, Budget, Outcome, Then
from airflow_spot.core.seen import AttemptSeen, JobSeen, JobStatus
from airflow_spot.core.snapshot import Action, Decision
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.core.view import View
from airflow_spot.durations import words
from airflow_spot.rundir.values import (
    OPEN,
    Attempt,
    AttemptState,
    Counters,
    Desired,
    Phase,
    Promotion,
    Record,
    Request,
    Verdict,
)

LOOK_UP_SECONDS = 60.0
"""So long after an intent is a job looked up by name before the attempt counts as unresolved."""
PLAIN_LOOK_UP_SECONDS = 900.0
"""The same for a plain image, which has no fence against a second job."""
FIRST_HEARTBEAT_SECONDS = 900.0
HEARTBEAT_SILENCE_SECONDS = 900.0
STALL_FLOOR_SECONDS = 1800.0
STALL_FACTOR = 10.0
STOP_TIMEOUT_SECONDS = 600.0
UNKNOWN_SAVE_SECONDS = 30.0
BATCH_LAG_SECONDS = 300.0
"""So long may Batch need to call a job terminal whose agent has said its last word."""
SOON_SECONDS = 120.0
MAX_METRICS_BYTES = 4096
NEAR_POLLS = 10
FAR_SHIFT_SECONDS = 600.0
LEAVE_SECONDS = 60.0
"""So long may a job that has said its last word take to exit by itself before it is terminated."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Send SubmitJob for an attempt whose intent is written."""

    number: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send TerminateJob."""

    ref: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do: a write, then an effect; either may be missing.

    :param say: what a user reads in the task log once the write went through.
    """

    say: str = ""
    record: Record | None = None
    effect: Submit | Terminate | None = None


def steps(view: View) -> Iterator[Step]:
    """Return what there is to do, most urgent first; a caller takes the first, acts, and looks again.

    Terminations are repeated at every look until Batch calls a job terminal, so a caller passes over those that it
    has just sent.
    """
    yield from _kills(view)
    yield from _settled(view)
    yield from _requested(view)
    if view.record.result is not None:
        return
    if view.record.desired.state == "stopped":
        yield from _stopped(view)
        return
    for rule in _RULES:
        yield from rule(view)


# ---------------------------------------------------------------- jobs that must not run


def _kills(view: View) -> Iterator[Step]:
    """Terminate every job that may not run, at every look until Batch calls it terminal."""
    stopping = view.record.result is not None or view.record.desired.state == "stopped"
    for attempt, seen in view.each():
        for job in seen.found if stopping or attempt.state not in OPEN else ():
            if not job.terminal and job.ref != attempt.ref:
                yield Step(effect=Terminate(job.ref, f"attempt {attempt.number} is {attempt.state}"))
        if attempt.ref and not attempt.terminal and _must_die(view, attempt, seen):
            why = attempt.closing_why or f"attempt {attempt.number} is {attempt.state}"
            yield Step(effect=Terminate(attempt.ref, why))


def _must_die(view: View, attempt: Attempt, seen: AttemptSeen) -> bool:
    if seen.job is None or seen.job.terminal:
        return False
    if seen.end is not None and (view.now - (attempt.ended_at or view.now)).total_seconds() < LEAVE_SECONDS:
        return False
    if view.record.desired.state == "stopped" or attempt.state in (AttemptState.ENDED, AttemptState.UNRESOLVED):
        return True
    return attempt.state is AttemptState.CLOSING and view.now >= _grace_ends(view, attempt, seen)


def _grace_ends(view: View, attempt: Attempt, seen: AttemptSeen) -> datetime:
    """An agent gets a heartbeat to read that it is closing, and twice its save time; at most what slack allows."""
    closing = attempt.closing_at or view.now
    if attempt.live_at is None or not view.spec.agent:
        return closing
    save = (seen.heartbeat.save_seconds if seen.heartbeat else None) or UNKNOWN_SAVE_SECONDS
    grace = view.spec.heartbeat_seconds + 2 * save
    return closing + timedelta(seconds=_within_slack(view, grace))


def _within_slack(view: View, seconds: float) -> float:
    slack = snapshot(view).slack_seconds
    return seconds if slack is None else max(min(seconds, slack), min(seconds, 5.0))


def _settled(view: View) -> Iterator[Step]:
    """Write down that Batch calls the job of an ended attempt terminal."""
    for attempt, seen in view.each():
        over = attempt.state in (AttemptState.ENDED, AttemptState.UNRESOLVED) and not attempt.terminal
        if over and attempt.ref and seen.job is not None and seen.job.terminal:
            record = settle(view.record, attempt, seen, view.spec)
            if attempt.state is AttemptState.UNRESOLVED:
                settled = next(item for item in record.attempts if item.number == attempt.number)
                record = put(record, replace(settled, state=AttemptState.ENDED, ended_at=view.now))
            yield Step(record=record)
        elif over and not attempt.ref and (strays := seen.found) and all(job.terminal for job in strays):
            yield Step(record=put(view.record, replace(attempt, ref=strays[0].ref)))


def _stopped(view: View) -> Iterator[Step]:
    """Desired stopped: once every job is terminal there is a result."""
    for attempt, seen in view.each():
        if attempt.ref and not attempt.terminal and attempt.state is not AttemptState.ENDED:
            if seen.job is None or not seen.job.terminal:
                return
            yield from _ending(view, attempt, seen, Outcome.STOPPED_BY_US)
    desired = view.record.desired
    message = f"stopped by {desired.who or 'the Airflow side'}: {desired.why or 'no reason given'}"
    yield _result(view, Outcome.STOPPED_BY_US, message, view.last_live())


# ---------------------------------------------------------------- what has become known


def _requested(view: View) -> Iterator[Step]:
    """Apply each request once, in the write that notes its id."""
    for request in view.seen.requests:
        if request.id not in view.record.applied:
            record, said = apply_request(view.record, request, view.spec, view.now)
            yield Step(record=replace(record, applied=(*record.applied, request.id)), say=said)


def apply_request(record: Record, request: Request, spec: TrainingSpec, now: datetime) -> tuple[Record, str]:
    """Return the record after a request, and what to say; one made for another generation changes nothing."""
    if request.generation != record.generation:
        return record, f"{request.kind} by {request.who} was made for generation {request.generation}: ignored"
    if request.kind == "promote":
        named = spec.tier(request.tier) if request.tier else spec.dependable
        if named is None or not named.dependable:
            return record, f"promotion to {request.tier!r} by {request.who} ignored: no such dependable tier"
        why = request.why or "asked for"
        promotion = Promotion(who=request.who, why=why, at=now, tier=request.tier)
        return replace(record, promotion=promotion, stay_until=None), f"promotion by {request.who}: {why}"
    if request.kind == "stay":
        return replace(record, stay_until=request.until, promotion=None), f"{request.who} forbids promotion for a while"
    if request.kind == "stop":
        if request.try_number is not None and request.try_number < record.try_number:
            return record, f"stop by {request.who} was made for try {request.try_number}: ignored"
        by_person = request.by_person or record.desired.by_person
        desired = Desired(state="stopped", who=request.who, why=request.why, by_person=by_person, at=now)
        return replace(record, desired=desired), f"stop by {request.who}: {request.why}"
    if request.kind == "deadline" and request.deadline is not None:
        deadline = request.deadline + timedelta(seconds=spec.downstream_seconds - request.downstream_seconds)
        if record.deadline is None or deadline < record.deadline:
            return replace(record, deadline=deadline), f"deadline by {request.who}: {deadline:%Y-%m-%d %H:%M:%S} UTC"
        return record, ""
    return record, f"request {request.kind!r} by {request.who} is unknown: ignored"


def _resolved(view: View) -> Iterator[Step]:
    """An intent becomes a job, or unresolved; a refused submit is sent again; a claim names the true job."""
    for attempt, seen in view.each():
        if attempt.state is AttemptState.INTENDED:
            yield from _intended(view, attempt, seen)
        elif attempt.state is AttemptState.UNRESOLVED and not view.spec.agent:
            yield from _plain_intended(view, attempt, seen)
        elif attempt.state is AttemptState.REFUSED and attempt.retry_at and view.now >= attempt.retry_at:
            again = replace(attempt, state=AttemptState.INTENDED, intended_at=view.now, retry_at=None)
            yield Step(record=put(view.record, again), effect=Submit(attempt.number))
        elif attempt.state in (AttemptState.SUBMITTED, AttemptState.STANDBY, AttemptState.LIVE, AttemptState.CLOSING):
            yield from _claimed(view, attempt, seen)


def _intended(view: View, attempt: Attempt, seen: AttemptSeen) -> Iterator[Step]:
    if not view.spec.agent:
        yield from _plain_intended(view, attempt, seen)
        return
    claimed = {claim.job for claim in seen.claims}
    jobs = sorted(seen.found, key=lambda job: (job.ref not in claimed, job.ref))
    if jobs:
        yield _adopted(view, attempt, jobs[0])
    elif attempt.intended_at and (view.now - attempt.intended_at).total_seconds() > LOOK_UP_SECONDS:
        unresolved = replace(attempt, state=AttemptState.UNRESOLVED)
        yield Step(
            record=put(view.record, unresolved), say=f"attempt {attempt.number}: nobody knows whether a job exists"
        )


def _adopted(view: View, attempt: Attempt, job: JobSeen) -> Step:
    taken = replace(attempt, state=AttemptState.SUBMITTED, ref=job.ref, submitted_at=view.now)
    return Step(
        record=put(view.record, taken), say=f"attempt {attempt.number}: found its job {job.ref} by name, adopted"
    )


def _plain_intended(view: View, attempt: Attempt, seen: AttemptSeen) -> Iterator[Step]:
    """A plain image has no fence, so nothing follows before its job is found, or has been looked for long enough."""
    since = (view.now - (attempt.intended_at or view.now)).total_seconds()
    if seen.found and attempt.state is AttemptState.INTENDED:
        yield _adopted(view, attempt, seen.found[0])
    elif not seen.found and since > PLAIN_LOOK_UP_SECONDS:
        verdict = Verdict(
            outcome=Outcome.UNKNOWN.value,
            confidence="low",
            sentence=f"no job of its name was found for {words(since)} after SubmitJob gave no answer",
        )
        record = end_attempt(view.record, attempt, seen, verdict, view.now)
        ended = next(item for item in record.attempts if item.number == attempt.number)
        yield Step(record=put(record, replace(ended, terminal=True)), say=sentence(ended, verdict))


def _claimed(view: View, attempt: Attempt, seen: AttemptSeen) -> Iterator[Step]:
    job = seen.claims[0].job if seen.claims else None
    if job is None:
        return
    if job != attempt.ref and any(found.ref == job for found in seen.found):
        say = f"attempt {attempt.number}: job {job} claimed it, {attempt.ref} did not"
        loser = Terminate(attempt.ref, "another job claimed its attempt") if attempt.ref else None
        yield Step(record=put(view.record, replace(attempt, ref=job)), effect=loser, say=say)
    elif attempt.state is AttemptState.SUBMITTED and job == attempt.ref:
        standby = replace(attempt, state=AttemptState.STANDBY)
        yield Step(record=put(view.record, standby), say=f"attempt {attempt.number} runs on {attempt.tier}")


def _noted(view: View) -> Iterator[Step]:
    """Bad checkpoints enter the record before the next pin."""
    bad = {
        item
        for _, seen in view.each()
        for item in (*(seen.heartbeat.bad if seen.heartbeat else ()), *(seen.end.bad if seen.end else ()))
    }
    if new := sorted(bad - set(view.record.bad)):
        say = f"damaged checkpoints, never used again: {', '.join(new)}"
        yield Step(record=replace(view.record, bad=(*view.record.bad, *new)), say=say)


# ---------------------------------------------------------------- attempts that end


def _ended(view: View) -> Iterator[Step]:
    """End each attempt whose end file is there or whose job is terminal; force it where the stop time-out is over."""
    for attempt, seen in view.each():
        if attempt.state not in (AttemptState.SUBMITTED, AttemptState.STANDBY, AttemptState.LIVE, AttemptState.CLOSING):
            continue
        if seen.verdict is not None:
            closing = Outcome(attempt.closing_outcome) if attempt.closing_outcome else None
            yield from _ending(view, attempt, seen, closing)
        elif attempt.state is AttemptState.CLOSING and attempt.ref is None:
            yield from _ending(view, attempt, seen, Outcome.SUPERSEDED)
        elif attempt.state is AttemptState.CLOSING and view.spec.agent and _overdue(view, attempt):
            yield from _ending(view, attempt, seen, Outcome(attempt.closing_outcome or Outcome.SUPERSEDED))


def _overdue(view: View, attempt: Attempt) -> bool:
    """With the agent in use, an attempt that does not leave is fenced all the same."""
    since = (view.now - (attempt.closing_at or view.now)).total_seconds()
    return since > _within_slack(view, STOP_TIMEOUT_SECONDS)


def _ending(view: View, attempt: Attempt, seen: AttemptSeen, closing: Outcome | None) -> Iterator[Step]:
    """The write that ends an attempt. Our own reason for closing it stands unless it completed all the same."""
    verdict = seen.verdict or Verdict(outcome=Outcome.UNKNOWN.value, confidence="low")
    if closing is not None and Outcome(verdict.outcome) is not Outcome.SUCCEEDED:
        said = attempt.closing_why or view.record.desired.why or TABLE[closing].means
        verdict = replace(verdict, outcome=closing.value, sentence=said)
    record = end_attempt(view.record, attempt, seen, verdict, view.now)
    if _first_step_failed(attempt, seen, Outcome(verdict.outcome)) and attempt.pin not in view.record.suspect:
        record = replace(record, suspect=(*record.suspect, str(attempt.pin)))
    if not view.spec.agent:
        record = replace(record, last_live=attempt.number)
    done = next(item for item in record.attempts if item.number == attempt.number)
    if seen.job is not None and seen.job.terminal:
        record = settle(record, done, seen, view.spec)
    elif attempt.ref is None:
        record = put(record, replace(done, terminal=True))
    yield Step(record=record, say=sentence(done, done.verdict or verdict))


def _first_step_failed(attempt: Attempt, seen: AttemptSeen, outcome: Outcome) -> bool:
    """Whether the trainer failed between a resume and its first new step: the checkpoint is suspect."""
    if outcome is not Outcome.USER_ERROR or attempt.pin is None or seen.end is None:
        return False
    if seen.end.new_steps is not None:
        return seen.end.new_steps == 0
    # A trainer that reports no steps: it failed soon, and committed nothing of its own.
    trained = seen.heartbeat.training_seconds if seen.heartbeat else 0.0
    return seen.end.committed in (None, attempt.pin) and trained < SOON_SECONDS


def _unwell(view: View) -> Iterator[Step]:
    """Close a running attempt that never reported, has fallen silent or stands still."""
    for attempt, seen in view.each():
        job = seen.job
        if attempt.state not in OPEN or job is None:
            continue
        if seen.never_fits is not None and job.status is JobStatus.RUNNABLE:
            why = seen.blocked or TABLE[seen.never_fits].means
            yield Step(record=put(view.record, close(attempt, view.now, why, seen.never_fits)), say=why)
        elif not view.spec.agent or job.status is not JobStatus.RUNNING:
            continue
        elif ill := _illness(view, attempt, seen, job):
            outcome, why = ill
            yield Step(
                record=put(view.record, close(attempt, view.now, why, outcome)), say=f"attempt {attempt.number}: {why}"
            )


def _illness(view: View, attempt: Attempt, seen: AttemptSeen, job: JobSeen) -> tuple[Outcome, str] | None:
    beat = seen.heartbeat
    if beat is None:
        ran = (view.now - job.started_at).total_seconds() if job.started_at else 0.0
        ran = min(ran, view.seen.readable_seconds)
        if ran <= FIRST_HEARTBEAT_SECONDS:
            return None
        return Outcome.MISCONFIGURED, (
            f"its job has run for {words(ran)} without a heartbeat; look at the job role (put under attempts/), the "
            "store's endpoint and region as the container sees them, and that its command starts with spot-agent run"
        )
    # After an outage of the store every heartbeat is old: only what is missing since it can be read again counts.
    age = min(seen.heartbeat_age or 0.0, view.seen.readable_seconds)
    if age > HEARTBEAT_SILENCE_SECONDS + view.spec.heartbeat_seconds:
        return Outcome.STALLED, f"its last heartbeat is {words(age)} old"
    limit = max(STALL_FLOOR_SECONDS, STALL_FACTOR * (beat.longest_step_seconds or 0.0))
    still = (beat.seconds_since_step or 0.0) + age
    if attempt.state is AttemptState.LIVE and beat.phase is Phase.TRAINING and still > limit:
        return Outcome.STALLED, f"no new step for {words(still)}"
    return None


# ---------------------------------------------------------------- the end, and who is live


def _succeeded(view: View) -> Iterator[Step]:
    """Success is a completed end of the attempt that was live last, read after the write that ended it."""
    last = view.last_live()
    if view.live is not None or last is None or last.state is not AttemptState.ENDED:
        return
    if last.number == view.record.answered:
        return
    seen = view.seen.of(last.number)
    by_agent = seen.end is not None and seen.end.completed
    plain = not view.spec.agent and last.verdict is not None and last.verdict.outcome == Outcome.SUCCEEDED.value
    if (by_agent and view.spec.agent) or plain:
        yield _result(view, Outcome.SUCCEEDED, f"attempt {last.number} on {last.tier} completed the training", last)


def _failed(view: View) -> Iterator[Step]:
    """Some outcomes end the training run: at once for the attempt that was live, else when nothing else is open."""
    if view.live is not None or view.leaving is not None:
        return
    last = view.last_live()
    ended = [item for item in view.record.attempts if item.number >= view.record.try_from and item.verdict]
    candidates = [last] if last is not None and last in ended else []
    if not view.queued and ended:
        candidates.append(max(ended, key=lambda item: (item.ended_at or view.now, item.number)))
    for attempt in candidates:
        if _only_the_new_one(view, attempt):
            continue
        if attempt.verdict and (message := _final(view, attempt, attempt.verdict)):
            yield _result(view, Outcome(attempt.verdict.outcome), message, attempt)
            return


def _only_the_new_one(view: View, attempt: Attempt) -> bool:
    """Whether an impossible tier is no reason to end: a training that has run elsewhere goes on there."""
    if attempt.live_at is not None or attempt.verdict is None or not hopeless(attempt.verdict):
        return False
    ran = any(item.live_at and item.number >= view.record.try_from for item in view.record.attempts)
    return ran and bool(snapshot(view).usable)


def _final(view: View, attempt: Attempt, verdict: Verdict) -> str | None:
    """Return the message when no attempt may follow this one, else None."""
    outcome = Outcome(verdict.outcome)
    row, counters, spec = TABLE[outcome], view.record.counters, view.spec
    said = sentence(attempt, verdict)
    if row.then is Then.END and outcome is not Outcome.SUCCEEDED:
        if outcome is Outcome.USER_ERROR and _tries_the_one_before(view, attempt):
            return None
        return f"{said}. What changes it: {row.advice}"
    if row.budget is Budget.RECLAIMS and spec.max_reclaims is not None and counters.reclaims > spec.max_reclaims:
        return f"{said}. {counters.reclaims} reclaims are more than max_reclaims={spec.max_reclaims}"
    if row.budget is Budget.INFRASTRUCTURE and counters.infrastructure > spec.max_infrastructure_failures:
        limit = spec.max_infrastructure_failures
        return f"{said}. {counters.infrastructure} failures are more than max_infrastructure_failures={limit}"
    return None


def _tries_the_one_before(view: View, attempt: Attempt) -> bool:
    """After a suspect checkpoint the one before is tried, once; where there is none, the same one a second time."""
    if view.record.suspect != (attempt.pin,):
        return False
    failed = [item for item in view.record.attempts if item.number >= view.record.try_from and item.pin == attempt.pin]
    return sum(item.verdict is not None and item.verdict.outcome == Outcome.USER_ERROR.value for item in failed) == 1


def _result(view: View, outcome: Outcome, message: str, attempt: Attempt | None) -> Step:
    record = finish(
        view.record,
        view.spec,
        outcome=outcome,
        message=message,
        now=view.now,
        attempt=attempt,
        facts=_facts(view, attempt),
    )
    return Step(record=record, say=message)


def _facts(view: View, attempt: Attempt | None) -> dict[str, Any]:
    """What only the run directory knows; metrics too large for XCom stay in the end file."""
    end = view.seen.of(attempt.number).end if attempt else None
    metrics: dict[str, Any] = end.metrics if end else {}
    if len(json.dumps(metrics)) > MAX_METRICS_BYTES:
        metrics = {"left_out": f"larger than {MAX_METRICS_BYTES} bytes; see the end file of the attempt"}
    return {
        "run": view.uri,
        "checkpoint": (end.committed if end else None) or (attempt.pin if attempt else None),
        "artifacts": f"{view.uri}/{end.artifacts}" if end and end.artifacts else None,
        "metrics": metrics,
    }


def _goes_live(view: View) -> Iterator[Step]:
    """With nobody live and nobody leaving, the first attempt that waits goes live, with its pin, in one write."""
    if view.live is not None or view.leaving is not None or not view.seen.tip_read:
        return
    waiting = [attempt for attempt, seen in view.each() if _ready(view, attempt, seen)]
    if not waiting:
        return
    chosen = min(waiting, key=lambda item: item.number)
    live = replace(chosen, state=AttemptState.LIVE, live_at=view.now, pin=view.seen.tip)
    if job := view.seen.of(chosen.number).job:
        live = replace(live, started_at=job.started_at)
    others = tuple(
        live if item.number == live.number else close(item, view.now, f"attempt {live.number} went live first")
        for item in view.record.attempts
    )
    tier = view.spec.tier(live.tier)
    promoted = bool(tier and tier.dependable)
    record = replace(
        view.record,
        attempts=others,
        last_live=live.number,
        fresh=False,
        promotion=None if promoted and _fulfils(view.record.promotion, live.tier) else view.record.promotion,
        promote_at=None if promoted else view.record.promote_at,
    )
    pin = live.pin or "the beginning"
    yield Step(
        record=replace(record, counters=_changeover(view, live, promoted)),
        say=f"attempt {live.number} is live on {live.tier}, from {pin}",
    )


def _fulfils(promotion: Promotion | None, tier: str) -> bool:
    return promotion is None or promotion.tier in (None, tier)


def _ready(view: View, attempt: Attempt, seen: AttemptSeen) -> bool:
    if seen.end is not None or (seen.job is not None and seen.job.terminal):
        return False
    if view.spec.agent:
        return attempt.state is AttemptState.STANDBY
    return attempt.state is AttemptState.SUBMITTED and seen.job is not None and seen.job.status is JobStatus.RUNNING


def _changeover(view: View, live: Attempt, promoted: bool) -> Counters:
    """Learn what a move costs: on spot without the wait for a machine, which says nothing of the dependable tier."""
    began = live.intended_at if promoted else live.started_at
    seconds = (view.now - began).total_seconds() if began else 0.0
    counters = view.record.counters
    waited_for_spot = any(item.market == "spot" for item in view.record.attempts)
    longest = counters.longest_changeover_seconds
    first = not any(item.live_at for item in view.record.attempts)
    return replace(
        counters,
        promotions=counters.promotions + (promoted and waited_for_spot),
        longest_changeover_seconds=longest if first else max(longest, seconds),
    )


# ---------------------------------------------------------------- what the policy wants


def _decided(view: View) -> Iterator[Step]:
    """Let the policy choose, and write down why and when it would promote."""
    decision = view.decide(snapshot(view))
    record = _explained(view, decision)
    if decision.action is Action.START and decision.tier and not _ends_soon(view):
        yield from _start(view, record, decision)
    elif decision.action is Action.MOVE:
        yield from _move(view, record, decision)
    elif decision.action is Action.GIVE_UP:
        yield _result(view, Outcome.MISCONFIGURED, decision.reason, view.last_live())
    elif decision.action is Action.KEEP:
        yield from _alone(view, record, decision)
    if _differs(view, decision.promote_at):
        yield Step(record=record)


def _alone(view: View, record: Record, decision: Decision) -> Iterator[Step]:
    """Close what is queued beside a live attempt once nothing wants it any more."""
    if decision.alone and view.queued:
        closed = tuple(
            close(item, view.now, "it is not needed any more") if item in view.queued else item
            for item in record.attempts
        )
        yield Step(record=replace(record, attempts=closed), say=f"what is queued is not needed: {decision.reason}")


def _explained(view: View, decision: Decision) -> Record:
    return replace(view.record, promote_at=decision.promote_at, why=decision.reason)


def _differs(view: View, new: datetime | None) -> bool:
    """Whether a new instant is worth a write of its own: it moves with every heartbeat, and matters when it is near."""
    old = view.record.promote_at
    if new is None or old is None:
        return new is not old
    near = (min(old, new) - view.now).total_seconds() < NEAR_POLLS * view.spec.poll_seconds
    return abs((new - old).total_seconds()) >= (1.0 if near else FAR_SHIFT_SECONDS)


def _ends_soon(view: View) -> bool:
    """Whether an attempt is closing for a reason that will end the training run: nothing is started beside it."""
    closing = (item.closing_outcome for item in view.record.attempts if item.state is AttemptState.CLOSING)
    return any(TABLE[Outcome(outcome)].then is Then.END for outcome in closing if outcome)


def _may_start(view: View) -> bool:
    """A plain image has no fence: no second job while one is not terminal."""
    return view.spec.agent or all(item.terminal for item in view.record.attempts)


def _start(view: View, record: Record, decision: Decision) -> Iterator[Step]:
    if not _may_start(view):
        yield from _move(view, record, decision)
        for item in view.queued:
            closed = put(record, close(item, view.now, decision.reason, Outcome.NO_CAPACITY))
            yield Step(record=closed, say=f"attempt {item.number} leaves the queue: {decision.reason}")
        return
    tier = view.spec.tier(str(decision.tier))
    assert tier is not None, decision
    number = record.next_attempt
    attempt = Attempt(
        number=number,
        generation=record.generation,
        tier=tier.name,
        market=tier.market.value,
        state=AttemptState.INTENDED,
        job_name=view.job_name(number),
        job_queue=tier.job_queue,
        why=decision.reason,
        intended_at=view.now,
    )
    counters = replace(record.counters, total_attempts=record.counters.total_attempts + 1)
    record = replace(record, attempts=(*record.attempts, attempt), next_attempt=number + 1, counters=counters)
    say = f"attempt {number} goes to {tier.name}: {decision.reason}"
    yield Step(record=record, effect=Submit(number), say=say)


def _move(view: View, record: Record, decision: Decision) -> Iterator[Step]:
    """Ask the live attempt to save and leave: its successor stands by, or cannot start beside it."""
    live = view.live
    if live is not None:
        closed = put(record, close(live, view.now, f"move to {decision.tier}: {decision.reason}"))
        yield Step(record=closed, say=f"attempt {live.number} is asked to save and leave: {decision.reason}")


_RULES: tuple[Callable[[View], Iterator[Step]], ...] = (
    _resolved,
    _noted,
    _ended,
    _unwell,
    _succeeded,
    _failed,
    _goes_live,
    _decided,
)
