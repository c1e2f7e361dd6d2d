"""The life of a job in the model, second by second."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from airflow_spot.localcloud.model import LocalBatch
from airflow_spot.localcloud.setup import Setup, install
from airflow_spot.testing import ApiError, Behaviour, FakeClock, Loss, ScriptedRunner

from .conftest import Cloud


class TestLife:
    def test_every_status_is_passed(self, cloud: Cloud) -> None:
        """A job is SUBMITTED, RUNNABLE, STARTING and RUNNING for a second each, as the pace says."""
        job = cloud.submit()
        seen = []
        for _ in range(4):
            seen.append(cloud.status(job))
            cloud.clock.advance(1)
        assert seen == ["SUBMITTED", "RUNNABLE", "STARTING", "RUNNING"]

    def test_times_are_milliseconds_of_the_clock(self, cloud: Cloud) -> None:
        """createdAt, startedAt and stoppedAt are where the clock stood."""
        cloud.script(Behaviour(after=10))
        created = round(cloud.clock.time() * 1000)
        job = cloud.submit()
        cloud.advance(20)
        seen = cloud.describe(job)
        assert (seen["createdAt"], seen["startedAt"], seen["stoppedAt"]) == (created, created + 3000, created + 13000)

    def test_a_stream_is_known_once_the_job_runs(self, cloud: Cloud) -> None:
        """Before RUNNING there is no log stream, afterwards one for each attempt."""
        job = cloud.submit()
        cloud.advance(2)
        assert "logStreamName" not in cloud.describe(job)["container"]
        cloud.advance(2)
        assert cloud.describe(job)["container"]["logStreamName"].startswith("airflow-spot/default/")

    def test_a_timeout_is_never_retried(self, cloud: Cloud) -> None:
        """An attempt that runs too long gets SIGTERM, and its job fails with AWS's text."""
        job = cloud.running_job(timeout={"attemptDurationSeconds": 60}, retryStrategy={"attempts": 3})
        cloud.advance(62)
        seen = cloud.describe(job)
        assert (seen["status"], seen["statusReason"]) == ("FAILED", "Job attempt duration exceeded timeout")
        assert [attempt["container"]["exitCode"] for attempt in seen["attempts"]] == [143]

    def test_a_reason_of_the_runtime_is_shown(self, cloud: Cloud) -> None:
        """What the container runtime says of the end stands beside the exit code."""
        text = "OutOfMemoryError: Container killed due to memory usage"
        cloud.script(Behaviour(after=5, exit_code=137, reason=text))
        job = cloud.submit()
        cloud.advance(20)
        container = cloud.describe(job)["attempts"][0]["container"]
        assert (container["exitCode"], container["reason"]) == (137, text)

    def test_a_reclaimed_attempt_may_be_retried_by_batch(self, cloud: Cloud) -> None:
        """With a strategy that asks for it the job starts again, and keeps both attempts."""
        cloud.script(Behaviour(), Behaviour(after=5))
        conditions = [{"onStatusReason": "Host EC2*", "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}]
        job = cloud.running_job(retryStrategy={"attempts": 3, "evaluateOnExit": conditions})
        cloud.reclaim(job)
        cloud.advance(20)
        seen = cloud.describe(job)
        assert seen["status"] == "SUCCEEDED"
        assert [attempt["statusReason"][:8] for attempt in seen["attempts"]] == ["Host EC2", "Essentia"]

    def test_a_dependency_is_waited_for(self, cloud: Cloud) -> None:
        """A job that depends on another stays PENDING, and fails with it."""
        cloud.script(Behaviour(after=5, exit_code=1))
        first = cloud.submit()
        second = cloud.submit(dependsOn=[{"jobId": first}])
        cloud.advance(5)
        assert cloud.status(second) == "PENDING"
        cloud.advance(10)
        assert cloud.describe(second)["statusReason"] == "Dependent Job failed"

    def test_the_same_calls_give_the_same_answers(self) -> None:
        """Two models with the same clock and scripts cannot be told apart."""

        def story() -> dict[str, Any]:
            clock = FakeClock()
            batch = LocalBatch(clock, ScriptedRunner(clock))
            install(batch, Setup.usual())
            request = {"jobName": "a", "jobQueue": "spot", "jobDefinition": "airflow-spot"}
            job = batch.call("SubmitJob", request)["jobId"]
            for _ in range(30):
                clock.advance(0.1)
                batch.tick()
            batch.reclaim(job)
            clock.advance(10)
            return batch.call("DescribeJobs", {"jobs": [job]})

        assert story() == story()


class TestStopping:
    def test_sigkill_follows_after_thirty_seconds(self, cloud: Cloud) -> None:
        """A container that ignores SIGTERM is killed when the stop time-out has passed."""
        cloud.script(Behaviour(on_sigterm=None))
        job = cloud.running_job()
        cloud.terminate_job(jobId=job, reason="enough")
        cloud.advance(29)
        assert cloud.status(job) == "RUNNING"
        cloud.advance(2)
        assert cloud.describe(job)["attempts"][0]["container"]["exitCode"] == 137
        assert cloud.runner.handles[0].signals == ["SIGTERM", "SIGKILL"]

    def test_task_properties_set_the_stop_timeout(self, cloud: Cloud) -> None:
        """``stopTimeout`` of a task's container takes the place of the thirty seconds."""
        cloud.script(Behaviour(on_sigterm=None))
        needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "512"}]
        main = {"name": "main", "image": "i", "stopTimeout": 100, "resourceRequirements": needs}
        task = {"taskProperties": [{"containers": [main]}]}
        cloud.register_job_definition(jobDefinitionName="task", type="container", ecsProperties=task)
        job = cloud.running_job(jobDefinition="task")
        cloud.terminate_job(jobId=job, reason="enough")
        cloud.advance(98)
        assert cloud.status(job) == "RUNNING"
        cloud.advance(4)
        assert cloud.status(job) == "FAILED"

    def test_a_starting_job_stops_without_a_container(self, cloud: Cloud) -> None:
        """TerminateJob while STARTING ends the job; there is nothing to signal."""
        job = cloud.submit()
        cloud.advance(2)
        cloud.terminate_job(jobId=job, reason="enough")
        cloud.advance(0.1)
        assert (cloud.status(job), cloud.runner.handles) == ("FAILED", [])

    def test_cancel_marks_a_waiting_job(self, cloud: Cloud) -> None:
        """CancelJob before STARTING ends the job as cancelled."""
        cloud.drought("spot")
        job = cloud.submit()
        cloud.advance(5)
        cloud.cancel_job(jobId=job, reason="changed my mind")
        cloud.advance(1)
        seen = cloud.describe(job)
        assert (seen["isCancelled"], seen["isTerminated"], seen["statusReason"]) == (True, False, "changed my mind")

    def test_many_jobs_are_ended_at_once(self, cloud: Cloud) -> None:
        """TerminateJobs takes ids that do not exist for ended ones."""
        job = cloud.running_job()
        answer = cloud.terminate_jobs(jobs=[job, "no-such-job"], reason="enough")
        cloud.advance(1)
        assert (answer["errors"], cloud.status(job)) == ([], "FAILED")


class TestQueues:
    def test_only_the_head_of_a_queue_is_told(self, cloud: Cloud) -> None:
        """The reason of a blocked queue stands at its first job, and moves on when that is gone."""
        cloud.drought("spot")
        first, second = cloud.submit(), cloud.submit()
        cloud.advance(10)
        assert "statusReason" in cloud.describe(first)
        assert "statusReason" not in cloud.describe(second)
        cloud.terminate_job(jobId=first, reason="enough")
        cloud.advance(3)
        assert cloud.describe(second)["statusReason"].startswith("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - ")

    def test_waiting_for_others_is_not_being_blocked(self, cloud: Cloud) -> None:
        """A full environment has no reason to give: a host comes free when a job ends."""
        cloud.create_compute_environment(
            computeEnvironmentName="small",
            type="MANAGED",
            computeResources={"type": "SPOT", "maxvCpus": 1, "subnets": ["s"]},
        )
        order = [{"order": 1, "computeEnvironment": "small"}]
        cloud.create_job_queue(jobQueueName="small", priority=1, computeEnvironmentOrder=order)
        first, second = cloud.submit("small"), cloud.submit("small")
        cloud.advance(10)
        assert (cloud.status(first), cloud.status(second)) == ("RUNNING", "RUNNABLE")
        assert "statusReason" not in cloud.describe(second)
        cloud.finish(first)
        cloud.advance(3)
        assert cloud.status(second) == "RUNNING"

    @pytest.mark.parametrize(
        ("needs", "reason"),
        [
            ({"VCPU": "300"}, "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE"),
            ({"GPU": "1"}, "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The job resource requirement"),
            ({"MEMORY": "999999"}, "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The job resource requirement"),
        ],
    )
    def test_a_job_that_never_fits_says_why(self, cloud: Cloud, needs: dict[str, str], reason: str) -> None:
        """What no host can hold is a misconfiguration, not a want of capacity."""
        overrides = {"resourceRequirements": [{"type": kind, "value": value} for kind, value in needs.items()]}
        job = cloud.submit(containerOverrides=overrides)
        cloud.advance(10)
        assert cloud.describe(job)["statusReason"].startswith(reason)

    def test_a_time_limit_of_the_queue_cancels_its_head(self, cloud: Cloud) -> None:
        """A queue's own limit ends a blocked job with AWS's text and without an attempt."""
        code = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"
        limit = {"reason": code, "state": "RUNNABLE", "maxTimeSeconds": 600, "action": "CANCEL"}
        cloud.update_job_queue(jobQueue="spot", jobStateTimeLimitActions=[limit])
        cloud.drought("spot")
        job = cloud.submit()
        cloud.advance(640, step=10)
        seen = cloud.describe(job)
        text = f"Canceled by JobStateTimeLimit action due to reason: {code}"
        assert (seen["status"], seen["statusReason"], seen["attempts"]) == ("FAILED", text, [])

    def test_a_mixed_queue_spills_over(self, cloud: Cloud) -> None:
        """A queue over a dry spot and an on-demand environment runs its job on-demand, and the job's ARNs say so."""
        order = [{"order": 1, "computeEnvironment": "spot"}, {"order": 2, "computeEnvironment": "on-demand"}]
        cloud.create_job_queue(jobQueueName="mixed", priority=1, computeEnvironmentOrder=order)
        cloud.drought("spot")
        job = cloud.running_job("mixed")
        assert "AWSBatch-on-demand-" in cloud.describe(job)["container"]["containerInstanceArn"]
        assert cloud.running(job).launch.environment["AWS_BATCH_CE_NAME"] == "on-demand"

    def test_a_disabled_queue_takes_no_job(self, cloud: Cloud) -> None:
        """SubmitJob to a DISABLED queue is refused."""
        cloud.update_job_queue(jobQueue="spot", state="DISABLED")
        with pytest.raises(ClientError, match="not in ENABLED state"):
            cloud.submit()

    def test_a_snapshot_shows_who_is_first(self, cloud: Cloud) -> None:
        """GetJobQueueSnapshot lists the waiting jobs in order."""
        cloud.drought("spot")
        jobs = [cloud.submit(), cloud.submit()]
        cloud.advance(5)
        front = cloud.get_job_queue_snapshot(jobQueue="spot")["frontOfQueue"]["jobs"]
        assert [each["jobArn"].rsplit("/", 1)[1] for each in front] == jobs


class TestDefinitions:
    def test_the_newest_active_revision_is_taken(self, cloud: Cloud) -> None:
        """A name without a revision means the newest that was not deregistered."""
        properties = {"image": "i", "command": ["a"]}
        for _ in range(2):
            cloud.register_job_definition(jobDefinitionName="d", type="container", containerProperties=properties)
        assert cloud.describe(cloud.submit(jobDefinition="d"))["jobDefinition"].endswith("/d:2")
        cloud.deregister_job_definition(jobDefinition="d:2")
        assert cloud.describe(cloud.submit(jobDefinition="d"))["jobDefinition"].endswith("/d:1")

    def test_tags_come_and_go(self, cloud: Cloud) -> None:
        """Tags of a job are those of the submit, and can be added."""
        job = cloud.submit(tags={"team": "a"})
        arn = cloud.describe(job)["jobArn"]
        cloud.tag_resource(resourceArn=arn, tags={"more": "b"})
        cloud.untag_resource(resourceArn=arn, tagKeys=["team"])
        assert cloud.list_tags_for_resource(resourceArn=arn)["tags"] == {"more": "b"}

    def test_batch_keeps_its_prefix(self, cloud: Cloud) -> None:
        """A variable that starts with AWS_BATCH is refused."""
        with pytest.raises(ClientError, match="AWS_BATCH"):
            cloud.submit(containerOverrides={"environment": [{"name": "AWS_BATCH_X", "value": "1"}]})

    def test_parameters_are_put_into_the_command(self, cloud: Cloud) -> None:
        """``Ref::`` takes the submit's value, else the definition's."""
        properties = {"image": "i", "command": ["run", "Ref::a", "Ref::b", "--c=Ref::c"]}
        cloud.register_job_definition(
            jobDefinitionName="p", type="container", parameters={"a": "1", "b": "2"}, containerProperties=properties
        )
        job = cloud.running_job(jobDefinition="p", parameters={"b": "3"})
        assert cloud.running(job).launch.command == ("run", "1", "3", "--c=Ref::c")


class TestFaults:
    def test_throttling_is_a_429_and_does_nothing(self, cloud: Cloud) -> None:
        """Too many calls give TooManyRequestsException, and no job exists."""
        cloud.faults.throttle["SubmitJob"] = 1
        with pytest.raises(ClientError) as caught:
            cloud.submit()
        assert caught.value.response["Error"]["Code"] == "TooManyRequestsException"
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429
        assert cloud.model.state.jobs == {}

    def test_a_rate_lets_through_what_it_allows(self, cloud: Cloud) -> None:
        """Two calls a second, and a third is throttled until time has passed."""
        cloud.faults.rate, cloud.faults.burst = 2.0, 2
        cloud.describe_job_queues()
        cloud.describe_job_queues()
        with pytest.raises(ClientError, match="TooManyRequests"):
            cloud.describe_job_queues()
        cloud.clock.advance(0.5)
        cloud.describe_job_queues()

    @pytest.mark.parametrize(("loss", "error"), [(Loss.DROPPED, ReadTimeoutError), (Loss.SERVER_ERROR, ClientError)])
    def test_a_lost_reply_leaves_a_job(self, cloud: Cloud, loss: Loss, error: type[Exception]) -> None:
        """Whoever gets no answer cannot know, and here the job does exist."""
        cloud.faults.lose_reply["SubmitJob"], cloud.faults.loss = 1, loss
        with pytest.raises(error):
            cloud.submit()
        assert len(cloud.model.state.jobs) == 1

    def test_a_new_job_may_show_late(self, cloud: Cloud) -> None:
        """ListJobs and DescribeJobs may lag behind SubmitJob."""
        cloud.faults.list_delay, cloud.faults.describe_delay = 5.0, 2.0
        job = cloud.submit(jobName="late")
        filters = [{"name": "JOB_NAME", "values": ["late"]}]
        assert cloud.describe_jobs(jobs=[job])["jobs"] == []
        cloud.advance(3)
        assert cloud.describe_jobs(jobs=[job])["jobs"] != []
        assert cloud.list_jobs(jobQueue="spot", filters=filters)["jobSummaryList"] == []
        cloud.advance(3)
        assert len(cloud.list_jobs(jobQueue="spot", filters=filters)["jobSummaryList"]) == 1

    def test_errors_can_be_queued(self, cloud: Cloud) -> None:
        """The next calls of an operation fail as told, and then it works again."""
        cloud.faults.fail["DescribeJobs"] = [ApiError("ServerException", "out of order", 500)]
        with pytest.raises(ClientError, match="out of order"):
            cloud.describe_jobs(jobs=["a"])
        assert cloud.describe_jobs(jobs=["a"])["jobs"] == []

    def test_a_right_can_be_missing(self, cloud: Cloud) -> None:
        """What is denied answers as IAM does, in EC2's words there."""
        cloud.faults.deny |= {"ec2:DescribeInstances", "batch:ListJobs"}
        with pytest.raises(ClientError, match="UnauthorizedOperation"):
            cloud.client("ec2").describe_instances()
        with pytest.raises(ClientError, match="AccessDeniedException"):
            cloud.list_jobs(jobQueue="spot")


class TestEvidence:
    def test_evidence_expires(self, cloud: Cloud) -> None:
        """EC2 forgets a host an hour after it went."""
        job = cloud.running_job()
        cloud.reclaim(job)
        cloud.advance(10)
        assert len(cloud.client("ec2").describe_instances()["Reservations"]) == 1
        cloud.advance(3700, step=100)
        assert cloud.client("ec2").describe_instances()["Reservations"] == []

    def test_one_unknown_id_fails_the_call(self, cloud: Cloud) -> None:
        """DescribeInstances by id refuses when one does not exist; by filter it finds nothing."""
        ec2 = cloud.client("ec2")
        with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
            ec2.describe_instances(InstanceIds=["i-0123456789abcdef0"])
        filters = [{"Name": "instance-id", "Values": ["i-0123456789abcdef0"]}]
        assert ec2.describe_instances(Filters=filters)["Reservations"] == []

    def test_a_dry_run_would_succeed(self, cloud: Cloud) -> None:
        """A dry run is refused in the way that means yes."""
        with pytest.raises(ClientError, match="DryRunOperation"):
            cloud.client("ec2").describe_instances(DryRun=True)

    def test_ecs_knows_the_instance_while_it_lives(self, cloud: Cloud) -> None:
        """DescribeContainerInstances names the instance until the host is gone."""
        job = cloud.running_job()
        arn = cloud.describe(job)["container"]["containerInstanceArn"]
        cluster = arn.split("/")[1]
        ecs = cloud.client("ecs")
        found = ecs.describe_container_instances(cluster=cluster, containerInstances=[arn])
        assert found["containerInstances"][0]["ec2InstanceId"].startswith("i-")
        cloud.reclaim(job)
        cloud.advance(5)
        gone = ecs.describe_container_instances(cluster=cluster, containerInstances=[arn])
        assert (gone["containerInstances"], gone["failures"][0]["reason"]) == ([], "MISSING")
        task = cloud.describe(job)["container"]["taskArn"]
        assert ecs.describe_tasks(cluster=cluster, tasks=[task])["tasks"][0]["stopCode"] == "TerminationNotice"

    def test_machines_are_described(self, cloud: Cloud) -> None:
        """DescribeInstanceTypes tells sizes and GPUs."""
        found = cloud.client("ec2").describe_instance_types(InstanceTypes=["g5.12xlarge"])["InstanceTypes"][0]
        assert found["MemoryInfo"]["SizeInMiB"] == 192 * 1024
        assert found["GpuInfo"]["Gpus"][0]["Count"] == 4
