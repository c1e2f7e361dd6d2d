"""The whole local cloud over HTTP, with real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError

from airflow_spot.errors import ConfigurationError
from airflow_spot.localcloud import LocalCloud
from airflow_spot.localcloud.model import Pace
from airflow_spot.localcloud.setup import load

QUICK = Pace(submitted=0.05, runnable=0.05, starting=0.05, detection=0.1, blocked=0.2)
COMMAND = [sys.executable, "-c", "from airflow_spot.cli import main; import sys; sys.exit(main())", "localcloud"]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """One cloud for the module: a start takes half a second."""
    with LocalCloud(pace=QUICK, directory=tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def batch(cloud: LocalCloud) -> Any:
    return cloud.client("batch")


def submit(batch: Any, *command: str) -> str:
    request = {"jobQueue": "spot", "jobDefinition": "airflow-spot", "containerOverrides": {"command": list(command)}}
    return str(batch.submit_job(jobName="job", **request)["jobId"])


def until(check: Callable[[], Any], seconds: float = 15.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)
    return found


def finished(batch: Any, job: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        seen = batch.describe_jobs(jobs=[job])["jobs"][0]
        return seen if seen["status"] in {"SUCCEEDED", "FAILED"} else None

    return until(look)  # type: ignore[no-any-return]


def running(batch: Any, job: str) -> None:
    until(lambda: batch.describe_jobs(jobs=[job])["jobs"][0]["status"] == "RUNNING")


def control(cloud: LocalCloud, what: str, **params: Any) -> tuple[int, Any]:
    ask = urllib.request.Request(f"{cloud.endpoint_url}/_localcloud/{what}", data=json.dumps(params).encode())
    try:
        with urllib.request.urlopen(ask, timeout=5) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


class TestServices:
    def test_lines_of_a_job_are_in_the_logs(self, cloud: LocalCloud, batch: Any) -> None:
        """They are in the stream that DescribeJobs names."""
        job = finished(batch, submit(batch, "sh", "-c", "echo one; echo; echo two"))
        stream = job["container"]["logStreamName"]
        logs = cloud.client("logs")

        def lines() -> list[str]:
            found = logs.get_log_events(logGroupName="/aws/batch/job", logStreamName=stream, startFromHead=True)
            return [event["message"] for event in found["events"]]

        assert until(lambda: len(lines()) == 3)
        assert lines() == ["one", " ", "two"]

    def test_a_silent_job_has_a_stream(self, cloud: LocalCloud, batch: Any) -> None:
        """It is there, and empty."""
        stream = finished(batch, submit(batch, "true"))["container"]["logStreamName"]
        found = cloud.client("logs").get_log_events(logGroupName="/aws/batch/job", logStreamName=stream)
        assert found["events"] == []

    def test_a_job_reaches_the_cloud_by_its_environment(self, cloud: LocalCloud, batch: Any) -> None:
        """An SDK in a job finds endpoint and credentials without being told."""
        script = "import boto3; boto3.client('s3').put_object(Bucket='airflow-spot', Key='from-job', Body=b'hello')"
        assert finished(batch, submit(batch, "python", "-c", script))["status"] == "SUCCEEDED"
        assert cloud.client("s3").get_object(Bucket="airflow-spot", Key="from-job")["Body"].read() == b"hello"

    def test_one_of_many_conditional_writes_wins(self, cloud: LocalCloud) -> None:
        """Whoever creates, or compares and swaps, at the same time as others: exactly one succeeds."""
        s3 = cloud.client("s3")
        outcomes: list[bool] = []

        def write(**condition: str) -> None:
            try:
                s3.put_object(Bucket="airflow-spot", Key="contended", Body=b"x", **condition)
                outcomes.append(True)
            except ClientError:
                outcomes.append(False)

        for condition in ({"IfNoneMatch": "*"}, None):
            outcomes.clear()
            given = condition or {"IfMatch": s3.head_object(Bucket="airflow-spot", Key="contended")["ETag"]}
            body = {"target": write, "kwargs": given}
            if condition is None:
                # The same bytes have the same ETag: a swap must change it for the others to lose.
                body["target"] = lambda **kw: _swap(s3, outcomes, **kw)
            threads = [threading.Thread(**body) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert outcomes.count(True) == 1

    def test_dates_are_single_everywhere(self, cloud: LocalCloud, batch: Any) -> None:
        """moto's services and ours date each reply once."""
        for answer in (cloud.client("s3").list_buckets(), cloud.client("sts").get_caller_identity()):
            assert answer["ResponseMetadata"]["HTTPHeaders"]["date"].count("GMT") == 1

    def test_a_lost_reply_ends_the_connection(self, cloud: LocalCloud) -> None:
        """The caller sees the connection close, and the job exists."""
        client = cloud.client("batch", config=Config(retries={"total_max_attempts": 1}))
        before = len(cloud.batch.state.jobs)
        cloud.faults.lose_reply["SubmitJob"] = 1
        with pytest.raises(HTTPClientError):
            submit(client, "true")
        assert len(cloud.batch.state.jobs) == before + 1

    def test_what_batch_does_not_serve(self, batch: Any) -> None:
        """An operation that is not there says so."""
        with pytest.raises(ClientError, match="does not serve"):
            batch.describe_scheduling_policies(arns=["a"])


def _swap(s3: Any, outcomes: list[bool], **condition: str) -> None:
    try:
        body = str(threading.get_ident()).encode()
        s3.put_object(Bucket="airflow-spot", Key="contended", Body=body, **condition)
        outcomes.append(True)
    except ClientError:
        outcomes.append(False)


class TestReclaims:
    def test_a_notice_and_then_the_end(self, cloud: LocalCloud, batch: Any) -> None:
        """The process lives through its notice and is gone with its host."""
        mark = f"600.{os.getpid()}5"
        job = submit(batch, "sleep", mark)
        running(batch, job)
        cloud.reclaim(job, notice=0.6)
        time.sleep(0.3)
        assert _alive(mark)
        seen = finished(batch, job)
        assert seen["statusReason"].startswith("Host EC2 (instance i-")
        assert not _alive(mark)

    def test_controls_over_http(self, cloud: LocalCloud, batch: Any) -> None:
        """A second terminal can look, reclaim and make a drought."""
        job = submit(batch, "sleep", "600")
        running(batch, job)
        status, seen = control(cloud, "status")
        assert status == 200
        assert {"job": job, "name": "job", "queue": "spot", "status": "RUNNING", "reason": None} in seen["jobs"]
        assert control(cloud, "reclaim", job=job) == (200, {})
        assert finished(batch, job)["status"] == "FAILED"
        assert control(cloud, "drought", name="spot")[0] == control(cloud, "drought", name="spot", on=False)[0] == 200

    @pytest.mark.parametrize(("what", "params"), [("nothing", {}), ("reclaim", {}), ("fail", {"job": "none"})])
    def test_wrong_controls(self, cloud: LocalCloud, what: str, params: dict[str, str]) -> None:
        """They are refused with a sentence."""
        status, body = control(cloud, what, **params)
        assert status in {400, 404}
        assert body["message"].endswith((".", ")"))


class TestCommand:
    def test_it_says_ready_and_ends_with_all_its_jobs(self, tmp_path: Path) -> None:
        """SIGTERM ends the cloud and every process of every job, with exit code 0."""
        command = [*COMMAND, "--port", "0", "--state", str(tmp_path / "s"), "--print-env", "--env", "EXTRA=yes"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            variables = {}
            while not (line := process.stdout.readline()).startswith("local cloud ready at http://127.0.0.1:"):
                name, _, value = line.removeprefix("export ").strip().partition("=")
                variables[name] = value
            mark = f"600.{os.getpid()}6"
            self.submit(variables["AWS_ENDPOINT_URL"], f'test "$EXTRA" = yes && sleep {mark}')
            until(lambda: _alive(mark))
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        assert not _alive(mark)
        assert list((tmp_path / "s").iterdir()) == []
        assert variables["AIRFLOW__AIRFLOW_SPOT__RUN_ROOT"] == "s3://airflow-spot/runs"

    @staticmethod
    def submit(endpoint: str, script: str) -> None:
        import boto3

        session: Any = boto3.Session("a", "b", region_name="us-east-1")
        batch = session.client("batch", endpoint_url=endpoint)
        submit(batch, "sh", "-c", script)
        batch.close()

    def test_a_port_in_use(self) -> None:
        """One sentence."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(ConfigurationError, match=rf"port {port} cannot be used \(.*\); stop what listens"):
                LocalCloud(port=port).start()

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (["--market", "none.toml"], "market 'none.toml' cannot be read"),
            (["--setup", "none.toml"], "set-up 'none.toml' cannot be read"),
            (["--env", "X"], "--env X: give NAME=VALUE"),
        ],
    )
    def test_bad_options(self, options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Each is one sentence, and nothing is started."""
        from airflow_spot.cli import main

        assert main(["localcloud", *options]) != 0
        assert sentence in capsys.readouterr().err

    def test_before_the_start(self) -> None:
        """A cloud that does not run has no address."""
        with pytest.raises(ConfigurationError, match="is not started"):
            _ = LocalCloud().endpoint_url


class TestSetup:
    def test_queues_and_definitions_of_a_file(self, tmp_path: Path) -> None:
        """They take the place of the usual ones."""
        file = tmp_path / "setup.toml"
        file.write_text(
            '[[queue]]\njobQueueName = "gpu"\ntype = "SPOT"\ninstanceTypes = ["g5.xlarge"]\n'
            '[[job_definition]]\njobDefinitionName = "train"\ntype = "container"\n'
            'containerProperties = { image = "i", command = ["true"] }\n'
        )
        with LocalCloud(setup=load(file)) as cloud:
            batch = cloud.client("batch")
            queues = [queue["jobQueueName"] for queue in batch.describe_job_queues()["jobQueues"]]
            environment = batch.describe_compute_environments()["computeEnvironments"][0]
            assert queues == ["gpu"]
            assert environment["computeResources"]["instanceTypes"] == ["g5.xlarge"]

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [("[[queues]]", "does not know queues"), ("[", "is not TOML"), ('[[queue]]\njobQueueName = "q"', "is refused")],
    )
    def test_wrong_files(self, tmp_path: Path, text: str, sentence: str) -> None:
        """What is wrong is named."""
        file = tmp_path / "setup.toml"
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=sentence):
            LocalCloud(setup=load(file)).start()


def _alive(marker: str) -> bool:
    listing = subprocess.run(["ps", "-axo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    return any(f"sleep {marker}" in line and not line.startswith("Z") for line in listing.splitlines())
