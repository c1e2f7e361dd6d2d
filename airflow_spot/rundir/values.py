"""What the objects of a run directory hold. Values only; JSON by :mod:`airflow_spot.rundir.codec`.

Instants are UTC. Spans carry their unit in the name. ``extra`` keeps what a newer version added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_spot.rundir.layout import CONTRACT


class AttemptState(StrEnum):
    """Where an attempt stands in its life; ``design`` order, left to right."""

    INTENDED = "intended"
    """Written before SubmitJob: a job may or may not exist."""
    REFUSED = "refused"
    """AWS throttled the submit: no job exists, the same number is tried again."""
    UNRESOLVED = "unresolved"
    """Nobody knows whether a job exists; whatever is found is terminated."""
    SUBMITTED = "submitted"
    """A job exists; its agent has not been seen."""
    STANDBY = "standby"
    """Its agent has claimed it and holds until it is made live."""
    LIVE = "live"
    """The one attempt that may train and commit."""
    CLOSING = "closing"
    """Asked to save and leave."""
    ENDED = "ended"
    """Fenced: whatever its container still does counts for nothing."""


OPEN = frozenset(
    {AttemptState.INTENDED, AttemptState.REFUSED, AttemptState.SUBMITTED, AttemptState.STANDBY, AttemptState.LIVE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why an attempt ended.

    :param outcome: a member of :class:`airflow_spot.core.outcomes.Outcome`, by name.
    :param confidence: ``high`` or ``low``.
    :param sentence: what a user reads.
    :param evidence: the vendor's words and look-ups it rests on, oldest first.
    """

    outcome: str
    confidence: str = "high"
    sentence: str = ""
    evidence: tuple[str, ...] = ()
    exit_code: int | None = None
    instance: str | None = None
    instance_type: str | None = None
    zone: str | None = None
    lost_steps: int | None = None
    lost_seconds: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One job submitted to one tier, as the record knows it."""

    number: int
    generation: int
    tier: str
    market: str
    state: AttemptState
    backend: str = "batch"
    ref: str | None = None
    """The Batch job id."""
    job_name: str = ""
    job_queue: str = ""
    why: str = ""
    """Why the policy started it, in plain words."""
    intended_at: datetime | None = None
    submitted_at: datetime | None = None
    live_at: datetime | None = None
    """Set when it went live; an attempt with it has trained, and its pin is meaningful."""
    closing_at: datetime | None = None
    closing_why: str = ""
    closing_outcome: str | None = None
    """The outcome it gets unless its own end says otherwise."""
    ended_at: datetime | None = None
    pin: str | None = None
    """Checkpoint id it continues from; None with ``live_at`` set means from the beginning."""
    started_at: datetime | None = None
    """When its container began, by Batch."""
    stopped_at: datetime | None = None
    terminal: bool = False
    """Batch has called its job terminal, or no job can exist."""
    submit_tries: int = 0
    retry_at: datetime | None = None
    """For a refused submit: not before."""
    steps: int | None = None
    """The furthest step its agent reported."""
    total_steps: int | None = None
    committed_step: int | None = None
    steps_per_second: float | None = None
    cost_usd: float | None = None
    verdict: Verdict | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who waits for this training run in Airflow."""

    deployment: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """What the Airflow side wants of the training run as a whole."""

    state: str = "running"
    """``running`` or ``stopped``."""
    who: str = ""
    why: str = ""
    by_person: bool = False
    """A person's stop is not undone by the next try of the task."""
    at: datetime | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A promotion that was asked for and stands until an attempt on that tier is live or the generation ends."""

    who: str
    why: str
    at: datetime
    tier: str | None = None
    """None: the first tier whose market is not spot."""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the training run ended, once and for all of its generation."""

    outcome: str
    message: str
    generation: int
    attempt: int | None = None
    retryable: bool = False
    """The task's own ``retries`` may try again."""
    at: datetime | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    """What the operator returns as XCom."""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What this generation has used up, and what the whole training run has seen. Each event is charged once."""

    reclaims: int = 0
    infrastructure: int = 0
    capacity: int = 0
    total_reclaims: int = 0
    total_attempts: int = 0
    promotions: int = 0
    lost_steps: int = 0
    lost_seconds: float = 0.0
    cost_usd: float = 0.0
    billed_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of job time per tier of attempts that have ended."""
    longest_changeover_seconds: float = 0.0
    longest_save_seconds: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """``run.json``: the only ledger of a training run. Written by the Airflow side alone, by compare-and-swap."""

    run_key: str
    owner: Owner
    spec: dict[str, Any]
    """The operator's arguments, as :class:`airflow_spot.core.spec.TrainingSpec` writes them."""
    contract: int = CONTRACT
    write_id: str = ""
    generation: int = 1
    try_number: int = 1
    """Airflow's try that opened or adopted the training run last."""
    max_tries: int = 0
    desired: Desired = Desired()
    attempts: tuple[Attempt, ...] = ()
    last_live: int | None = None
    """The attempt that is live or was live last: the line of the training run is its line."""
    next_attempt: int = 1
    line_from: int = 1
    """The first attempt of the line: a fresh start leaves everything before it behind."""
    try_from: int = 1
    """The first attempt of Airflow's current try: what ended before it has been answered for."""
    answered: int | None = None
    """The attempt whose success was a result before: another owner trains on from it and does not get it again."""
    fresh: bool = False
    """The next pin is the beginning: after a Clear of a success, or ``on_clear="fresh"``."""
    began_at: datetime | None = None
    """When this generation began."""
    deadline: datetime | None = None
    promote_at: datetime | None = None
    why: str = ""
    """The policy's last reason, in plain words."""
    promotion: Promotion | None = None
    stay_until: datetime | None = None
    """A person forbids promotions before this instant."""
    applied: tuple[str, ...] = ()
    """Ids of requests that were applied; a request is applied once."""
    bad: tuple[str, ...] = ()
    """Checkpoints that failed verification; never pinned again."""
    suspect: tuple[str, ...] = ()
    """Checkpoints after which the trainer failed before its first new step."""
    struck: dict[str, datetime] = field(default_factory=dict)
    """Checkpoints to be deleted, with the time of striking."""
    pruned_at: datetime | None = None
    counters: Counters = Counters()
    result: Result | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLease:
    """``owner.json``: rewritten every 10 minutes by whoever waits in Airflow; its age is the store's last-modified."""

    owner: Owner
    generation: int
    contract: int = CONTRACT
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """``requests/<time>-<id>.json``: what a sensor, a callback or a person asks of the loop. Create-only.

    :param kind: ``promote``, ``stay``, ``stop`` or ``deadline``.
    :param generation: the generation it was made for; others ignore it.
    """

    id: str
    kind: str
    who: str
    why: str = ""
    generation: int = 1
    contract: int = CONTRACT
    at: datetime | None = None
    tier: str | None = None
    until: datetime | None = None
    """For ``stay``: no promotion before."""
    deadline: datetime | None = None
    downstream_seconds: float = 0.0
    by_person: bool = False
    """For ``stop``: the task's own retries do not undo it."""
    try_number: int | None = None
    """For ``stop``: Airflow's try it was made for; a later one ignores it."""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """``claim-N.json``: which job is this attempt. Create-only, the agent's first act."""

    attempt: int
    job: str
    incarnation: int
    contract: int = CONTRACT
    write_id: str = ""
    agent_version: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


class Phase(StrEnum):
    """What an agent is doing."""

    HOLDING = "holding"
    RESTORING = "restoring"
    TRAINING = "training"
    SAVING = "saving"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A warning before the end of an instance or container.

    :param source: ``spot`` (instance metadata), ``rebalance`` or ``sigterm``.
    :param seconds_left: time to act when it was first seen.
    """

    source: str
    action: str = "terminate"
    time: str = ""
    seconds_left: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """``heartbeat.json``: what an attempt's agent reports. Durations only: no clock of a container is compared."""

    attempt: int
    job: str
    incarnation: int
    phase: Phase
    contract: int = CONTRACT
    sequence: int = 0
    elapsed_seconds: float = 0.0
    """Since the agent began."""
    training_seconds: float = 0.0
    """Since the trainer began."""
    step: int | None = None
    total_steps: int | None = None
    steps_per_second: float | None = None
    seconds_since_step: float | None = None
    longest_step_seconds: float | None = None
    committed_step: int | None = None
    committed: str | None = None
    """Id of its last checkpoint."""
    seconds_since_commit: float | None = None
    saves: int = 0
    failed_saves: int = 0
    last_error: str = ""
    save_seconds: float | None = None
    save_interval_seconds: float | None = None
    pin: str | None = None
    restored: str | None = None
    restored_step: int | None = None
    restore_seconds: float | None = None
    bad: tuple[str, ...] = ()
    market: str | None = None
    instance: str | None = None
    instance_type: str | None = None
    zone: str | None = None
    notice: Notice | None = None
    agent_version: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """``end-N.json``: an agent's last word, written after the trainer's process group is dead. Create-only."""

    attempt: int
    job: str
    incarnation: int
    exit_code: int
    """The trainer's; 128 + n for signal n; -1 where it never began."""
    interrupted: bool
    completed: bool
    """The trainer exited 0 and called ``run.finish()`` or was never signalled."""
    contract: int = CONTRACT
    write_id: str = ""
    reason: str = ""
    """Why the agent left: ``exit``, ``closing``, ``notice``, ``stopped``, ``lease``, ``fenced``, ``misconfigured``."""
    message: str = ""
    final_step: int | None = None
    total_steps: int | None = None
    new_steps: int | None = None
    committed: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: str | None = None
    """Prefix below the run directory, where something was committed to it."""
    bad: tuple[str, ...] = ()
    notice: Notice | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint.

    :param key: the object that holds it, below the run directory; an unchanged file may name an earlier checkpoint's.
    """

    name: str
    size: int
    sha256: str
    key: str
    etag: str = ""
    mode: int = 0o644
    mtime_ns: int | None = None
    """Set again when the file is restored: trainers look for the newest file. Compared with nothing."""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """``manifest.json``: written last; a checkpoint exists when it does."""

    checkpoint: str
    step: int
    attempt: int
    files: tuple[FileEntry, ...]
    ancestors: tuple[str, ...] = ()
    """Newest first: what this attempt truly continued from."""
    contract: int = CONTRACT
    write_id: str = ""
    job: str = ""
    world_size: int = 1
    total_steps: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)
