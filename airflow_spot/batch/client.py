"""AWS Batch as the loop sees it: a few verbs, our values, our errors."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from airflow_spot.batch import classify, logs, preflight
from airflow_spot.batch.aws import AwsClock, Clients, code_of, is_denied, submit_error, unavailable
from airflow_spot.batch.definitions import Definitions
from airflow_spot.batch.evidence import Evidence, Gatherer
from airflow_spot.batch.jobs import job_seen
from airflow_spot.batch.requests import ENV_RUN, STOP_PREFIX, stop_reason, stop_token
from airflow_spot.batch.watcher import PAGE, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from airflow_spot.batch.classify import Blocked
    from airflow_spot.core.seen import JobSeen
    from airflow_spot.core.spec import TrainingSpec
    from airflow_spot.rundir.values import End, Heartbeat, Verdict

log = logging.getLogger(__name__)

_REASON_MAX = 1024
_NO_JOB = "00000000-0000-0000-0000-000000000000"
_CLOCK_SLACK = timedelta(minutes=5)
_REMEMBERED = 4096


class BatchBackend:
    """AWS Batch in one region through one connection. Thread-safe; methods block, so call them in threads.

    :param clients: boto3's, or anything with their methods.
    :param watcher: shared by all training runs of the connection and region.
    :param clock: AWS's time; each reply sets it.
    """

    def __init__(self, clients: Clients, *, watcher: Watcher | None = None, clock: AwsClock | None = None) -> None:
        self.clients = clients
        self.clock = clock or AwsClock()
        self.watcher = watcher or Watcher(self._describe_page)
        self._definitions = Definitions(clients.batch, self.clock)
        self._gatherer = Gatherer(clients, self.clock)
        self._blocked_since: dict[str, tuple[str, datetime]] = {}
        self._runs: dict[str, str] = {}
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """Return AWS's present; the first call asks for it.

        :raises BatchUnavailable: AWS was never heard.
        """
        if not self.clock.heard:
            self._call("batch:DescribeJobs", self.clients.batch.describe_jobs, jobs=[_NO_JOB])
        return self.clock.now()

    def describe(self, refs: Collection[str], *, max_age: float = 0.0) -> dict[str, JobSeen]:
        """Return the jobs that Batch knows, by id, as they were at most ``max_age`` seconds ago.

        :raises BatchUnavailable: nothing is known about any of them.
        """
        return self.watcher.describe(refs, max_age=max_age) if refs else {}

    def find(self, name: str, queue: str, since: datetime | None = None) -> list[JobSeen]:
        """Return the jobs of exactly that name in a queue, oldest first.

        :param since: leave out what was created (five minutes, for clocks) before.
        :raises BatchUnavailable: there may be some.
        """
        # Batch's own filter does not tell upper from lower case.
        ids = [item["jobId"] for item in self._listed(name, queue) if item.get("jobName") == name]
        found = [
            job for start in range(0, len(ids), PAGE) for job in self._describe_page(ids[start : start + PAGE]).values()
        ]
        earliest = since - _CLOCK_SLACK if since else datetime.min.replace(tzinfo=UTC)
        kept = [job for job in found if job.created_at is None or job.created_at >= earliest]
        return sorted(kept, key=lambda job: (job.created_at or earliest, job.ref))

    def submit(self, request: dict[str, Any]) -> str:
        """Send SubmitJob once and return the job id.

        :raises SubmitThrottled: no job exists; the same request may be sent later.
        :raises SubmitRefused: no job exists, and none would.
        :raises SubmitUnknown: a job may exist; look for it by name.
        """
        try:
            reply = self.clients.batch_once.submit_job(**request)
        except (ClientError, BotoCoreError) as error:
            self._hear_error(error)
            raise submit_error(error, str(request.get("jobName"))) from error
        self.clock.hear(reply)
        return str(reply["jobId"])

    def terminate(self, ref: str, reason: str) -> None:
        """End a job. Doing it again, or to a job that has ended or is forgotten, is harmless.

        :param reason: begin it by :func:`airflow_spot.batch.requests.stop_token`; where it does not, and
            the job was described before, that is added, so that its verdict says that we stopped it.
        :raises BatchUnavailable: it may live on; ask again.
        """
        if not reason.startswith(f"{STOP_PREFIX} "):
            reason = stop_reason(self._runs.get(ref, ""), reason)
        try:
            reply = self.clients.batch.terminate_job(jobId=ref, reason=reason[:_REASON_MAX])
        except (ClientError, BotoCoreError) as error:
            self._hear_error(error)
            if not _is_gone(error):
                raise unavailable(error, "batch:TerminateJob") from error
            log.info("Job %s was not terminated, Batch does not know it any more: %s", ref, error)
        else:
            self.clock.hear(reply or {})

    def verdict(
        self,
        job: JobSeen,
        *,
        market: str,
        end: End | None,
        agent: bool,
        trusted: bool,
        heartbeat: Heartbeat | None = None,
    ) -> Verdict:
        """Return why a job ended; ask it soon, for evidence at AWS expires within the hour.

        :param market: of the attempt's tier.
        :param trusted: exit code 0 of a plain image, or its success object, counts as success.
        :param heartbeat: the agent's last one: it knew the instance and its market.
        """
        return classify.verdict(
            job,
            market=market,
            # Nobody needs to know what became of the machine of a training that was done.
            evidence=Evidence() if end and end.completed else self.evidence(job, market=market, heartbeat=heartbeat),
            end=end,
            agent=agent,
            stop_token=stop_token(job.environment.get(ENV_RUN, "")),
            trusted=trusted,
            heartbeat=heartbeat,
            now=self.clock.now(),
        )

    def evidence(self, job: JobSeen, *, market: str, heartbeat: Heartbeat | None = None) -> Evidence:
        """Return what AWS says of the machine of a job."""
        return self._gatherer.gather(job, market=market, heartbeat=heartbeat)

    def blocked(self, job: JobSeen, now: datetime) -> Blocked | None:
        """Return what Batch says keeps a waiting job from starting, None where it says nothing.

        The time is counted from the first sight of the same reason: a job may have waited its turn for hours before.
        """
        code = classify.blocked_code(job.status_reason) if not job.terminal and not job.started_at else None
        with self._lock:
            if code is None:
                self._blocked_since.pop(job.ref, None)
                return None
            known, since = self._blocked_since.get(job.ref, ("", now))
            if known != code:
                since = now
            _remember(self._blocked_since, job.ref, (code, since))
        return classify.blocked(job.status_reason, (now - since).total_seconds())

    def definition(self, name: str) -> dict[str, Any] | None:
        """Return the newest active revision of a job definition; None: missing, or not to be seen by us.

        :raises BatchUnavailable: AWS gave no answer.
        """
        return self._definitions.get(name)

    def preflight(self, spec: TrainingSpec, run_uri: str) -> list[str]:
        """Return warnings about a set-up before anything is submitted.

        :raises ConfigurationError: it cannot work.
        """
        return preflight.check(self.clients, self._definitions, spec, run_uri, hear=self.clock.hear)

    def tail(self, job: JobSeen, lines: int = 50) -> list[str]:
        """Return the last lines of each log stream of a job; what cannot be read is a note among them."""
        return logs.tail(self.clients.logs, job, lines)

    def _listed(self, name: str, queue: str) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = []
        page: dict[str, Any] = {}
        while True:
            reply = self._call(
                "batch:ListJobs",
                self.clients.batch.list_jobs,
                jobQueue=queue,
                filters=[{"name": "JOB_NAME", "values": [name]}],
                **page,
            )
            jobs += reply.get("jobSummaryList", ())
            if not reply.get("nextToken"):
                return jobs
            page = {"nextToken": reply["nextToken"]}

    def _describe_page(self, refs: list[str]) -> dict[str, JobSeen]:
        if not refs:
            return {}
        reply = self._call("batch:DescribeJobs", self.clients.batch.describe_jobs, jobs=refs)
        seen = {job.ref: job for job in map(job_seen, reply.get("jobs", ()))}
        with self._lock:
            for job in seen.values():
                if uri := job.environment.get(ENV_RUN):
                    _remember(self._runs, job.ref, uri)
        return seen

    def _call(self, action: str, method: Callable[..., Any], **arguments: Any) -> Any:
        try:
            reply = method(**arguments)
        except (ClientError, BotoCoreError) as error:
            self._hear_error(error)
            raise unavailable(error, action) from error
        self.clock.hear(reply or {})
        return reply

    def _hear_error(self, error: ClientError | BotoCoreError) -> None:
        if isinstance(error, ClientError):
            self.clock.hear(error.response)


def _is_gone(error: ClientError | BotoCoreError) -> bool:
    return isinstance(error, ClientError) and code_of(error) == "ClientException" and not is_denied(error)


def _remember(known: dict[str, Any], key: str, value: Any) -> None:
    """Keep a value, and of the others so many as a process may need."""
    known.pop(key, None)
    known[key] = value
    while len(known) > _REMEMBERED:
        del known[next(iter(known))]
