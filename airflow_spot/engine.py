"""The loop: the one place where observing, deciding and acting meet.

``advance()`` may be called again and again, by anyone, at any time, after any crash. It loads the record, looks at
Batch and at the run directory, and takes the first step that :mod:`airflow_spot.core.lifecycle` finds: a write by
compare-and-swap, then at most one effect. Then it looks again, until there is nothing to do.

Everything here blocks; triggers call it in threads. Nothing here imports Airflow.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from airflow_spot import policies
from airflow_spot.backend import Backend, is_ours
from airflow_spot.batch.classify import Blocked
from airflow_spot.batch.requests import job_name, stop_reason, submit_request
from airflow_spot.core.decide import decide
from airflow_spot.core.ending import end_attempt, forget, put
from airflow_spot.core.lifecycle import BATCH_LAG_SECONDS, Step, Submit, Terminate, steps
from airflow_spot.core.measure import snapshot
from airflow_spot.core.outcomes import Outcome
from airflow_spot.core.seen import AttemptSeen, JobSeen, JobStatus, Seen
from airflow_spot.core.snapshot import Decision, Snapshot
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.core.view import View
from airflow_spot.errors import (
    BatchUnavailable,
    SpotError,
    StoreDenied,
    StoreError,
    SubmitRefused,
    SubmitThrottled,
    SubmitUnknown,
)
from airflow_spot.rundir import attempts, checkpoints, codec, owner, record, requests
from airflow_spot.rundir.record import MAX_RACES, Loaded, RecordMoved, outraced
from airflow_spot.rundir.store import Store
from airflow_spot.rundir.values import (
    Attempt,
    AttemptState,
    End,
    OwnerLease,
    Record,
    Result,
    Verdict,
)

log = logging.getLogger(__name__)

_JOB_ID = re.compile(r"[0-9A-Za-z-]{1,64}([:#]\d{1,6})?")
"""What a container may claim to be: anything else is not asked for, lest AWS refuse a whole page of jobs."""

LEASE_SECONDS = 600.0
RELOAD_SECONDS = 60.0
PRUNE_SECONDS = 3600.0
FORGOTTEN_SECONDS = 900.0
MAX_STEPS = 50
"""Per call: a safeguard, far above what a call needs."""
RETRY_SECONDS, RETRY_CAP_SECONDS = 2.0, 120.0
SHORTEST_WAIT_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing to do now.

    :param seconds: when to call again at the latest.
    """

    seconds: float
    record: Record


@dataclass(frozen=True, slots=True)
class Finished:
    """The training run has a result, and every job has been told to end."""

    result: Result
    record: Record


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer generation or try of the task has taken over: this caller does nothing any more."""

    generation: int


@dataclass(slots=True, kw_only=True)
class Loop:
    """One caller's place in the loop. Only caches live here: losing it loses nothing.

    :param store: at the run directory.
    :param generation: the one this caller was made for; with a higher one in the record it does nothing.
    :param try_number: Airflow's try it was made for.
    :param say: where a user reads what happens.
    :param object_modified: when an object outside the run directory was written, for ``success_object``.
    """

    store: Store
    backend: Backend
    generation: int
    try_number: int = 1
    say: Callable[[str], None] = log.info
    object_modified: Callable[[str], datetime | None] = lambda uri: None  # noqa: ARG005
    loaded: Loaded | None = None
    loaded_at: datetime | None = None
    leased_at: datetime | None = None
    killed: set[str] = field(default_factory=set)
    files: dict[int, attempts.AttemptFiles] = field(default_factory=dict)
    said: dict[int, str] = field(default_factory=dict)
    ends_seen: dict[int, datetime] = field(default_factory=dict)
    readable_since: datetime | None = None
    untidy_until: datetime | None = None


def advance(loop: Loop) -> Waiting | Finished | Superseded:
    """Bring a training run forward as far as it goes now.

    Safe to call twice, at once or after a crash. Runs in the triggerer or a worker; blocks for a few requests.

    :raises StoreUnavailable: no decision without the record; training goes on.
    :raises BatchUnavailable: no verdict, no submit, no budget spent.
    """
    loop.killed.clear()
    try:
        return _advance(loop)
    except StoreError:
        loop.readable_since = None
        raise


def _advance(loop: Loop) -> Waiting | Finished | Superseded:
    for _ in range(MAX_STEPS):
        rec = _load(loop).record
        if rec.generation > loop.generation or (rec.generation == loop.generation and rec.try_number > loop.try_number):
            return Superseded(rec.generation)
        _renew_lease(loop, rec)
        view = _look(loop, rec)
        step = next((step for step in steps(view) if not _just_sent(loop, step)), None)
        if step is not None:
            _take(loop, step)
        elif rec.result is not None and not _lingers(loop, view):
            return Finished(rec.result, rec)
        elif not _tidy(loop, view):
            return Waiting(_pause(view), rec)
    return Waiting(SHORTEST_WAIT_SECONDS, _load(loop).record)


def _just_sent(loop: Loop, step: Step) -> bool:
    return step.record is None and isinstance(step.effect, Terminate) and step.effect.ref in loop.killed


def _lingers(loop: Loop, view: View) -> bool:
    """Whether a job that has said its last word is still on its way out."""
    for attempt, seen in view.each():
        alive = attempt.ref and not attempt.terminal and seen.job is not None and not seen.job.terminal
        if alive and attempt.ref not in loop.killed:
            return True
    return False


def _pause(view: View) -> float:
    """Seconds until the next look: the poll interval, or sooner where an instant is near."""
    rec, spec = view.record, view.spec
    again = [item.retry_at for item in rec.attempts if item.retry_at] + [rec.promote_at]
    if rec.result is None and rec.desired.state == "running":
        again.append(view.decide(snapshot(view)).look_again)
    near = [(at - view.now).total_seconds() for at in again if at and at > view.now]
    return max(SHORTEST_WAIT_SECONDS, min([spec.poll_seconds, *near]))


# ---------------------------------------------------------------- load and look


def _load(loop: Loop) -> Loaded:
    """Return the record; one that was read within the last minute is good enough to look for something to do."""
    now = loop.backend.now()
    if loop.loaded is None or loop.loaded_at is None or (now - loop.loaded_at).total_seconds() > RELOAD_SECONDS:
        loop.loaded, loop.loaded_at = _must_load(loop.store), now
    return loop.loaded


def _must_load(store: Store) -> Loaded:
    loaded = record.load(store)
    if loaded is None:
        raise SpotError(f"{store.uri} holds no training run; was the directory deleted?")
    return loaded


def _renew_lease(loop: Loop, rec: Record) -> None:
    """Tell the agents, every ten minutes, that somebody waits."""
    spec = codec.decode(TrainingSpec, rec.spec)
    every, now = min(LEASE_SECONDS, spec.orphan_after_seconds / 4), loop.backend.now()
    if rec.result is not None or (loop.leased_at is not None and (now - loop.leased_at).total_seconds() < every):
        return
    try:
        owner.renew(loop.store, OwnerLease(owner=rec.owner, generation=rec.generation))
    except StoreDenied as error:
        loop.say(
            f"the lease could not be renewed; agents leave {spec.orphan_after_seconds:.0f} s after the last: {error}"
        )
    loop.leased_at = now


def _look(loop: Loop, rec: Record) -> View:
    """Describe the jobs and read what the agents and people wrote."""
    spec = codec.decode(TrainingSpec, rec.spec)
    refs = [item.ref for item in rec.attempts if item.ref and not item.terminal]
    jobs = loop.backend.describe(refs, max_age=spec.poll_seconds / 2) if refs else {}
    now = loop.backend.now()
    watched = [item for item in rec.attempts if _matters(rec, item)]
    seen = Seen(
        now=now,
        attempts={item.number: _look_at(loop, rec, spec, item, jobs, now) for item in watched},
        requests=tuple(requests.pending(loop.store, rec.applied)),
        readable_seconds=_readable(loop, now),
    )
    policy = policies.from_json(spec.policy)

    def bound(shot: Snapshot) -> Decision:
        return decide(policy, shot)

    def name(number: int) -> str:
        return job_name(loop.store.uri, rec.run_key, number)

    view = View(uri=loop.store.uri, record=rec, spec=spec, seen=seen, decide=bound, job_name=name)
    return replace(view, seen=_with_tip(loop, view)) if _needs_pin(view) else view


def _readable(loop: Loop, now: datetime) -> float:
    if loop.readable_since is None:
        loop.readable_since = now
    return (now - loop.readable_since).total_seconds()


def _matters(rec: Record, attempt: Attempt) -> bool:
    return attempt.state is not AttemptState.ENDED or not attempt.terminal or attempt.number == rec.last_live


def _needs_pin(view: View) -> bool:
    """Whether an attempt may go live now: only then are the checkpoints listed."""
    waiting = AttemptState.STANDBY if view.spec.agent else AttemptState.SUBMITTED
    waits = any(item.state is waiting for item in view.record.attempts)
    return waits and view.live is None and view.leaving is None and view.record.result is None


def _with_tip(loop: Loop, view: View) -> Seen:
    if not view.spec.agent or view.record.last_live is None:
        return replace(view.seen, tip_read=True)
    tip = checkpoints.tip(checkpoints.present(loop.store), view.record)
    return replace(view.seen, tip_read=True, tip=tip.id if tip else None)


def _look_at(
    loop: Loop, rec: Record, spec: TrainingSpec, attempt: Attempt, jobs: dict[str, JobSeen], now: datetime
) -> AttemptSeen:
    """Return what is known of one attempt."""
    files = attempts.AttemptFiles()
    if spec.agent and attempt.state is not AttemptState.REFUSED:
        files = attempts.observe(loop.store, attempt.number, loop.files.get(attempt.number))
        loop.files[attempt.number] = files
    job = jobs.get(attempt.ref) or _forgotten(attempt, now) if attempt.ref else None
    blocked = loop.backend.blocked(job, now) if job is not None else None
    _say_blocked(loop, attempt, blocked)
    modified = files.heartbeat_modified
    seen = AttemptSeen(
        job=job,
        found=_look_up(loop, rec, attempt, files),
        claims=files.claims,
        end=files.end,
        heartbeat=files.heartbeat,
        heartbeat_age=(now - modified).total_seconds() if modified else None,
        proved=_proved(loop, spec, attempt),
        blocked=blocked.sentence if blocked else None,
        never_fits=blocked.outcome
        if blocked and blocked.settled and blocked.outcome is not Outcome.NO_CAPACITY
        else None,
    )
    if attempt.state is AttemptState.ENDED or rec.result is not None:
        return seen
    return replace(seen, verdict=_verdict(loop, spec, attempt, seen, now))


def _forgotten(attempt: Attempt, now: datetime) -> JobSeen | None:
    """A job that Batch does not show long after it gave its id is gone: records are kept for seven days only."""
    if (
        attempt.terminal
        or attempt.submitted_at is None
        or (now - attempt.submitted_at).total_seconds() < FORGOTTEN_SECONDS
    ):
        return None
    reason = "AWS Batch does not know this job any more"
    return JobSeen(ref=str(attempt.ref), name=attempt.job_name, status=JobStatus.FAILED, status_reason=reason)


def _say_blocked(loop: Loop, attempt: Attempt, blocked: Blocked | None) -> None:
    """Say what keeps a job waiting, once for each reason that Batch gives."""
    reason = blocked.reason if blocked else ""
    if blocked is not None and loop.said.get(attempt.number) != reason:
        loop.say(f"attempt {attempt.number} waits in {attempt.job_queue}: {blocked.sentence}")
    loop.said[attempt.number] = reason


def _look_up(loop: Loop, rec: Record, attempt: Attempt, files: attempts.AttemptFiles) -> tuple[JobSeen, ...]:
    """Jobs that may be this attempt's although the record does not say so, each shown by Batch to be ours."""
    found: dict[str, JobSeen] = {}
    if attempt.ref is None and attempt.state in (AttemptState.INTENDED, AttemptState.UNRESOLVED):
        name = job_name(loop.store.uri, rec.run_key, attempt.number)
        found = {job.ref: job for job in loop.backend.find(name, attempt.job_queue, attempt.intended_at)}
    claims = (claim.job for claim in files.claims if claim.job != attempt.ref and claim.job not in found)
    claimed = [job for job in claims if _JOB_ID.fullmatch(job)]
    if claimed and not attempt.terminal:
        found |= loop.backend.describe(claimed[:1])
    return tuple(job for job in found.values() if is_ours(job, loop.store.uri, attempt.number))


def _proved(loop: Loop, spec: TrainingSpec, attempt: Attempt) -> bool:
    """Whether the object that proves a plain image's success is there, newer than the attempt."""
    if spec.agent or not spec.success_object or attempt.state is AttemptState.ENDED:
        return False
    modified = loop.object_modified(spec.success_object)
    return modified is not None and attempt.intended_at is not None and modified >= attempt.intended_at


def _verdict(loop: Loop, spec: TrainingSpec, attempt: Attempt, seen: AttemptSeen, now: datetime) -> Verdict | None:
    """Return why an attempt has ended, None while it has not.

    An end file is enough where it says all. For a failed trainer Batch's own words are waited for: they tell a lack of
    memory from an error of the program.
    """
    job = seen.job
    if job is None or not (job.terminal or (seen.end is not None and _heard_out(loop, attempt, seen.end, now))):
        return None
    return loop.backend.verdict(
        job,
        market=attempt.market,
        end=seen.end,
        agent=spec.agent,
        trusted=seen.proved or spec.trust_exit_code,
        heartbeat=seen.heartbeat,
    )


def _heard_out(loop: Loop, attempt: Attempt, end: End, now: datetime) -> bool:
    """Whether to judge by an end file although Batch does not call the job terminal yet."""
    first = loop.ends_seen.setdefault(attempt.number, now)
    return _says_all(end) or (now - first).total_seconds() > BATCH_LAG_SECONDS


def _says_all(end: End) -> bool:
    """Whether an end file alone tells why: not after a signal that anyone may have caused, nor after a plain exit."""
    if end.reason == "notice":
        return end.notice is not None and end.notice.source == "spot"
    return end.completed or end.reason != "exit"


# ---------------------------------------------------------------- act


def _take(loop: Loop, step: Step) -> None:
    """Write, then act. Somebody else's write in between means: look again."""
    if step.record is not None:
        try:
            _save(loop, step.record)
        except RecordMoved:
            loop.loaded = None
            return
        if step.say:
            loop.say(step.say)
    elif not _still(loop):
        return
    if isinstance(step.effect, Submit):
        _submit(loop, step.effect.number)
    elif isinstance(step.effect, Terminate):
        loop.killed.add(step.effect.ref)
        loop.backend.terminate(step.effect.ref, stop_reason(loop.store.uri, step.effect.why))
    if step.record is not None:
        _show_logs(loop, step.record)


def _still(loop: Loop) -> bool:
    """Whether the record is what was looked at: read again before an effect that no write precedes."""
    before, loop.loaded, loop.loaded_at = loop.loaded, _must_load(loop.store), loop.backend.now()
    return before is not None and before.etag == loop.loaded.etag


def _save(loop: Loop, rec: Record) -> None:
    loaded = loop.loaded
    if loaded is None:
        raise RecordMoved("the record was not loaded")
    loop.loaded, loop.loaded_at = record.save(loop.store, rec, loaded.etag), loop.backend.now()


def _update(loop: Loop, change: Callable[[Record], Record | None]) -> Record:
    """Write a change that must get in, loading again as often as somebody else was first; None: nothing to write."""
    for _ in range(MAX_RACES):
        loop.loaded, loop.loaded_at = _must_load(loop.store), loop.backend.now()
        rec = change(loop.loaded.record)
        if rec is None:
            return loop.loaded.record
        try:
            _save(loop, rec)
        except RecordMoved:
            continue
        return rec
    raise outraced(loop.store)


def _of(rec: Record, number: int) -> Attempt | None:
    return next((item for item in rec.attempts if item.number == number), None)


def _submit(loop: Loop, number: int) -> None:
    """Send the one SubmitJob of an attempt whose intent is written, and write down what came of it."""
    rec = _load(loop).record
    attempt, spec = _of(rec, number), codec.decode(TrainingSpec, rec.spec)
    tier = spec.tier(attempt.tier) if attempt else None
    if attempt is None or tier is None:
        return
    request = submit_request(
        spec,
        tier,
        run_uri=loop.store.uri,
        run_key=rec.run_key,
        attempt=number,
        definition=loop.backend.definition(spec.job_definition),
    )
    try:
        ref = loop.backend.submit(request)
    except SubmitThrottled as error:
        _update(loop, lambda now: _throttled(loop, now, number))
        loop.say(f"attempt {number}: AWS throttles SubmitJob, the same attempt is sent again later ({error})")
    except SubmitRefused as error:
        said = str(error)
        _update(loop, lambda now: _refused(loop, now, number, said))
        loop.say(f"attempt {number} on {tier.name} was refused: {error}")
    except (SubmitUnknown, BatchUnavailable) as error:
        loop.say(f"attempt {number}: nobody knows whether a job exists, looking it up by name ({error})")
    else:
        _submitted(loop, number, ref, str(request["jobName"]))


def _throttled(loop: Loop, rec: Record, number: int) -> Record | None:
    attempt = _of(rec, number)
    if attempt is None or attempt.state is not AttemptState.INTENDED:
        return None
    wait = min(RETRY_SECONDS * 2.0**attempt.submit_tries, RETRY_CAP_SECONDS)
    again = loop.backend.now() + timedelta(seconds=wait)
    return put(rec, replace(attempt, state=AttemptState.REFUSED, submit_tries=attempt.submit_tries + 1, retry_at=again))


def _refused(loop: Loop, rec: Record, number: int, said: str) -> Record | None:
    attempt = _of(rec, number)
    if attempt is None or attempt.state is not AttemptState.INTENDED:
        return None
    verdict = Verdict(outcome=Outcome.MISCONFIGURED.value, sentence=f"AWS refused the job: {said}", evidence=(said,))
    ended = end_attempt(rec, attempt, AttemptSeen(), verdict, loop.backend.now())
    return put(ended, replace(_of(ended, number) or attempt, terminal=True))


def _submitted(loop: Loop, number: int, ref: str, name: str) -> None:
    """After SubmitJob the record is read again: a caller that was superseded meanwhile ends its own job."""

    def change(rec: Record) -> Record | None:
        attempt = _of(rec, number)
        if _overtaken(rec, attempt, ref) or attempt is None or attempt.ref == ref:
            return None
        now = loop.backend.now()
        taken = replace(attempt, state=AttemptState.SUBMITTED, ref=ref, job_name=name, submitted_at=now)
        return put(rec, taken)

    rec = _update(loop, change)
    if _overtaken(rec, _of(rec, number), ref):
        loop.backend.terminate(ref, stop_reason(loop.store.uri, f"attempt {number} was superseded while submitting"))
    else:
        loop.say(f"attempt {number}: job {ref}")


def _overtaken(rec: Record, attempt: Attempt | None, ref: str) -> bool:
    if rec.result is not None or rec.desired.state == "stopped" or attempt is None:
        return True
    good = (AttemptState.INTENDED, AttemptState.SUBMITTED, AttemptState.STANDBY, AttemptState.LIVE)
    return attempt.state not in good or attempt.ref not in (None, ref)


def _show_logs(loop: Loop, rec: Record) -> None:
    """Put the tail of an attempt's log into the task log once the write that ended it went through."""
    now = loop.backend.now()
    spec = codec.decode(TrainingSpec, rec.spec)
    for attempt in rec.attempts:
        fresh = attempt.ended_at is not None and (now - attempt.ended_at).total_seconds() < BATCH_LAG_SECONDS
        if not fresh or not spec.awslogs_enabled or not attempt.ref or loop.said.get(-attempt.number):
            continue
        loop.said[-attempt.number] = "shown"
        try:
            job = loop.backend.describe([attempt.ref]).get(attempt.ref)
        except BatchUnavailable as error:
            loop.say(f"the log of attempt {attempt.number} cannot be shown: {error}")
            continue
        for line in loop.backend.tail(job) if job else ():
            loop.say(f"[a{attempt.number:04d}] {line}")


def _tidy(loop: Loop, view: View) -> bool:
    """Forget old attempts and delete checkpoints that no one needs; return whether the record was written.

    Nothing rests on it, so a refusal is said once an hour and changes nothing else.
    """
    if loop.untidy_until is not None and view.now < loop.untidy_until:
        return False
    try:
        rec = _tidied(loop, view)
    except StoreError as error:
        loop.untidy_until = view.now + timedelta(seconds=PRUNE_SECONDS)
        loop.say(f"old checkpoints could not be deleted; the training goes on: {error}")
        return False
    if rec == view.record:
        return False
    _take(loop, Step(record=rec))
    return True


def _tidied(loop: Loop, view: View) -> Record:
    rec, gone = forget(view.record)
    for attempt in gone:
        attempts.write_outcome(loop.store, attempt)
    due = rec.pruned_at is None or (view.now - rec.pruned_at).total_seconds() >= PRUNE_SECONDS
    went_live = any(item.live_at and rec.pruned_at and item.live_at > rec.pruned_at for item in rec.attempts)
    if rec.last_live is None or not view.spec.agent or not (due or went_live):
        return rec
    in_use = {
        name for _, seen in view.each() if (beat := seen.heartbeat) for name in (beat.restored, beat.committed) if name
    }
    pruning = checkpoints.prune(loop.store, rec, view.now, also=in_use)
    deleted = checkpoints.delete(loop.store, rec, pruning.deletable, also=in_use)
    struck = {name: at for name, at in rec.struck.items() if name not in deleted}
    return replace(rec, struck=struck | dict.fromkeys(pruning.strike, view.now), pruned_at=view.now)
