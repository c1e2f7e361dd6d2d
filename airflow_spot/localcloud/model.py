"""AWS Batch as a model: the operations of its API over jobs that a runner runs.

Deterministic given a clock and a runner. :meth:`LocalBatch.call` takes an operation by its API name with the API's
parameters and returns the API's answer; everything else here is for tests and for the local cloud's own controls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from airflow_spot.localcloud import checks
from airflow_spot.localcloud.catalogue import Catalogue
from airflow_spot.localcloud.checks import client_error
from airflow_spot.localcloud.clock import Clock, SystemClock
from airflow_spot.localcloud.faults import ApiError, Faults
from airflow_spot.localcloud.ids import Ids
from airflow_spot.localcloud.jobs import Job, detail, milliseconds, summary
from airflow_spot.localcloud.listing import page, select
from airflow_spot.localcloud.market import Cause, Markets
from airflow_spot.localcloud.resources import JSON
from airflow_spot.localcloud.runner import Runner
from airflow_spot.localcloud.scheduler import Pace, Scheduler, State

__all__ = ["ApiError", "LocalBatch", "Pace"]

ACCOUNT = "123456789012"
REGION = "us-east-1"


class LocalBatch:
    """One account's AWS Batch in one region. Thread-safe.

    :param clock: where time comes from; the machine's unless given.
    :param runner: starts the attempts.
    :param market: when capacity is there and which hosts are lost; calm unless given.
    :param pace: how long things take where no market says so.
    :param faults: what goes wrong with the API itself.
    :param seed: the same seed gives the same ids.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        runner: Runner | None = None,
        market: Markets | None = None,
        *,
        pace: Pace | None = None,
        faults: Faults | None = None,
        seed: str = "local",
        region: str = REGION,
        account: str = ACCOUNT,
    ) -> None:
        if runner is None:
            from airflow_spot.localcloud.runner import ProcessRunner

            runner = ProcessRunner()
        self.clock: Clock = clock or SystemClock()
        self.faults = faults or Faults()
        self.ids = Ids(seed, account=account, region=region)
        self.request_ids = Ids(f"{seed}/requests", account=account, region=region)
        self.state = State()
        self.calls: list[str] = []
        """Names of the operations that were called, in order."""
        self.lock = threading.RLock()
        self.scheduler = Scheduler(self.state, self.clock, runner, market or Markets(), self.ids, pace or Pace())
        self._catalogue = Catalogue(self.state, self.ids)
        self._operations = self._table()

    def _table(self) -> dict[str, Callable[[JSON], JSON]]:
        own = {
            "SubmitJob": self._submit_job,
            "DescribeJobs": self._describe_jobs,
            "ListJobs": self._list_jobs,
            "TerminateJob": self._terminate_job,
            "TerminateJobs": self._terminate_jobs,
            "CancelJob": self._cancel_job,
            "CancelJobs": self._cancel_jobs,
            "GetJobQueueSnapshot": self._get_job_queue_snapshot,
        }
        return own | self._catalogue.operations()

    @property
    def operations(self) -> list[str]:
        """The operations that are served."""
        return list(self._operations)

    def call(self, operation: str, params: JSON) -> JSON:
        """Do one operation of the API.

        :param operation: its name, e.g. ``SubmitJob``.
        :raises ApiError: AWS's refusal, or one that :class:`Faults` asks for.
        :raises airflow_spot.localcloud.faults.ReplyLost: it was done, and the reply is to be lost.
        """
        with self.lock:
            self.calls.append(operation)
            self.faults.before(operation, self.clock.time())
            if operation not in self._operations:
                raise ApiError("UnknownOperationException", f"The local cloud does not serve {operation}.", 404)
            self.scheduler.tick()
            answer = self._operations[operation](params)
            self.scheduler.tick()
            self.faults.after(operation)
            return answer

    def tick(self) -> None:
        """Bring everything to where it stands now."""
        with self.lock:
            self.scheduler.tick()

    def close(self) -> None:
        """End every job at once; nothing of them runs afterwards."""
        with self.lock:
            for job in self.state.jobs.values():
                if job.current is not None and job.current.handle is not None:
                    job.current.handle.close()

    # -- controls ------------------------------------------------------------------------------------------------

    def job(self, job: str) -> Job:
        """Return a job by id or ARN.

        :raises ApiError: there is none.
        """
        found = self.state.jobs.get(job.rsplit("/", 1)[-1])
        if found is None:
            raise client_error(f"Job {job} not found.")
        return found

    def reclaim(self, job: str, *, notice: float = 0.0, sigterm: float | None = None) -> None:
        """Take back the host of a job after a notice (seconds; 0: none). A host that is not spot just fails."""
        self._lose(job, Cause.RECLAIM, notice, sigterm)

    def fail_host(self, job: str) -> None:
        """Let the host of a job fail now; on spot, too, that is no reclaim."""
        self._lose(job, Cause.FAILURE, 0.0, None)

    def _lose(self, job: str, cause: Cause, notice: float, sigterm: float | None) -> None:
        with self.lock:
            self.scheduler.tick()
            attempt = self.job(job).current
            if attempt is None:
                raise client_error(f"Job {job} is on no host; it is {self.job(job).status}.")
            at = self.clock.time() + notice
            self.scheduler.lose(attempt.host, cause, at=at, notice=notice, sigterm=sigterm)
            self.scheduler.tick()

    def drought(self, name: str, *, on: bool = True) -> None:
        """Let a queue or compute environment have no new hosts, or have them again."""
        with self.lock:
            (self.scheduler.dry.add if on else self.scheduler.dry.discard)(name)
            self.scheduler.tick()

    # -- jobs ----------------------------------------------------------------------------------------------------

    def _submit_job(self, params: JSON) -> JSON:
        name = checks.name(params.get("jobName"), "Job")
        queue = self._catalogue.queue(str(params.get("jobQueue", "")))
        definition = self._catalogue.definition(str(params.get("jobDefinition", "")))
        self._check_submit(params)
        if queue.state != "ENABLED":
            raise client_error(f"JobQueue {queue.name} is not in ENABLED state.")
        if queue.scheduling_policy and not params.get("shareIdentifier"):
            raise client_error("Job submissions to a queue with a scheduling policy must specify a shareIdentifier.")
        now = self.clock.time()
        job_id = self.ids.uuid()
        job = Job(
            id=job_id,
            arn=self.ids.arn("batch", f"job/{job_id}"),
            name=name,
            queue=queue.name,
            queue_arn=queue.arn,
            definition=definition,
            request=params,
            created=now,
            since=now,
            serial=len(self.state.jobs),
        )
        self.state.jobs[job_id] = job
        return {"jobArn": job.arn, "jobName": name, "jobId": job_id}

    def _check_submit(self, params: JSON) -> None:
        checks.retry_strategy(params.get("retryStrategy"))
        checks.timeout(params.get("timeout"))
        checks.environment((params.get("containerOverrides") or {}).get("environment") or [])
        for task in (params.get("ecsPropertiesOverride") or {}).get("taskProperties") or []:
            for container in task.get("containers") or []:
                checks.environment(container.get("environment") or [])
        if params.get("arrayProperties") or params.get("nodeOverrides"):
            raise client_error("The local cloud runs neither array nor multi-node parallel jobs.")

    def _describe_jobs(self, params: JSON) -> JSON:
        wanted = params.get("jobs") or []
        if len(wanted) > 100:
            raise client_error("Maximum number of jobs supported is 100")
        found = [self.state.jobs.get(str(each).rsplit("/", 1)[-1]) for each in wanted]
        return {"jobs": [detail(job) for job in found if job is not None and self._visible(job, "describe_delay")]}

    def _visible(self, job: Job, setting: str) -> bool:
        return self.clock.time() - job.created >= float(getattr(self.faults, setting))

    def _list_jobs(self, params: JSON) -> JSON:
        kinds = ("jobQueue", "arrayJobId", "multiNodeJobId")
        chosen = checks.exactly_one(params, kinds, "Exactly one of jobQueue, arrayJobId, multiNodeJobId is required.")
        if chosen != "jobQueue":
            return {"jobSummaryList": []}
        queue = self._catalogue.queue(str(params["jobQueue"]))
        jobs = [job for job in self.state.jobs.values() if job.queue == queue.name and self._visible(job, "list_delay")]
        chosen_jobs, size = select(jobs, params)
        return page([summary(job) for job in chosen_jobs], "jobSummaryList", params, size)

    def _terminate_job(self, params: JSON) -> JSON:
        job = self.state.jobs.get(str(params.get("jobId", "")).rsplit("/", 1)[-1])
        reason = params.get("reason")
        if not reason:
            raise client_error("reason is required.")
        if job is not None and not job.terminal and job.stop_reason is None:
            job.stop_reason, job.is_terminated = str(reason)[:1024], True
        return {}

    def _cancel_job(self, params: JSON) -> JSON:
        job = self.state.jobs.get(str(params.get("jobId", "")).rsplit("/", 1)[-1])
        if job is not None and job.status in {"SUBMITTED", "PENDING", "RUNNABLE"} and job.stop_reason is None:
            job.stop_reason, job.is_cancelled = str(params.get("reason", ""))[:1024], True
        return {}

    def _terminate_jobs(self, params: JSON) -> JSON:
        return self._bulk(params, self._terminate_job)

    def _cancel_jobs(self, params: JSON) -> JSON:
        return self._bulk(params, self._cancel_job)

    def _bulk(self, params: JSON, one: Callable[[JSON], JSON]) -> JSON:
        wanted: list[Any] = params.get("jobs") or params.get("jobIds") or []
        if len(wanted) > 50:
            raise client_error("Maximum number of jobs supported is 50")
        for each in wanted:
            one({"reason": params.get("reason"), **(each if isinstance(each, dict) else {"jobId": each})})
        names = [str(each["jobId"]) if isinstance(each, dict) else str(each) for each in wanted]
        return {"successful": names, "errors": []}

    def _get_job_queue_snapshot(self, params: JSON) -> JSON:
        queue = self._catalogue.queue(str(params.get("jobQueue", "")))
        waiting = [job for job in self.state.jobs.values() if job.queue == queue.name and job.status == "RUNNABLE"]
        waiting.sort(key=lambda job: (not job.front, job.serial))
        front = [{"jobArn": job.arn, "earliestTimeAtPosition": milliseconds(job.since)} for job in waiting[:100]]
        return {"frontOfQueue": {"jobs": front, "lastUpdatedAt": milliseconds(self.clock.time())}}
