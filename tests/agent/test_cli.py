"""The command line, outside of a training run and with a store that refuses."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

from airflow_spot.agent.role import role_name

AGENT = [sys.executable, "-m", "airflow_spot.agent"]


def agent(*arguments, **environment):
    inherited = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run([*AGENT, *arguments], capture_output=True, text=True, env=inherited, timeout=30)


class Refusing(http.server.BaseHTTPRequestHandler):
    """Says 403 to everything, as S3 does, but gives a role its credentials."""

    def do_GET(self):
        if self.path == "/credentials":
            body, status = json.dumps({"RoleArn": "arn:aws:iam::1:role/train", "Token": "secret"}).encode(), 200
        else:
            body, status = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", 403
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_HEAD = do_GET  # noqa: N815 - the server's names

    def log_request(self, code="-", size="-"):
        """Say nothing."""


@pytest.fixture
def refusing():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_outside_a_training_run_it_becomes_the_command():
    """It says so once, and the exit code is the command's."""
    done = agent("run", "--", "sh", "-c", "echo trained; exit 3")
    assert (done.returncode, done.stdout) == (3, "trained\n")
    assert "not in a training run" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--nope", "--", "x"), "unrecognized arguments: --nope"),
        (("run",), "no command to run"),
        ((), "required: verb"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    """With the exit code of wrong usage."""
    done = agent(*arguments)
    assert done.returncode == 64
    assert words in done.stderr


def test_an_environment_that_contradicts_itself_is_refused():
    """A run directory without an attempt is no training run."""
    done = agent("run", "--", "true", AIRFLOW_SPOT_RUN="s3://bucket/run")
    assert done.returncode == 64
    assert "AIRFLOW_SPOT_ATTEMPT" in done.stderr


def test_an_address_that_is_no_store_is_misconfigured(tmp_path):
    """With the form that is expected."""
    given = {"AIRFLOW_SPOT_ATTEMPT": "1", "AWS_BATCH_JOB_ID": "j", "TMPDIR": str(tmp_path)}
    done = agent("run", "--", "true", AIRFLOW_SPOT_RUN="ftp://x/y", **given)
    assert done.returncode == 78
    assert "s3://bucket/prefix" in done.stderr


def test_a_store_that_refuses_is_misconfigured_at_once(refusing, tmp_path):
    """The sentence names the bucket, who was refused and what to allow."""
    done = agent(
        "run",
        "--",
        "true",
        AIRFLOW_SPOT_RUN="s3://bucket/run",
        AIRFLOW_SPOT_ATTEMPT="1",
        AWS_BATCH_JOB_ID="job-1",
        AWS_ENDPOINT_URL=refusing,
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        AWS_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
        TMPDIR=str(tmp_path),
    )
    assert done.returncode == 78
    assert "s3://bucket/run as the job role" in done.stderr
    assert "attempts/" in done.stderr


def test_the_role_is_named_and_nothing_else_is_kept(refusing):
    """From the container's credentials endpoint, where there is one."""
    given = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/credentials"}
    assert role_name(given, host=refusing) == "role arn:aws:iam::1:role/train"
    assert role_name({}) == "the job role"
    assert role_name({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/none"}, host=refusing) == "the job role"
