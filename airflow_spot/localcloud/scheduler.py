"""What happens by itself: placing, starting, ending, host losses, time-outs, blocked queues.

:meth:`Scheduler.tick` brings everything to where it stands now. It is called before every answer and, by the server,
ten times a second. All that it does follows from the clock, the markets and what the runner says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from airflow_spot.localcloud.clock import Clock
from airflow_spot.localcloud.hosts import Host
from airflow_spot.localcloud.ids import Ids
from airflow_spot.localcloud.jobs import (
    ESSENTIAL_EXITED,
    START_FAILED,
    TIMED_OUT,
    Attempt,
    Job,
    wants_retry,
)
from airflow_spot.localcloud.market import Cause, Market, Markets
from airflow_spot.localcloud.metadata import Instance
from airflow_spot.localcloud.resources import ComputeEnvironment, Definition, Queue
from airflow_spot.localcloud.runner import Launch, Runner, StartError

CAPACITY = (
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - "
    "Service cannot fulfill the capacity requested for instance type [{instance_type}]"
)
MAX_RESOURCE = "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE"
REQUIREMENT = (
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The job resource requirement (vCPU/memory/GPU) is higher than "
    "that can be met by the CE(s) attached to the job queue."
)
TIME_LIMIT = "Canceled by JobStateTimeLimit action due to reason: {code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long things take where no market says otherwise; seconds.

    :param detection: from a host's end until Batch calls its job failed (2 to 10 min on AWS).
    :param blocked: at the head of a queue until the reason is shown.
    :param idle_host: how long a host outlives its job.
    :param evidence: how long EC2 shows a host that is gone.
    """

    submitted: float = 0.1
    runnable: float = 0.4
    starting: float = 0.5
    detection: float = 1.0
    blocked: float = 2.0
    idle_host: float = 60.0
    evidence: float = 3600.0


@dataclass(slots=True, kw_only=True)
class State:
    """All that there is, by name or id."""

    environments: dict[str, ComputeEnvironment] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    definitions: dict[str, list[Definition]] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)


class Scheduler:
    """Moves jobs and hosts along. Not thread-safe by itself: the model holds one lock around everything."""

    def __init__(self, state: State, clock: Clock, runner: Runner, markets: Markets, ids: Ids, pace: Pace) -> None:
        self.state = state
        self.clock = clock
        self.runner = runner
        self.markets = markets
        self.ids = ids
        self.pace = pace
        self.began = clock.time()
        self.dry: set[str] = set()
        """Names of queues and compute environments that a caller made dry."""
        self._starts: dict[tuple[str, str], int] = {}
        self._taken: set[tuple[tuple[str, str], int]] = set()

    # -- the clockwork -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Bring everything to where it stands now."""
        now = self.clock.time()
        self._markets_act(now)
        for host in list(self.state.hosts.values()):
            self._host(host, now)
        for job in list(self.state.jobs.values()):
            if not job.terminal:
                self._job(job, now)
        for queue in sorted(self.state.queues.values(), key=lambda each: -each.priority):
            self._place(queue, now)
        for job in list(self.state.jobs.values()):
            if job.status == "STARTING":
                self._starting(job, now)

    def _job(self, job: Job, now: float) -> None:
        if job.status == "SUBMITTED" and now - job.since >= self.pace.submitted:
            job.move("PENDING" if job.request.get("dependsOn") else "RUNNABLE", now)
        if job.stop_reason is not None and job.status in {"SUBMITTED", "PENDING", "RUNNABLE"}:
            self._finish(job, "FAILED", job.stop_reason, now)
        elif job.status == "PENDING":
            self._pending(job, now)
        elif job.status == "STARTING":
            self._starting(job, now)
        elif job.status == "RUNNING":
            self._running(job, now)

    def _pending(self, job: Job, now: float) -> None:
        before = [self.state.jobs.get(each["jobId"]) for each in job.request["dependsOn"] if each.get("jobId")]
        if any(each is not None and each.status == "FAILED" for each in before):
            self._finish(job, "FAILED", "Dependent Job failed", now)
        elif all(each is None or each.terminal for each in before):
            job.move("RUNNABLE", now)

    # -- hosts and markets ---------------------------------------------------------------------------------------

    def market_of(self, job: Job, environment: str) -> list[Market]:
        """Return the markets that a job on an environment is subject to."""
        return self.markets.of(job.queue, environment)

    def _markets_act(self, now: float) -> None:
        seconds = now - self.began
        for market in self.markets.markets:
            notice = market.takes_running(seconds, self._starts.get(market.key, 0))
            if notice is not None:
                self._lose_all(market, Cause.RECLAIM, notice, None, now)
            for index, loss in enumerate(market.losses):
                due = loss.at is not None and (market.key, index) not in self._taken
                if due and seconds >= (loss.at or 0.0) - loss.notice:
                    self._taken.add((market.key, index))
                    self._lose_all(market, loss.cause, loss.notice, loss.sigterm, now)

    def _lose_all(self, market: Market, cause: Cause, notice: float, sigterm: float | None, now: float) -> None:
        for job in self.state.jobs.values():
            attempt = job.current
            if attempt is None or attempt.host.dies is not None:
                continue
            if market in self.market_of(job, attempt.host.compute_environment):
                self.lose(attempt.host, cause, at=now + notice, notice=notice, sigterm=sigterm)

    def lose(self, host: Host, cause: Cause, *, at: float, notice: float = 0.0, sigterm: float | None = None) -> None:
        """Let a host go away at a time, announced that much before.

        :param notice: 0: no warning.
        """
        if host.dies is not None and host.dies <= at:
            return
        host.cause = cause if host.spot or cause is Cause.FAILURE else Cause.FAILURE
        host.dies, host.sigterm = at, sigterm
        host.noticed = at - notice if notice > 0 and host.cause is Cause.RECLAIM else None

    def _host(self, host: Host, now: float) -> None:
        attempt = self._attempt_on(host)
        if host.noticed is not None and not host.warned and now >= host.noticed and host.dies is not None:
            host.warned = True
            if attempt is not None and attempt.handle is not None:
                attempt.handle.notice(datetime.fromtimestamp(host.dies, UTC))
        if host.sigterm is not None and host.dies is not None and now >= host.dies - host.sigterm:
            host.sigterm = None
            if attempt is not None and attempt.handle is not None:
                attempt.handle.terminate()
        if host.died is None and host.dies is not None and now >= host.dies:
            self._host_dies(host, attempt, now)
        elif host.died is None and host.released is not None and now - host.released >= self.pace.idle_host:
            host.died = now
        elif host.died is not None and attempt is None and now - host.died >= self.pace.evidence:
            del self.state.hosts[host.id]

    def _host_dies(self, host: Host, attempt: Attempt | None, now: float) -> None:
        ended = attempt is not None and attempt.handle is not None and attempt.handle.poll() is not None
        host.died = now
        if attempt is not None and attempt.handle is not None and not ended:
            attempt.handle.kill()
        elif attempt is not None and ended:
            # Its container ended before its host: that is what Batch will say.
            host.job_id = None

    def _attempt_on(self, host: Host) -> Attempt | None:
        job = self.state.jobs.get(host.job_id or "")
        current = job.current if job else None
        return current if current is not None and current.host is host else None

    # -- placing -------------------------------------------------------------------------------------------------

    def _place(self, queue: Queue, now: float) -> None:
        waiting = [job for job in self.state.jobs.values() if job.queue == queue.name and job.status == "RUNNABLE"]
        waiting.sort(key=lambda job: (not job.front, job.serial))
        for position, job in enumerate(waiting):
            if now - job.since < self._delay(job, queue, "runnable"):
                return
            if not self._placed(job, queue, now):
                self._block(job, queue, now, head=position == 0)
                return

    def _placed(self, job: Job, queue: Queue, now: float) -> bool:
        for name in queue.environments:
            environment = self.state.environments[name]
            if environment.state == "ENABLED" and self._has_room(job, environment, now):
                self._start_on(job, environment, now)
                return True
        return False

    def _has_room(self, job: Job, environment: ComputeEnvironment, now: float) -> bool:
        if environment.holds(job.need) is None or not self._market_has_hosts(job, environment, now):
            return False
        used = sum(each.need.vcpus for each in self.state.jobs.values() if _is_on(each, environment))
        return used + job.need.vcpus <= environment.max_vcpus

    def _market_has_hosts(self, job: Job, environment: ComputeEnvironment, now: float) -> bool:
        if {job.queue, environment.name} & self.dry:
            return False
        return all(
            market.has_hosts(now - self.began, self._starts.get(market.key, 0), self._busy(market))
            for market in self.market_of(job, environment.name)
        )

    def _busy(self, market: Market) -> int:
        on = [job for job in self.state.jobs.values() if job.current is not None]
        return sum(
            market in self.market_of(job, job.current.host.compute_environment) for job in on if job.current is not None
        )

    def _start_on(self, job: Job, environment: ComputeEnvironment, now: float) -> None:
        numbers = {market.key: self._starts.get(market.key, 0) + 1 for market in self.market_of(job, environment.name)}
        self._starts |= numbers
        host = self._new_host(job, environment, now)
        task = self.ids.hex(32)
        delay = self._starting_delay(job, environment.name)
        job.current = Attempt(
            number=len(job.attempts) + 1,
            host=host,
            task=task,
            stream=f"{job.definition.name[:200]}/default/{task}",
            placed=now,
            starting_for=delay,
            numbers=numbers,
        )
        job.move("STARTING", now)

    def _new_host(self, job: Job, environment: ComputeEnvironment, now: float) -> Host:
        instance = Instance(
            instance_id=f"i-0{self.ids.hex(16)}",
            instance_type=environment.holds(job.need) or "m5.large",
            life_cycle="spot" if environment.spot else "on-demand",
            zone=f"{self.ids.region}a",
            region=self.ids.region,
        )
        host = Host(
            instance=instance,
            cluster=environment.cluster,
            compute_environment=environment.name,
            container_instance=self.ids.hex(32),
            spot_request=f"sir-{self.ids.hex(8)}" if environment.spot else None,
            launched=now,
            job_id=job.id,
        )
        self.state.hosts[host.id] = host
        return host

    def _delay(self, job: Job, queue: Queue, what: str) -> float:
        """Return the least time in RUNNABLE: the longest that any market of the queue's environments asks for."""
        delays: list[float] = []
        for name in queue.environments:
            for market in self.market_of(job, name):
                number = self._starts.get(market.key, 0) + 1
                delays += _delays(market, number, what)
        return max(delays, default=self.pace.runnable)

    def _starting_delay(self, job: Job, environment: str) -> float:
        delays: list[float] = []
        for market in self.market_of(job, environment):
            delays += _delays(market, self._starts.get(market.key, 0), "starting")
        return max(delays, default=self.pace.starting)

    # -- blocked queues ------------------------------------------------------------------------------------------

    def _block(self, job: Job, queue: Queue, now: float, *, head: bool) -> None:
        reason = self._why_blocked(job, queue, now) if head else None
        if reason is None:
            job.blocked_since = job.status_reason = None
            return
        job.blocked_since = now if job.blocked_since is None else job.blocked_since
        if now - job.blocked_since >= self.pace.blocked:
            job.status_reason = reason
        self._time_limit(job, queue, reason, now)

    def _why_blocked(self, job: Job, queue: Queue, now: float) -> str | None:
        environments = [self.state.environments[name] for name in queue.environments]
        usable = [each for each in environments if each.state == "ENABLED"]
        if all(job.need.vcpus > each.max_vcpus for each in usable):
            return MAX_RESOURCE
        if all(each.holds(job.need) is None for each in usable):
            return REQUIREMENT
        if any(self._waits_for_others(job, each, now) for each in usable):
            return None
        return CAPACITY.format(instance_type=next((each.instance_types[0] for each in usable), "none"))

    def _waits_for_others(self, job: Job, environment: ComputeEnvironment, now: float) -> bool:
        """Return whether the environment has capacity, only not for one more: that is waiting, not being blocked."""
        markets = self.market_of(job, environment.name)
        seconds = now - self.began
        dry = bool({job.queue, environment.name} & self.dry)
        return not dry and all(
            market.hosts != 0 and market.has_hosts(seconds, self._starts.get(market.key, 0), 0) for market in markets
        )

    def _time_limit(self, job: Job, queue: Queue, reason: str, now: float) -> None:
        code = reason.split(" - ", maxsplit=1)[0]
        waited = now - (job.blocked_since if job.blocked_since is not None else now)
        for action in queue.time_limits:
            if str(action.get("reason", "")).split(" - ")[0] == code and waited >= int(action["maxTimeSeconds"]):
                self._finish(job, "FAILED", TIME_LIMIT.format(code=code), now)
                return

    # -- starting, running, ending -------------------------------------------------------------------------------

    def _starting(self, job: Job, now: float) -> None:
        attempt = job.current
        assert attempt is not None
        if self._seen_lost(attempt, now):
            self._end_attempt(job, attempt, f"Host EC2 (instance {attempt.host.id}) terminated.", now)
        elif job.stop_reason is not None:
            attempt.retryable = False
            self._end_attempt(job, attempt, job.stop_reason, now)
        elif attempt.host.died is None and now - attempt.placed >= attempt.starting_for:
            self._launch(job, attempt, now)

    def _launch(self, job: Job, attempt: Attempt, now: float) -> None:
        launch = Launch(
            job_id=job.id,
            job_name=job.name,
            queue=job.queue,
            attempt=attempt.number,
            image=str(job.definition.container.get("image", "")),
            command=tuple(job.command),
            environment={**job.environment, **self._batch_environment(job, attempt)},
            stream=attempt.stream,
            instance=attempt.host.instance,
        )
        try:
            attempt.handle = self.runner.start(launch)
        except StartError as error:
            attempt.reason = str(error)[:255]
            self._end_attempt(job, attempt, START_FAILED, now)
            return
        attempt.started = now
        job.move("RUNNING", now)
        if attempt.host.warned and attempt.host.dies is not None:
            # It was announced before there was a container to read it.
            attempt.handle.notice(datetime.fromtimestamp(attempt.host.dies, UTC))
        self._schedule_losses(job, attempt, now)

    def _batch_environment(self, job: Job, attempt: Attempt) -> dict[str, str]:
        return {
            "AWS_BATCH_JOB_ID": job.id,
            "AWS_BATCH_JOB_ATTEMPT": str(attempt.number),
            "AWS_BATCH_JQ_NAME": job.queue,
            "AWS_BATCH_CE_NAME": attempt.host.compute_environment,
        }

    def _schedule_losses(self, job: Job, attempt: Attempt, now: float) -> None:
        """Read from the scripts when this start is to lose its host; the earliest loss counts."""
        for market in self.market_of(job, attempt.host.compute_environment):
            number = attempt.numbers[market.key]
            for loss in market.losses:
                if loss.after is not None and loss.job in {None, number}:
                    self.lose(attempt.host, loss.cause, at=now + loss.after, notice=loss.notice, sigterm=loss.sigterm)

    def _running(self, job: Job, now: float) -> None:
        attempt = job.current
        assert attempt is not None
        assert attempt.handle is not None
        lost = attempt.host.died is not None and attempt.host.job_id == job.id
        ended = None if lost else attempt.handle.poll()
        if lost:
            if self._seen_lost(attempt, now):
                self._end_attempt(job, attempt, f"Host EC2 (instance {attempt.host.id}) terminated.", now)
        elif ended is not None:
            attempt.code, attempt.reason = ended.code, ended.reason
            self._end_attempt(job, attempt, attempt.stop_reason or ESSENTIAL_EXITED, now)
        else:
            self._stop_if_asked(job, attempt, now)

    def _seen_lost(self, attempt: Attempt, now: float) -> bool:
        died = attempt.host.died
        return died is not None and now - died >= self._detection(attempt.host)

    def _detection(self, host: Host) -> float:
        job = self.state.jobs.get(host.job_id or "")
        if job is None:
            return self.pace.detection
        found = [market.detection for market in self.market_of(job, host.compute_environment)]
        return max((each for each in found if each is not None), default=self.pace.detection)

    def _stop_if_asked(self, job: Job, attempt: Attempt, now: float) -> None:
        assert attempt.handle is not None
        assert attempt.started is not None
        if attempt.kill_at is not None:
            if now >= attempt.kill_at:
                attempt.handle.kill()
            return
        reason = job.stop_reason
        if reason is None and job.timeout is not None and now - attempt.started >= job.timeout:
            reason = TIMED_OUT
        if reason is not None:
            attempt.stop_reason, attempt.retryable = reason, False
            attempt.kill_at = now + job.stop_timeout
            attempt.handle.terminate()

    def _end_attempt(self, job: Job, attempt: Attempt, reason: str, now: float) -> None:
        attempt.status_reason, attempt.stopped = reason, now
        job.attempts.append(attempt)
        job.current = None
        attempt.host.released = now
        if attempt.handle is not None:
            attempt.handle.close()
        if attempt.code == 0 and attempt.stop_reason is None:
            self._finish(job, "SUCCEEDED", reason, now)
        elif job.stop_reason is None and wants_retry(job, attempt):
            job.move("RUNNABLE", now)
            job.front = True
        else:
            self._finish(job, "FAILED", job.stop_reason or reason, now)

    def _finish(self, job: Job, status: str, reason: str, now: float) -> None:
        job.move(status, now)
        job.status_reason, job.stopped = reason, now


def _is_on(job: Job, environment: ComputeEnvironment) -> bool:
    return job.current is not None and job.current.host.compute_environment == environment.name


def _delays(market: Market, number: int, what: str) -> list[float]:
    """Return what a market says of the time in RUNNABLE or STARTING of its nth start."""
    general: float | None = getattr(market, what)
    slow = [float(getattr(each, what)) for each in market.slow_starts if each.job in {None, number}]
    return ([] if general is None else [general]) + slow
