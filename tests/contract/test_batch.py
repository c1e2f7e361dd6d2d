"""What the provider relies on of AWS Batch, EC2 and ECS, checked against all that stand for them."""

from __future__ import annotations

import uuid
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.contract.conftest import FAILS, MISSING, RUNS_ON, STUBBORN, SUCCEEDS, Subject

DONE = ("SUCCEEDED", "FAILED")


def refused(call: Any, **arguments: Any) -> dict[str, Any]:
    """Return code, message and status of the refusal of a call."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return {**answer["Error"], "status": answer["ResponseMetadata"]["HTTPStatusCode"]}


class TestLife:
    def test_a_job_runs_and_succeeds(self, subject: Subject) -> None:
        """A container that exits 0 makes its job SUCCEEDED, with Batch's text, an exit code and a log stream."""
        job = subject.until(subject.submit(SUCCEEDS), *DONE)
        attempt = job["attempts"][0]
        assert (job["status"], attempt["container"]["exitCode"]) == ("SUCCEEDED", 0)
        assert job["statusReason"] == attempt["statusReason"] == "Essential container in task exited"
        assert attempt["container"]["logStreamName"].split("/")[1] == "default"
        assert job["createdAt"] <= job["startedAt"] <= job["stoppedAt"]
        assert job["createdAt"] > 1_600_000_000_000  # milliseconds

    def test_a_failing_command_fails_its_job(self, subject: Subject) -> None:
        """Another exit code makes it FAILED, with the same text as a success."""
        job = subject.until(subject.submit(FAILS), *DONE)
        assert (job["status"], job["attempts"][0]["container"]["exitCode"]) == ("FAILED", 7)
        assert job["statusReason"] == "Essential container in task exited"
        assert not job.get("isTerminated", False)

    def test_a_program_that_is_not_there_fails_to_start(self, subject: Subject) -> None:
        """What cannot be started leaves no exit code, and a reason of the container runtime."""
        job = subject.until(subject.submit(MISSING), *DONE)
        container = job["attempts"][0]["container"]
        assert job["statusReason"] == "Task failed to start"
        assert "exitCode" not in container
        assert container["reason"].startswith("CannotStartContainerError")

    def test_one_attempt_is_not_retried(self, subject: Subject) -> None:
        """``attempts: 1`` means one attempt."""
        job = subject.until(subject.submit(FAILS, retryStrategy={"attempts": 1}), *DONE)
        assert len(job["attempts"]) == 1
        assert job["retryStrategy"]["attempts"] == 1

    def test_a_retry_keeps_the_job(self, subject: Subject) -> None:
        """With more attempts the same job starts again, in a new log stream."""
        job = subject.until(subject.submit(FAILS, retryStrategy={"attempts": 2}), *DONE)
        streams = {attempt["container"]["logStreamName"] for attempt in job["attempts"]}
        assert (job["status"], len(job["attempts"]), len(streams)) == ("FAILED", 2, 2)

    def test_the_first_matching_condition_decides(self, subject: Subject) -> None:
        """``evaluateOnExit`` ends a job whose exit code matches EXIT."""
        conditions = [{"onExitCode": "7", "action": "EXIT"}, {"onReason": "*", "action": "RETRY"}]
        strategy = {"attempts": 3, "evaluateOnExit": conditions}
        job = subject.until(subject.submit(FAILS, retryStrategy=strategy), *DONE)
        assert len(job["attempts"]) == 1

    def test_environment_and_parameters_are_shown(self, subject: Subject) -> None:
        """DescribeJobs shows the environment of the submit, and the command with its parameters put in."""
        job = subject.submit(
            ["echo", "Ref::word"],
            parameters={"word": "hello"},
            containerOverrides={"environment": [{"name": "AIRFLOW_SPOT_RUN", "value": "s3://b/r"}]},
        )
        container = subject.describe(job)["container"]
        assert {"name": "AIRFLOW_SPOT_RUN", "value": "s3://b/r"} in container["environment"]
        assert "Ref::word" not in container["command"] or subject.describe(job)["parameters"] == {"word": "hello"}
        subject.until(job, *DONE)


class TestStopping:
    def test_terminate_ends_a_running_job(self, subject: Subject) -> None:
        """TerminateJob sends SIGTERM; the job is FAILED with the reason that was given."""
        job = subject.submit(RUNS_ON)
        subject.until(job, "RUNNING")
        subject.batch.terminate_job(jobId=job, reason="airflow-spot abc: enough")
        seen = subject.until(job, *DONE)
        assert (seen["status"], seen["isTerminated"], seen["statusReason"]) == (
            "FAILED",
            True,
            "airflow-spot abc: enough",
        )

    def test_terminate_waits_for_the_container(self, subject: Subject) -> None:
        """The job stays RUNNING until its container is gone; even exit 0 is then FAILED."""
        job = subject.submit(STUBBORN)
        subject.until(job, "RUNNING")
        subject.pause(0.4)
        subject.batch.terminate_job(jobId=job, reason="enough")
        assert subject.describe(job)["status"] == "RUNNING"
        seen = subject.until(job, *DONE)
        assert (seen["status"], seen["isTerminated"]) == ("FAILED", True)

    def test_terminate_again_is_harmless(self, subject: Subject) -> None:
        """A job that has ended stays as it is."""
        job = subject.submit(SUCCEEDS)
        subject.until(job, *DONE)
        subject.batch.terminate_job(jobId=job, reason="too late")
        seen = subject.describe(job)
        assert (seen["status"], seen["statusReason"]) == ("SUCCEEDED", "Essential container in task exited")

    def test_a_waiting_job_has_no_attempts(self, subject: Subject) -> None:
        """TerminateJob before STARTING ends the job without an attempt."""
        subject.drought(subject.queue, on=True)
        job = subject.submit(RUNS_ON)
        subject.until(job, "RUNNABLE")
        subject.batch.terminate_job(jobId=job, reason="not needed")
        seen = subject.until(job, *DONE)
        subject.drought(subject.queue, on=False)
        assert (seen["statusReason"], seen["attempts"]) == ("not needed", [])

    def test_cancel_leaves_a_running_job_alone(self, subject: Subject) -> None:
        """CancelJob on a RUNNING job succeeds and does nothing."""
        job = subject.submit(RUNS_ON)
        subject.until(job, "RUNNING")
        subject.batch.cancel_job(jobId=job, reason="never mind")
        subject.pause(0.5)
        assert subject.describe(job)["status"] == "RUNNING"
        subject.batch.terminate_job(jobId=job, reason="cleaning up")


class TestLooking:
    def test_every_reply_has_a_date(self, subject: Subject) -> None:
        """The loop takes its time from the ``Date`` header."""
        headers = subject.batch.describe_jobs(jobs=[str(uuid.uuid4())])["ResponseMetadata"]["HTTPHeaders"]
        assert parsedate_to_datetime(headers["date"]).tzinfo is not None

    def test_unknown_jobs_are_left_out(self, subject: Subject) -> None:
        """DescribeJobs says nothing of an id that it does not know."""
        job = subject.submit(SUCCEEDS)
        jobs = subject.batch.describe_jobs(jobs=[job, str(uuid.uuid4())])["jobs"]
        assert [each["jobId"] for each in jobs] == [job]

    def test_a_hundred_jobs_at_a_time(self, subject: Subject) -> None:
        """DescribeJobs takes no more than 100 ids."""
        error = refused(subject.batch.describe_jobs, jobs=[str(uuid.uuid4()) for _ in range(101)])
        assert (error["Code"], error["status"]) == ("ClientException", 400)

    def test_jobs_are_found_by_name(self, subject: Subject) -> None:
        """The JOB_NAME filter shows jobs of every status, and does not tell upper from lower case."""
        name = f"Contract-{uuid.uuid4().hex[:10]}"
        job = subject.submit(SUCCEEDS, name=name)
        subject.until(job, *DONE)
        for value in (name, name.lower(), name[:-2] + "*"):
            filters = [{"name": "JOB_NAME", "values": [value]}]
            found = subject.batch.list_jobs(jobQueue=subject.queue, filters=filters)["jobSummaryList"]
            assert [each["jobId"] for each in found] == [job]

    def test_without_a_status_only_running_jobs_are_listed(self, subject: Subject) -> None:
        """ListJobs without filter and status shows RUNNING ones."""
        job = subject.submit(RUNS_ON)
        subject.until(job, "RUNNING")
        pages = subject.batch.get_paginator("list_jobs").paginate(jobQueue=subject.queue)
        listed = [each for page in pages for each in page["jobSummaryList"]]
        assert job in {each["jobId"] for each in listed}
        assert {each["status"] for each in listed} == {"RUNNING"}
        subject.batch.terminate_job(jobId=job, reason="cleaning up")

    def test_lists_come_in_pages(self, subject: Subject) -> None:
        """``maxResults`` cuts a list, ``nextToken`` goes on with it."""
        prefix = f"paged-{uuid.uuid4().hex[:8]}"
        wanted = {subject.submit(SUCCEEDS, name=f"{prefix}-{number}") for number in range(3)}
        filters = [{"name": "JOB_NAME", "values": [f"{prefix}*"]}]
        pages = subject.batch.get_paginator("list_jobs").paginate(
            jobQueue=subject.queue, filters=filters, PaginationConfig={"PageSize": 2}
        )
        sizes = [[each["jobId"] for each in page["jobSummaryList"]] for page in pages]
        assert [len(each) for each in sizes] == [2, 1]
        assert {job for page in sizes for job in page} == wanted

    def test_the_definition_of_a_job_is_pinned(self, subject: Subject) -> None:
        """A job shows the ARN of the revision that it runs."""
        definition = subject.describe(subject.submit(SUCCEEDS))["jobDefinition"]
        assert definition.rsplit("/", 1)[1].split(":")[1].isdigit()

    def test_the_placement_names_the_compute_environment(self, subject: Subject) -> None:
        """The cluster in a task's ARN is that of the compute environment, whose type tells the market."""
        job = subject.until(subject.submit(SUCCEEDS), *DONE)
        cluster = job["attempts"][0]["container"]["taskArn"].split("/")[1]
        queue = subject.batch.describe_job_queues(jobQueues=[subject.queue])["jobQueues"][0]
        names = [each["computeEnvironment"] for each in queue["computeEnvironmentOrder"]]
        environments = subject.batch.describe_compute_environments(computeEnvironments=names)["computeEnvironments"]
        assert cluster in {each["ecsClusterArn"].rsplit("/", 1)[1] for each in environments}


class TestRefusals:
    def test_a_bad_name(self, subject: Subject) -> None:
        """A job name holds letters, digits, hyphen and underscore."""
        error = refused(
            subject.batch.submit_job, jobName="not a name", jobQueue=subject.queue, jobDefinition=subject.definition
        )
        assert (error["Code"], error["status"]) == ("ClientException", 400)
        assert error["Message"].startswith("Job name should match valid pattern")

    @pytest.mark.parametrize("missing", ["jobQueue", "jobDefinition"])
    def test_what_does_not_exist(self, subject: Subject, missing: str) -> None:
        """Neither queue nor definition is made up."""
        request = {"jobQueue": subject.queue, "jobDefinition": subject.definition} | {missing: "no-such-thing"}
        error = refused(subject.batch.submit_job, jobName="refused", **request)
        assert (error["Code"], error["status"]) == ("ClientException", 400)

    def test_a_short_timeout(self, subject: Subject) -> None:
        """An attempt may not be given less than a minute."""
        error = refused(
            subject.batch.submit_job,
            jobName="refused",
            jobQueue=subject.queue,
            jobDefinition=subject.definition,
            timeout={"attemptDurationSeconds": 59},
        )
        assert error["Code"] == "ClientException"

    @pytest.mark.parametrize("pattern", ["Host EC2 (instance*", "*Spot*", "a/b"])
    def test_patterns_that_batch_does_not_take(self, subject: Subject, pattern: str) -> None:
        """``evaluateOnExit`` knows letters, digits, dots, colons, spaces and one star at the end."""
        error = refused(
            subject.batch.submit_job,
            jobName="refused",
            jobQueue=subject.queue,
            jobDefinition=subject.definition,
            retryStrategy={"attempts": 2, "evaluateOnExit": [{"onStatusReason": pattern, "action": "RETRY"}]},
        )
        assert error["Message"] == "Evaluate on exit condition contains restricted characters."


class TestLosingHosts:
    def test_a_reclaim(self, subject: Subject) -> None:
        """The job names its host and nothing else: no exit code, no reason; EC2 tells that it was a reclaim."""
        job = subject.submit(RUNS_ON)
        subject.until(job, "RUNNING")
        subject.reclaim(job)
        seen = subject.until(job, *DONE)
        instance = seen["statusReason"].split("instance ")[1].split(")")[0]
        container = seen["attempts"][0]["container"]
        assert seen["statusReason"] == f"Host EC2 (instance {instance}) terminated."
        assert {"exitCode", "reason"} & set(container) == set()
        assert {"containerInstanceArn", "taskArn", "logStreamName"} <= set(container)
        assert not seen["isTerminated"]
        found = self.instance(subject, instance)
        assert (found["InstanceLifecycle"], found["StateReason"]["Code"]) == (
            "spot",
            "Server.SpotInstanceTermination",
        )
        assert self.request(subject, instance) == "instance-terminated-no-capacity"

    def test_a_host_that_fails(self, subject: Subject) -> None:
        """The job says the same, EC2 does not: that was no reclaim."""
        job = subject.submit(RUNS_ON)
        subject.until(job, "RUNNING")
        subject.fail_host(job)
        seen = subject.until(job, *DONE)
        instance = seen["statusReason"].split("instance ")[1].split(")")[0]
        assert seen["statusReason"] == f"Host EC2 (instance {instance}) terminated."
        assert self.instance(subject, instance)["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
        assert self.request(subject, instance) == "instance-terminated-by-user"

    def test_a_notice_shows_in_the_spot_request_first(self, subject: Subject) -> None:
        """While the host still runs, its request already says that it is to go."""
        job = subject.submit(RUNS_ON)
        subject.until(job, "RUNNING")
        arn = subject.describe(job)["container"]["containerInstanceArn"]
        known = subject.client("ecs").describe_container_instances(cluster=arn.split("/")[1], containerInstances=[arn])
        instance = known["containerInstances"][0]["ec2InstanceId"]
        subject.client("ec2")
        subject.reclaim(job, notice=2.0)
        assert self.request(subject, instance) == "instance-terminated-no-capacity"
        assert self.instance(subject, instance)["State"]["Name"] == "running"
        assert subject.describe(job)["status"] == "RUNNING"
        assert subject.until(job, *DONE)["status"] == "FAILED"

    def test_an_on_demand_host(self, subject: Subject) -> None:
        """It has no lifecycle and no spot request."""
        job = subject.submit(RUNS_ON, jobQueue=subject.on_demand)
        subject.until(job, "RUNNING")
        subject.fail_host(job)
        instance = subject.until(job, *DONE)["statusReason"].split("instance ")[1].split(")")[0]
        assert "InstanceLifecycle" not in self.instance(subject, instance)
        assert self.request(subject, instance) is None

    def test_no_capacity(self, subject: Subject) -> None:
        """The job at the head of a queue without capacity says so, and runs when capacity comes."""
        subject.drought(subject.queue, on=True)
        job = subject.submit(SUCCEEDS)
        for _ in range(100):
            seen = subject.describe(job)
            if "statusReason" in seen:
                break
            subject.pause(0.1)
        subject.drought(subject.queue, on=False)
        assert seen["status"] == "RUNNABLE"
        assert seen["statusReason"].startswith("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill")
        assert subject.until(job, *DONE)["status"] == "SUCCEEDED"

    @staticmethod
    def instance(subject: Subject, instance: str) -> dict[str, Any]:
        filters = [{"Name": "instance-id", "Values": [instance]}]
        return subject.client("ec2").describe_instances(Filters=filters)["Reservations"][0]["Instances"][0]

    @staticmethod
    def request(subject: Subject, instance: str) -> str | None:
        filters = [{"Name": "instance-id", "Values": [instance]}]
        found = subject.client("ec2").describe_spot_instance_requests(Filters=filters)["SpotInstanceRequests"]
        return found[0]["Status"]["Code"] if found else None


class TestTaskProperties:
    def test_a_task_shows_its_containers(self, subject: Subject) -> None:
        """A definition with ``ecsProperties`` shows exit code and stream in its containers, not in ``container``."""
        name = f"contract-{uuid.uuid4().hex[:10]}"
        needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "512"}]
        main = {"name": "main", "image": "busybox", "command": SUCCEEDS, "resourceRequirements": needs}
        task = {"taskProperties": [{"containers": [main]}]}
        arn = subject.batch.register_job_definition(jobDefinitionName=name, type="container", ecsProperties=task)
        job = subject.batch.submit_job(
            jobName=name,
            jobQueue=subject.queue,
            jobDefinition=name,
            ecsPropertiesOverride={"taskProperties": [{"containers": [{"name": "main", "command": FAILS}]}]},
        )["jobId"]
        seen = subject.until(job, *DONE)
        subject.batch.deregister_job_definition(jobDefinition=arn["jobDefinitionArn"])
        container = seen["attempts"][0]["taskProperties"][0]["containers"][0]
        assert (seen["status"], container["exitCode"]) == ("FAILED", 7)
        assert container["logStreamName"]
        assert seen["ecsProperties"]["taskProperties"][0]["containers"][0]["command"] == FAILS
        assert "exitCode" not in seen.get("container", {})
