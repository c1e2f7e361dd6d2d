"""``airflow-spot orphans``: jobs that live on though nobody in Airflow waits for them.

Two ways lead to them: from the records (the training run has ended, or its lease was not renewed), and from the job
queues (a job that names a run directory whose record does not know it, or does not want it). A job whose id was never
learnt is found by its name, which follows from run directory and attempt. A job is ended only after DescribeJobs has
shown our run directory and attempt in its environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_spot.cli import facts, where
from airflow_spot.durations import words
from airflow_spot.errors import ContractError
from airflow_spot.rundir.values import AttemptState, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime, timedelta

    from airflow_spot.core.seen import JobSeen
    from airflow_spot.rundir.values import Attempt

_OPEN_STATUSES = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")
_PAGE = 100
_LEFT_ALONE = "left alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A job that is not terminal and that nobody waits for.

    :param record: None where the run directory has none.
    :param abandoned: the lease is old: the training run itself is to be stopped, not only this job.
    :param ours: DescribeJobs showed this run directory and attempt in its environment.
    """

    job: JobSeen
    uri: str
    attempt: int
    why: str
    record: Record | None = None
    abandoned: bool = False
    ours: bool = True

    def row(self, *, done: str = "", lives: bool = True) -> dict[str, Any]:
        """Return it as the table and ``--json`` show it."""
        return {
            "job": self.job.ref,
            "name": self.job.name,
            "queue": self.job.queue,
            "status": str(self.job.status),
            "uri": self.uri,
            "attempt": self.attempt,
            "why": self.why,
            "ours": self.ours,
            "done": done,
            "lives": lives,
        }


def find(reach: where.Reach, *, queues: Iterable[str] = (), older_than: timedelta) -> list[Orphan]:
    """Return the orphans under a run root, by job id.

    :param queues: searched for jobs that no record knows; empty: those that the records name.
    :raises BatchUnavailable: nothing can be said.
    """
    now = reach.backend.now()
    keys = where.run_directories(reach.store)
    records = {f"{reach.uri}/{key}": record for key, record in where.records(reach.store, keys)}
    read = {uri: record for uri, record in records.items() if isinstance(record, Record)}
    found: dict[str, Orphan] = {}
    idle = {uri: _why(reach, uri, record, now, older_than) for uri, record in read.items() if _pending(record)}
    for uri, why in idle.items():
        found |= {orphan.job.ref: orphan for orphan in _of_record(reach, uri, read[uri], why)}
    for queue in sorted(set(queues) or _queues(read.values())):
        for orphan in _of_queue(reach, queue, records, idle):
            found.setdefault(orphan.job.ref, orphan)
    return sorted(found.values(), key=lambda orphan: (orphan.uri, orphan.attempt, orphan.job.ref))


def _queues(records: Iterable[Record]) -> set[str]:
    return {tier.job_queue for record in records if (spec := facts.spec_of(record)) for tier in spec.tiers}


def _pending(record: Record) -> list[Attempt]:
    return [attempt for attempt in record.attempts if not attempt.terminal]


def _of_record(reach: where.Reach, uri: str, record: Record, why: str) -> Iterator[Orphan]:
    """Return the jobs of a training run that nobody waits for.

    :param why: empty where somebody does.
    """
    from airflow_spot.backend import is_ours

    for attempt in _pending(record) if why else ():
        for job in _jobs(reach, uri, record, attempt):
            yield Orphan(
                job=job,
                uri=uri,
                attempt=attempt.number,
                why=why,
                record=record,
                abandoned=record.result is None,
                ours=is_ours(job, uri, attempt.number),
            )


def _why(reach: where.Reach, uri: str, record: Record, now: datetime, older_than: timedelta) -> str:
    """Return why nobody waits for a training run's jobs, or nothing where somebody does."""
    from airflow_spot.rundir import owner

    if record.result is not None:
        return f"the training run has ended {record.result.outcome}"
    lease = owner.load(reach.store.at(uri.removeprefix(f"{reach.uri}/")))
    if lease is None:
        return _never_leased(record, now, older_than)
    age = (now - lease[1]).total_seconds()
    if age < older_than.total_seconds():
        return ""
    return f"nobody in Airflow has waited for it for {words(age)}"


def _never_leased(record: Record, now: datetime, older_than: timedelta) -> str:
    """A record is written before its first lease: a young one is not abandoned."""
    if record.began_at is not None and now - record.began_at < older_than:
        return ""
    return "it has no lease: nobody in Airflow waits for it"


def _jobs(reach: where.Reach, uri: str, record: Record, attempt: Attempt) -> list[JobSeen]:
    """Return the jobs of an attempt that are not terminal: by id, or by name where the id was never learnt."""
    from airflow_spot.batch.requests import job_name

    if attempt.ref is not None:
        seen = list(reach.backend.describe([attempt.ref]).values())
    elif attempt.job_queue:
        name = attempt.job_name or job_name(uri, record.run_key, attempt.number)
        seen = reach.backend.find(name, attempt.job_queue)
    else:
        seen = []
    return [job for job in seen if not job.terminal]


def _of_queue(
    reach: where.Reach, queue: str, records: dict[str, Record | ContractError], idle: dict[str, str]
) -> Iterator[Orphan]:
    """Return the jobs of a queue that name a run directory below the run root and are not wanted there."""
    from airflow_spot.batch.requests import ENV_ATTEMPT, ENV_RUN

    refs = list(_listed(reach, queue))
    for start in range(0, len(refs), _PAGE):
        for job in reach.backend.describe(refs[start : start + _PAGE]).values():
            uri, attempt = job.environment.get(ENV_RUN, ""), job.environment.get(ENV_ATTEMPT, "")
            if job.terminal or not uri.startswith(f"{reach.uri}/") or not attempt.isdecimal():
                continue
            record = records.get(uri)
            if isinstance(record, ContractError):
                continue
            why = _unknown(reach, job, uri, int(attempt), record, idle.get(uri, ""))
            if why:
                yield Orphan(
                    job=job,
                    uri=uri,
                    attempt=int(attempt),
                    why=why,
                    record=record,
                    abandoned=bool(idle.get(uri)) and record is not None and record.result is None,
                )


def _unknown(reach: where.Reach, job: JobSeen, uri: str, number: int, record: Record | None, idle: str) -> str:
    """Return why a record does not want a job, or nothing where it does or soon will.

    :param idle: why nobody waits for the training run's jobs; empty where somebody does.
    """
    if record is None:
        return "its run directory holds no record"
    attempt = next((one for one in record.attempts if one.number == number), None)
    if attempt is None:
        # Written between our reading of the records and of the queue: its intent is in the record by now.
        return "" if number >= record.next_attempt else f"the record does not know attempt {number}"
    if attempt.ref is None:
        return idle or _given_up(attempt)
    if job.ref == attempt.ref or _claimed(reach, uri, number) == job.ref:
        return ""
    return f"attempt {number} is job {attempt.ref}, not this one"


def _given_up(attempt: Attempt) -> str:
    """Return why the job of an attempt without an id is not wanted, or nothing where it may still be adopted."""
    if attempt.state is AttemptState.UNRESOLVED:
        return f"the reply to the submit of attempt {attempt.number} was lost, and training went on without it"
    if attempt.state is AttemptState.ENDED:
        return f"the record holds no job of attempt {attempt.number}, which has ended"
    return ""


def _claimed(reach: where.Reach, uri: str, number: int) -> str | None:
    from airflow_spot.rundir import attempts

    claims = attempts.claims(reach.store.at(uri.removeprefix(f"{reach.uri}/")), number)
    return claims[-1].job if claims else None


def _listed(reach: where.Reach, queue: str) -> Iterator[str]:
    from botocore.exceptions import BotoCoreError, ClientError

    from airflow_spot.batch.aws import unavailable

    for status in _OPEN_STATUSES:
        page: dict[str, str] = {}
        while True:
            try:
                reply = reach.backend.clients.batch.list_jobs(jobQueue=queue, jobStatus=status, **page)
            except (ClientError, BotoCoreError) as error:
                raise unavailable(error, f"batch:ListJobs of queue {queue}") from error
            yield from (item["jobId"] for item in reply.get("jobSummaryList", ()))
            if not reply.get("nextToken"):
                break
            page = {"nextToken": reply["nextToken"]}


def end(reach: where.Reach, orphan: Orphan) -> dict[str, Any]:
    """End an orphan and return its row. Calling it twice is harmless.

    An abandoned training run is stopped first, so that no loop submits again; a retry or a Clear goes on later.

    :raises BatchUnavailable: it may live on.
    """
    from airflow_spot import stopping
    from airflow_spot.batch.requests import stop_reason
    from airflow_spot.cli.acting import who

    if not orphan.ours:
        return orphan.row(done=f"{_LEFT_ALONE}: its environment does not name this attempt")
    why = f"orphan: {orphan.why}"
    if orphan.abandoned and orphan.record is not None:
        stopping.stop(
            reach.store.at(orphan.uri.removeprefix(f"{reach.uri}/")),
            reach.backend,
            who=who(),
            why=why,
            generation=orphan.record.generation,
            try_number=orphan.record.try_number,
            by_person=False,
        )
    reach.backend.terminate(orphan.job.ref, stop_reason(orphan.uri, why))
    return orphan.row(done="terminated", lives=False)
