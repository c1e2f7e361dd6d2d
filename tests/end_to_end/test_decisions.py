"""What people and the network may do to a training: at most one attempt counts, and nothing is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from airflow_spot import engine, stopping
from airflow_spot.rundir import checkpoints
from airflow_spot.rundir.requests import new_request, post
from airflow_spot.rundir.values import AttemptState

if TYPE_CHECKING:
    from conftest import Run

DYING_CALLER = """
import os, signal, sys, time
import boto3
from airflow_spot import engine, stopping
from airflow_spot.batch.aws import Clients
from airflow_spot.batch.client import BatchBackend
from airflow_spot.core import lifecycle
from airflow_spot.rundir import record
from airflow_spot.rundir.store import open_store

endpoint, uri, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = open_store(uri, endpoint=endpoint, region="us-east-1")
session = boto3.Session("local", "local", region_name="us-east-1")
backend = BatchBackend(Clients.from_session(session, "us-east-1", endpoint))

def deadly(function):
    def call(*args, **kwargs):
        global left
        done = function(*args, **kwargs)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    return call

lifecycle.LOOK_UP_SECONDS = 2.0
record.save = deadly(record.save)
backend.submit = deadly(backend.submit)
backend.terminate = deadly(backend.terminate)
loop = engine.Loop(store=store, backend=backend, generation=1)
while True:
    waiting = engine.advance(loop)
    if not isinstance(waiting, engine.Waiting):
        break
    time.sleep(min(waiting.seconds, 1.0))
"""


def test_a_caller_that_dies_after_each_effect_loses_nothing(
    training: Run, reference: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller is killed after a write or an effect, again and again, through a reclaim."""
    # The last one may have died between an intent and its submit, which its successor waits out.
    monkeypatch.setattr("airflow_spot.core.lifecycle.LOOK_UP_SECONDS", 2.0)
    training.open()
    deaths, reclaimed = 0, False
    for left in (1, 3, 1, 1, 1, 1, 3, 1, 1, 1, 0):
        if left == 0:
            break
        command = [sys.executable, "-c", DYING_CALLER, training.cloud.endpoint_url, training.store.uri, str(left)]
        with subprocess.Popen(command) as caller:
            while caller.poll() is None:
                live = next((a for a in training.record.attempts if a.state is AttemptState.LIVE), None)
                if live is not None and not reclaimed and training.commits(live.number):
                    training.cloud.reclaim(str(live.ref))
                    reclaimed = True
                time.sleep(0.05)
        deaths += caller.returncode == -signal.SIGKILL
        if caller.returncode == 0:
            break
    training.call()
    training.check_model(training.finish(), reference)
    assert (len(training.jobs()), training.record.counters.reclaims) == (2, 1), training.record
    assert deaths >= 5


def test_a_clear_while_training_hands_over_to_a_new_generation(training: Run, reference: dict[str, Any]) -> None:
    """A Clear in mid-training closes the live attempt; the next generation goes on from what it saved."""
    training.open()
    old = training.call()
    training.live(1, committed=2)
    assert training.open(try_number=2, max_tries=1).how == "cleared"
    training.call(generation=2, try_number=2)
    training.check_model(training.finish(), reference)
    assert isinstance(old.last, engine.Superseded), training.said
    assert training.record.attempts[1].pin is not None, training.said
    assert training.record.counters.reclaims == 0, training.said


def test_a_stop_saves_and_a_clear_goes_on_from_there(training: Run, reference: dict[str, Any]) -> None:
    """A person's stop ends every job; a Clear afterwards resumes from the last checkpoint."""
    training.open()
    training.call()
    training.live(1, committed=2)
    assert stopping.stop(training.store, training.new_backend(), who="me", why="lunch", by_person=True).stopped
    assert training.finish().outcome == "STOPPED_BY_US", training.said
    training.open(try_number=2, max_tries=1)
    training.call(generation=2, try_number=2)
    training.wait(lambda rec: rec.result is not None and rec.result.generation == 2, "a second result")
    training.check_model(training.finish(), reference)
    assert training.record.attempts[1].pin is not None, training.said


def test_a_promotion_while_training_loses_no_step(training: Run, reference: dict[str, Any]) -> None:
    """A promotion brings a standby first; the live attempt saves and leaves for it, and no step is trained twice."""
    training.open(pace=0.12)
    training.call()
    training.live(1, committed=1)
    post(training.store, new_request("promote", who="me", why="hurry"))
    result = training.finish()
    training.check_model(result, reference)
    assert (result.summary["lost_steps"], result.summary["promotions"]) == (0, 1), training.said
    assert training.record.attempts[1].market != "spot", training.said


def test_a_damaged_checkpoint_is_passed_over(training: Run, reference: dict[str, Any]) -> None:
    """Bytes of the newest checkpoint are altered behind its manifest: the next attempt takes the one before."""
    training.open()
    caller = training.call()
    live = training.live(1, committed=3)
    caller.stop()
    training.cloud.reclaim(str(live.ref))
    time.sleep(1.5)
    newest = checkpoints.tip(checkpoints.present(training.store), training.record)
    assert newest is not None
    entry = max(newest.manifest.files, key=lambda file: file.size)
    blob = training.store.get(entry.key)
    assert blob is not None
    etag = training.store.put(entry.key, b"\0" * 64 + blob.data[64:])
    key = f"checkpoints/{newest.id}/manifest.json"
    manifest = training.store.get(key)
    assert manifest is not None
    training.store.put(key, manifest.data.replace(entry.etag.strip('"').encode(), etag.strip('"').encode()))
    training.call()
    training.check_model(training.finish(), reference)
    assert training.record.bad == (newest.id,), training.said


def test_an_agent_that_sleeps_past_a_move_counts_no_more(training: Run, reference: dict[str, Any]) -> None:
    """The agent is stopped, cleared away by a Clear, and woken: its late commits are on no line."""
    training.open(pace=0.12)
    training.call()
    training.live(1, committed=1)
    agent = training.agent(1)
    os.kill(agent, signal.SIGSTOP)
    training.open(try_number=2, max_tries=1)
    training.call(generation=2, try_number=2)
    time.sleep(4)
    os.kill(agent, signal.SIGCONT)
    training.check_model(training.finish(), reference)


def test_a_plain_image_is_trusted_by_its_exit_code(training: Run) -> None:
    """Without the agent there is one job at a time; a reclaim starts the whole training again."""
    command = (sys.executable, "-c", "import time; time.sleep(4)")
    training.open(agent=False, trust_exit_code=True, command=command)
    training.call()
    training.cloud.reclaim(str(training.live(1).ref))
    result = training.finish()
    assert (result.outcome, len(training.jobs())) == ("SUCCEEDED", 2), training.said
    assert training.record.counters.reclaims == 1


def test_a_definition_of_tasks_trains_as_well(training: Run, reference: dict[str, Any]) -> None:
    """A job definition in the newer shape (ecsProperties) is submitted, followed and reclaimed like any other."""
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "512"}]
    container = {"name": "main", "image": "i", "command": ["true"], "essential": True, "resourceRequirements": needs}
    training.cloud.client("batch").register_job_definition(
        jobDefinitionName="tasks", type="container", ecsProperties={"taskProperties": [{"containers": [container]}]}
    )
    training.open(job_definition="tasks")
    training.call()
    training.cloud.reclaim(str(training.live(1, committed=1).ref))
    training.check_model(training.finish(), reference)
