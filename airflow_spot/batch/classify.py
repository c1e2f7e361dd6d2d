"""Why a job ended or waits. Pure, and the only module that reads the vendor's texts.

A verdict is the first of ``_RULES`` that knows an answer. The order is the argument: proof of completion first, then
what the agent itself said, then who stopped the job, then what became of the machine, and exit codes last, since
137 and 143 alone prove nothing. Texts are matched by their beginning and without regard to case: AWS changes the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_spot.batch.jobs import AttemptSeen, attempts_of
from airflow_spot.core.outcomes import TABLE, Outcome
from airflow_spot.core.seen import JobStatus
from airflow_spot.durations import words
from airflow_spot.rundir.values import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from airflow_spot.batch.evidence import Evidence
    from airflow_spot.core.seen import JobSeen
    from airflow_spot.rundir.values import End, Heartbeat, Notice

DWELL_SECONDS = 900.0
"""MISCONFIGURATION has been seen while the first machine was still booting: believe it when it lasts."""

_HOST_LOST = "host ec2"
_FARGATE_SPOT = "your spot task was interrupted"
_DRAINED = "task stopped during instance draining"
_TIMED_OUT = "job attempt duration exceeded timeout"
_TIME_LIMIT = (
    "canceled by jobstatetimelimit action due to reason:",
    "terminated by jobstatetimelimit action due to reason:",
)
_NOT_STARTED = "task failed to start"
_OUT_OF_MEMORY = "outofmemoryerror"
_PULL = "cannotpull"
_LOST_EXIT = "cannotinspectcontainererror"
_SET_UP = ("resourceinitializationerror", "ecs was unable to assume the role")
_START = (
    "dockertimeouterror",
    "cannotstartcontainererror",
    "cannotcreatecontainererror",
    "cannotcreatevolumeerror",
    "containervanishederror",
    "containernetworkingerror",
    "taskdependencyerror",
    "taskstoppedbeforepullbeginerror",
    "impossiblestatetransitionerror",
)
_DEAD_AGENT = "agent"
_PULL_MAY_PASS = (
    "context canceled",
    "context deadline exceeded",
    "timeout",
    "timed out",
    "connection reset",
    "connection refused",
    "temporary failure",
    "toomanyrequests",
    "rate exceeded",
    "500",
    "502",
    "503",
    "504",
    "service unavailable",
    "internal server error",
    "unexpected eof",
)
_PULL_NEVER_PASSES = (
    "not found",
    "404",
    "403",
    "manifest unknown",
    "does not exist",
    "denied",
    "unauthorized",
    "no basic auth credentials",
    "authorization failed",
    "invalid reference format",
    "no matching manifest",
    "no space left on device",
    "image operating system",
)
_ENTRY_POINT = ("executable file not found", "no such file or directory", "exec format error", "permission denied")

_SPOT_STATE = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
_SPOT_STATUS = frozenset(
    {
        "instance-terminated-no-capacity",
        "instance-terminated-by-price",
        "instance-terminated-launch-group-constraint",
        "instance-terminated-by-experiment",
        "instance-stopped-no-capacity",
        "instance-stopped-by-price",
        "marked-for-termination",
        "marked-for-stop",
    }
)
_ENDED_BY_USER = frozenset({"instance-terminated-by-user", "spot-instance-terminated-by-user"})
_STATE_MEANS = {
    "Client.UserInitiatedShutdown": "someone ended it: Batch scaling in or updating, or a person",
    "Client.InstanceInitiatedShutdown": "its own operating system shut down",
    "Server.ScheduledStop": "AWS retired its hardware",
    "Server.InternalError": "it failed inside AWS",
    "Server.InsufficientInstanceCapacity": "AWS had no capacity to start it",
}
_SPOT_CAPACITY = frozenset({"SPOT", "FARGATE_SPOT"})
_RECLAIMABLE_LIFECYCLES = frozenset({"spot", "interruptible-capacity-reservation"})
_CAPACITY_BLOCK = "capacity-block"
_BLOCK_ENDS_EARLY = timedelta(minutes=30)
_MINUTES = timedelta(minutes=15)
_KILLED, _TERMINATED = 137, 143
_NOT_FOUND_CODES = frozenset({126, 127})
_SPOT_NOTICE = "spot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """What keeps a waiting job from starting.

    :param outcome: ``NO_CAPACITY``, ``NEVER_FITS`` or ``MISCONFIGURED``: what it is if it stays so.
    :param settled: it has lasted long enough to act on. Capacity is settled at once; a tier's ``max_wait`` bounds it.
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
    """Return what Batch says of a job at the head of its queue that does not start.

    :param waited_seconds: since the same reason was seen first.
    """
    code = blocked_code(reason)
    if code is None:
        return None
    outcome = _blocked_outcome(code)
    settled = outcome is Outcome.NO_CAPACITY or waited_seconds >= DWELL_SECONDS
    row, wait = TABLE[outcome], "" if settled else f"; believed after {words(DWELL_SECONDS)}, as it may pass"
    look = f". Look at {row.advice}" if settled and row.advice else ""
    what = f"The job has waited for {words(waited_seconds)} with a reason: {row.means}{wait}{look}"
    sentence = f"{what}. AWS says: {reason!r}"
    return Blocked(outcome=outcome, settled=settled, sentence=sentence, reason=reason)


def _blocked_outcome(code: str) -> Outcome:
    if not code.upper().startswith("MISCONFIGURATION"):
        return Outcome.NO_CAPACITY
    return Outcome.NEVER_FITS if "_RESOURCE" in code.upper() else Outcome.MISCONFIGURED


def interruptions(job: JobSeen) -> int:
    """Return how many of the tries that Batch itself made of a job lost their machine."""
    return sum(_lost(attempt.status_reason) for attempt in attempts_of(job.raw))


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
    """Return why a job ended, in one sentence that quotes AWS, with the evidence it rests on.

    Whether a completed end file counts for the training run is the loop's to say; here it proves that the trainer
    was done. The job need not be terminal where there is an end file.

    :param market: of the attempt's tier: what the queue was said to be.
    :param trusted: exit code 0 of a plain image, or its success object, counts as success.
    :param now: when the evidence was gathered.
    """
    case = _Case(job, market, evidence, end, heartbeat, agent, stop_token, trusted, now)
    finding = next(found for rule in _RULES if (found := rule(case)))
    return Verdict(
        outcome=finding.outcome.value,
        confidence="low" if finding.unsure else "high",
        sentence=_sentence(case, finding),
        evidence=_evidence(case),
        exit_code=end.exit_code if end else job.exit_code,
        instance=case.instance,
        instance_type=evidence.instance_type or (heartbeat.instance_type if heartbeat else None),
        zone=evidence.zone or (heartbeat.zone if heartbeat else None),
    )


@dataclass(frozen=True, slots=True)
class _Case:
    """All that is known of an attempt."""

    job: JobSeen
    market: str
    evidence: Evidence
    end: End | None
    heartbeat: Heartbeat | None
    agent: bool
    stop_token: str
    trusted: bool
    now: datetime | None

    @property
    def reason(self) -> str:
        return self.job.status_reason.strip().lower()

    @property
    def container(self) -> str:
        return self.job.container_reason.strip().lower()

    @property
    def exit_code(self) -> int | None:
        return self.job.exit_code if self.job.exit_code is not None or self.end is None else self.end.exit_code

    @property
    def instance(self) -> str | None:
        return self.evidence.instance or self.job.instance or (self.heartbeat.instance if self.heartbeat else None)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The warnings that the agent saw; a SIGTERM at its end may hide the spot notice that it reported before."""
        seen = (self.heartbeat.notice if self.heartbeat else None, self.end.notice if self.end else None)
        return tuple(notice for notice in seen if notice is not None)

    @property
    def spot_notice(self) -> bool:
        return any(notice.source == _SPOT_NOTICE for notice in self.notices)

    @property
    def spot_proven(self) -> bool:
        """EC2 itself says that it took the machine back."""
        return self.evidence.state_reason in _SPOT_STATE or self.evidence.spot_status in _SPOT_STATUS

    @property
    def spot_word(self) -> str:
        status = self.evidence.spot_status
        return str(status if status in _SPOT_STATUS else self.evidence.state_reason)

    @property
    def own_market(self) -> str | None:
        """The machine's own word on how it is paid: by EC2, or by its metadata through the agent."""
        return self.evidence.lifecycle or (self.heartbeat.market if self.heartbeat else None)


@dataclass(frozen=True, slots=True)
class _Finding:
    outcome: Outcome
    what: str
    unsure: bool = False


def _starts(text: str, *beginnings: str) -> bool:
    return text.startswith(beginnings)


def _mentions(text: str, sayings: tuple[str, ...]) -> bool:
    """Whether a text has one of these as words: a digest may well hold the digits 404."""
    return any(re.search(rf"(?<!\w){re.escape(saying)}(?!\w)", text) for saying in sayings)


def _lost(reason: str) -> bool:
    return _starts(reason.strip().lower(), _HOST_LOST, _FARGATE_SPOT, _DRAINED)


def _completed(case: _Case) -> _Finding | None:
    if case.end is None or not case.end.completed:
        return None
    count = interruptions(case.job)
    after = f" after {count} interruption{'s' if count > 1 else ''} inside Batch" if count else ""
    return _Finding(Outcome.SUCCEEDED, f"The training completed{after}: its end file says so{_also(case.end)}")


def _agent_said(case: _Case) -> _Finding | None:
    """Read why the agent left, where it left by its own decision."""
    if case.end is None:
        return None
    message = f": {case.end.message}" if case.end.message else ""
    said = {
        "misconfigured": (Outcome.MISCONFIGURED, f"The set-up cannot work, the agent says{message}"),
        "fenced": (Outcome.SUPERSEDED, f"Another attempt took its place, and the agent left{message}"),
        "stopped": (Outcome.STOPPED_BY_US, f"We stopped the training, and the agent saved and left{message}"),
        "closing": (Outcome.STOPPED_BY_US, f"We asked the attempt to close, and the agent saved and left{message}"),
        "lease": (
            Outcome.STOPPED_BY_US,
            f"Nobody waited for the training in Airflow any more (lease), so the agent saved and left{message}",
        ),
    }
    found = said.get(case.end.reason)
    return _Finding(*found) if found else None


def _memory(case: _Case) -> _Finding | None:
    if _starts(case.container, _OUT_OF_MEMORY) or _starts(case.reason, _OUT_OF_MEMORY):
        return _Finding(
            Outcome.OUT_OF_MEMORY, f"The container ran out of memory; look at {TABLE[Outcome.OUT_OF_MEMORY].advice}"
        )
    return None


def _trainer_failed(case: _Case) -> _Finding | None:
    """Trust an end file: nothing had interrupted the trainer when it failed, whatever came of the machine after."""
    end = case.end
    if end is None or end.reason != "exit" or end.interrupted or end.exit_code == 0:
        return None
    if end.exit_code in {_KILLED, -9}:
        what = "The training program was killed (SIGKILL), which mostly means memory, though AWS does not say so"
        return _Finding(Outcome.USER_ERROR, what, unsure=True)
    return _Finding(Outcome.USER_ERROR, f"The training program failed with exit code {end.exit_code}{_message(end)}")


def _message(end: End) -> str:
    return f": {end.message}" if end.message else ""


def _also(end: End) -> str:
    """What went wrong beside a success, such as a last checkpoint that was not stored."""
    return f"; {end.message}" if end.message else ""


def _our_stop(case: _Case) -> _Finding | None:
    if case.stop_token and case.job.status_reason.startswith(case.stop_token):
        return _Finding(Outcome.STOPPED_BY_US, "We stopped the job")
    return None


def _time_limit(case: _Case) -> _Finding | None:
    """The queue's own limit cancels jobs that wait; it looks like a person's stop but for the text."""
    beginning = next((text for text in _TIME_LIMIT if case.reason.startswith(text)), None)
    if beginning is None:
        return None
    outcome = _blocked_outcome(case.job.status_reason.strip()[len(beginning) :].strip())
    return _Finding(outcome, f"The queue's time limit for waiting jobs ended the job: {TABLE[outcome].means}")


def _timed_out(case: _Case) -> _Finding | None:
    if _starts(case.reason, _TIMED_OUT):
        return _Finding(Outcome.TIMED_OUT, "The attempt ran into Batch's time-out, which we set at submit")
    return None


def _others_stop(case: _Case) -> _Finding | None:
    flagged = case.job.is_terminated or case.job.is_cancelled
    # The flag may come before the reason, and the reason alone tells whose stop it is.
    if not flagged or not (case.job.terminal or case.job.status_reason):
        return None
    verb = "terminated" if case.job.is_terminated else "cancelled"
    return _Finding(
        Outcome.STOPPED_BY_OTHERS,
        f"Someone else {verb} the job, so it is not submitted again; {TABLE[Outcome.STOPPED_BY_OTHERS].advice}",
    )


def _reservation(case: _Case) -> _Finding | None:
    if case.evidence.lifecycle != _CAPACITY_BLOCK or case.evidence.reservation_ends is None:
        return None
    if not _machine_gone(case):
        return None
    ends, ended = case.evidence.reservation_ends, case.job.stopped_at or case.now
    if ended is None or ended < ends - _BLOCK_ENDS_EARLY:
        return None
    return _Finding(
        Outcome.RESERVATION_ENDED, f"The reserved capacity ended: its Capacity Block runs until {ends:%F %T} UTC"
    )


def _machine_gone(case: _Case) -> bool:
    return _lost(case.job.status_reason) or case.evidence.state in {
        "shutting-down",
        "terminated",
        "stopping",
        "stopped",
        "gone",
    }


def _host_lost(case: _Case) -> _Finding | None:
    """The text is the same whether AWS took the machine back, it broke, or someone ended it: ask further."""
    if _starts(case.reason, _FARGATE_SPOT):
        return _Finding(Outcome.RECLAIMED, "AWS took the spot capacity back")
    if _starts(case.reason, _DRAINED):
        return _Finding(Outcome.HOST_LOST, "AWS drained the managed instance, as it does after two weeks")
    if not _starts(case.reason, _HOST_LOST):
        return None
    return _proof(case) or _by_market(case)


def _proof(case: _Case) -> _Finding | None:
    """Decide by what EC2 or the agent says of this very machine."""
    evidence = case.evidence
    if case.spot_proven:
        return _Finding(Outcome.RECLAIMED, f"AWS took the spot machine back: EC2 reports {case.spot_word}")
    if case.spot_notice:
        return _Finding(Outcome.RECLAIMED, "AWS took the spot machine back: the agent saw the notice")
    if evidence.spot_status in _ENDED_BY_USER:
        means = _STATE_MEANS["Client.UserInitiatedShutdown"]
        return _Finding(
            Outcome.HOST_LOST, f"The machine went away, not by a spot reclaim: {means} ({evidence.spot_status})"
        )
    if evidence.state_reason in _STATE_MEANS:
        means = _STATE_MEANS[evidence.state_reason]
        return _Finding(
            Outcome.HOST_LOST, f"The machine went away, not by a spot reclaim: {means} ({evidence.state_reason})"
        )
    return None


def _by_market(case: _Case) -> _Finding:
    """Decide by how the machine was bought, where nothing is known of its end."""
    capacity, own = case.evidence.capacity, case.own_market
    if own in _RECLAIMABLE_LIFECYCLES:
        unsure = capacity not in _SPOT_CAPACITY
        return _Finding(Outcome.RECLAIMED, "AWS took the spot machine back: it was one by its own word", unsure=unsure)
    if own or (capacity and capacity not in _SPOT_CAPACITY):
        kind = f"the machine was {own}" if own else f"the compute environment is of type {capacity}"
        return _Finding(Outcome.HOST_LOST, f"The machine went away, not by a spot reclaim: {kind}")
    if capacity in _SPOT_CAPACITY:
        what = (
            "AWS most likely took the spot machine back: the compute environment is spot, and EC2 tells no more of it"
        )
        return _Finding(Outcome.RECLAIMED, what, unsure=True)
    if case.evidence.denied and case.market == "spot":
        what = f"AWS most likely took the spot machine back: the tier is spot, and we may not ask ({_denied(case)})"
        return _Finding(Outcome.RECLAIMED, what, unsure=True)
    what = "The machine went away; whether by a spot reclaim could not be found out"
    return _Finding(Outcome.HOST_LOST, what, unsure=True)


def _denied(case: _Case) -> str:
    return f"allow {', '.join(case.evidence.denied)} to know"


def _interrupted(case: _Case) -> _Finding | None:
    """The container ended before Batch missed the machine: it got a signal, or left on a notice in time."""
    if case.spot_notice and (case.end is None or case.end.interrupted or case.end.reason == "notice"):
        return _Finding(Outcome.RECLAIMED, "AWS took the spot machine back: the agent saw the notice and left in time")
    signalled = bool(case.end and case.end.interrupted) or case.exit_code in {_KILLED, _TERMINATED}
    if case.trusted and _exited_well(case):
        return None
    if case.spot_proven and (signalled or case.exit_code in {0, None}):
        late = bool(case.now and case.job.stopped_at and case.now - case.job.stopped_at > _MINUTES)
        what = f"AWS took the spot machine back, and the container ended first: EC2 reports {case.spot_word}"
        return _Finding(Outcome.RECLAIMED, what, unsure=late)
    on_spot = case.own_market == "spot" or (case.own_market is None and case.evidence.capacity in _SPOT_CAPACITY)
    unexplained = case.evidence.state_reason is None and case.evidence.spot_status not in _ENDED_BY_USER
    if case.job.terminal and signalled and on_spot and unexplained and _machine_gone(case):
        what = "AWS most likely took the spot machine back: a signal ended the container, and the machine is gone"
        return _Finding(Outcome.RECLAIMED, what, unsure=True)
    return None


def _exited_well(case: _Case) -> bool:
    return case.job.status is JobStatus.SUCCEEDED and case.exit_code in {0, None}


def _image(case: _Case) -> _Finding | None:
    text = next((text for text in (case.container, case.reason) if _starts(text, _PULL)), None)
    if text is None:
        return None
    if not _mentions(text, _PULL_MAY_PASS) and _mentions(text, _PULL_NEVER_PASSES):
        return _Finding(
            Outcome.MISCONFIGURED,
            "The image cannot be pulled, and will not be: look at its name, the execution role and the disk's size",
        )
    return _Finding(Outcome.START_FAILED, "The image could not be pulled this time")


def _set_up(case: _Case) -> _Finding | None:
    if not any(_starts(text, *_SET_UP) for text in (case.container, case.reason)):
        return None
    return _Finding(
        Outcome.MISCONFIGURED,
        "The container's surroundings cannot be made: look at the named role, secret, log group or network",
    )


def _lost_exit(case: _Case) -> _Finding | None:
    if _starts(case.container, _LOST_EXIT) and not (case.trusted and _exited_well(case)):
        what = "AWS lost sight of the container's exit, and nothing says that the training was complete"
        return _Finding(Outcome.INCOMPLETE, what, unsure=True)
    return None


def _start(case: _Case) -> _Finding | None:
    known = any(_starts(text, *_START) for text in (case.container, case.reason))
    if known and _mentions(case.container, _ENTRY_POINT):
        return _Finding(
            Outcome.MISCONFIGURED, "The container's command cannot be run: look at the command and the image"
        )
    if case.container == _DEAD_AGENT:
        return _Finding(Outcome.START_FAILED, "The container was placed on a machine whose ECS agent was gone")
    if known or _starts(case.reason, _NOT_STARTED):
        return _Finding(Outcome.START_FAILED, "The container did not start")
    return None


def _exit(case: _Case) -> _Finding | None:
    """Nothing but an exit code, or not even that, is left."""
    if _exited_well(case):
        return _exit_zero(case)
    code = case.exit_code
    if code == 0:
        return _Finding(Outcome.INCOMPLETE, _INCOMPLETE)
    if case.end is not None and case.end.interrupted:
        what = "A signal ended the training before it was complete, and nothing says who sent it"
        return _Finding(Outcome.INCOMPLETE, what, unsure=True)
    if code is None:
        return None
    return _exit_failed(case, code)


_INCOMPLETE = (
    f"The job ended without saying that the training was complete; it takes {TABLE[Outcome.INCOMPLETE].advice}"
)


def _exit_zero(case: _Case) -> _Finding:
    if case.agent or not case.trusted:
        return _Finding(Outcome.INCOMPLETE, _INCOMPLETE)
    return _Finding(Outcome.SUCCEEDED, "The training completed: its container ended well, which is taken as proof")


def _exit_failed(case: _Case, code: int) -> _Finding:
    if code == _KILLED:
        what = "The container was killed (SIGKILL), and nothing says by whom; AWS does not report memory"
        return _Finding(Outcome.UNKNOWN, what, unsure=True)
    if code == _TERMINATED:
        running = ", while its machine ran on" if case.evidence.state == "running" else ""
        what = f"SIGTERM ended the training program{running}: not by a spot reclaim, not by us, not through Batch"
        return _Finding(Outcome.USER_ERROR, what, unsure=True)
    if case.agent and case.end is None and case.heartbeat is None and code in _NOT_FOUND_CODES:
        what = f"The container's command could not be run (exit code {code}): is airflow-provider-spot in the image?"
        return _Finding(Outcome.MISCONFIGURED, what)
    unsure = case.agent and case.end is None
    word = "; its agent left no last word" if unsure else ""
    return _Finding(Outcome.USER_ERROR, f"The training program failed with exit code {code}{word}", unsure=unsure)


def _unknown(_case: _Case) -> _Finding:
    return _Finding(Outcome.UNKNOWN, "The job ended for a reason that we do not know", unsure=True)


_RULES: tuple[Callable[[_Case], _Finding | None], ...] = (
    _completed,
    _agent_said,
    _memory,
    _trainer_failed,
    _our_stop,
    _time_limit,
    _timed_out,
    _others_stop,
    _reservation,
    _host_lost,
    _interrupted,
    _image,
    _set_up,
    _lost_exit,
    _start,
    _exit,
    _unknown,
)


def _sentence(case: _Case, finding: _Finding) -> str:
    heartbeat = case.heartbeat
    place = (
        case.instance,
        case.evidence.instance_type or (heartbeat.instance_type if heartbeat else None),
        case.evidence.zone or (heartbeat.zone if heartbeat else None),
    )
    where = ", ".join(part for part in place if part)
    return f"{finding.what}{f' ({where})' if where else ''}. {_quoted(case.job)}"


def _quoted(job: JobSeen) -> str:
    """Return AWS's own words, whole: ours may be wrong."""
    texts = [repr(text) for text in dict.fromkeys((job.status_reason, job.container_reason)) if text]
    code = f", exit code {job.exit_code}" if job.exit_code is not None else ""
    return f"AWS says: {', '.join(texts)}{code}" if texts else f"AWS gives no reason (status {job.status}{code})"


def _evidence(case: _Case) -> tuple[str, ...]:
    job, end = case.job, case.end
    lines = [f"try {number} inside Batch: {_try(one)}" for number, one in enumerate(attempts_of(job.raw), 1)]
    lines += [f"Batch status: {job.status}"]
    lines += [f"Batch status reason: {job.status_reason}"] * bool(job.status_reason)
    lines += [f"container reason: {job.container_reason}"] * bool(job.container_reason)
    lines += [f"container exit code: {job.exit_code}"] * (job.exit_code is not None)
    lines += ["Batch says isTerminated"] * job.is_terminated + ["Batch says isCancelled"] * job.is_cancelled
    lines += case.evidence.lines
    lines += [f"not allowed to ask: {action}" for action in case.evidence.denied]
    if case.heartbeat and case.heartbeat.market:
        lines.append(f"agent: the machine is {case.heartbeat.market}")
    lines += dict.fromkeys(
        f"agent: saw a {one.source} notice ({one.action} {one.time}".rstrip() + ")" for one in case.notices
    )
    if end:
        said = f"end file: {end.reason or 'no reason'}, exit code {end.exit_code}"
        lines.append(f"{said}, completed {end.completed}, interrupted {end.interrupted}")
    return tuple(lines)


def _try(attempt: AttemptSeen) -> str:
    code = f", exit code {attempt.exit_code}" if attempt.exit_code is not None else ""
    return f"{attempt.status_reason or 'no reason'}{code}"
