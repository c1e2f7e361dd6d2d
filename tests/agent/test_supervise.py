"""The life of an agent: real processes and signals, a real S3, a real metadata service."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_spot.rundir import attempts, checkpoints
from airflow_spot.rundir.values import AttemptState, Claim, Desired, Phase

STEPS = """
import json, sys, tempfile, time
from pathlib import Path
from airflow_spot.agent import attach
run = attach()
step = json.loads((run.resume_dir / "state.json").read_text())["step"] if run.resume_dir else 0
assert step == run.resume_step
total = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6
def save():
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "state.json").write_text(json.dumps({"step": step}))
        run.save(scratch, step=step, total_steps=total)
while step < total:
    time.sleep(0.02)
    step += 1
    run.progress(step=step, total_steps=total)
    if run.should_save:
        save()
    if run.stopping:
        sys.exit(0)
"""
FINISH = """
save()
with tempfile.TemporaryDirectory() as out:
    Path(out, "model.bin").write_bytes(b"weights")
    run.finish(metrics={"loss": 0.5}, output=out)
"""


def steps(total: int) -> str:
    return STEPS.replace("int(sys.argv[1]) if len(sys.argv) > 1 else 10**6", str(total)) + FINISH


def test_a_training_run_goes_from_claim_to_a_completed_end_file(training):
    """Claim, hold, train once live, save, commit the model, and only then say completed."""
    training.write(training.entry(state=AttemptState.SUBMITTED))
    job = training.start(steps(30), "--save-interval", "0.2")
    training.until(lambda: (beat := training.heartbeat()) is not None and beat.phase is Phase.HOLDING)
    training.write(training.entry())
    assert job.wait() == 0
    end = training.end()
    assert (end.completed, end.exit_code, end.final_step, end.reason) == (True, 0, 30, "exit")
    assert end.metrics == {"loss": 0.5}
    assert [meta.key for meta in training.store.list(end.artifacts)] == [
        f"{end.artifacts}data/model.bin",
        f"{end.artifacts}manifest.json",
    ]
    tip = checkpoints.present(training.store)[-1]
    assert (tip.id, tip.manifest.step) == (end.committed, 30)


def test_sigterm_is_forwarded_and_the_next_attempt_resumes(training):
    """After SIGTERM the last step is committed within the grace, and the next attempt goes on from it."""
    training.write(training.entry())
    job = training.start(STEPS, "--save-interval", "60")
    training.until(lambda: (beat := training.heartbeat()) is not None and (beat.step or 0) > 5)
    job.terminate()
    assert job.wait() == 75
    end = training.end()
    assert (end.completed, end.interrupted, end.reason, end.notice.source) == (False, True, "notice", "sigterm")
    manifest = checkpoints.present(training.store)[-1].manifest
    assert manifest.checkpoint == end.committed
    assert manifest.step >= 5
    training.write(training.entry(2, pin=manifest.checkpoint))
    again = training.start(steps(manifest.step + 10), number=2, job="job-2")
    assert again.wait() == 0
    second = training.end(2)
    assert (second.completed, second.new_steps, second.final_step) == (True, 10, manifest.step + 10)
    ancestors = checkpoints.present(training.store)[-1].manifest.ancestors
    assert ancestors[-1] == manifest.checkpoint


def test_a_completed_claim_of_another_job_ends_the_agent(training):
    """An attempt that another job has claimed is left at once, without an end file."""
    training.write(training.entry())
    attempts.claim(training.store, Claim(attempt=1, job="job-0", incarnation=1))
    assert training.start(STEPS).wait() == 75
    assert attempts.end(training.store, 1) is None


def test_a_restarted_job_takes_the_next_incarnation(training):
    """A service's own restart of the same job claims the next number, and its end file counts."""
    training.write(training.entry())
    attempts.claim(training.store, Claim(attempt=1, job="job-1", incarnation=1))
    assert training.start(steps(3)).wait() == 0
    assert (training.end().incarnation, training.end().completed) == (2, True)


def test_what_an_earlier_container_left_is_not_resumed_from(training):
    """A trainer finds what was restored, and nothing that a killed one left half done."""
    training.write(training.entry())
    first = training.start(FOLDERS, "--save-interval", "60")
    training.until((training.scratch / "job-1" / "checkpoints" / "step-200").exists)
    first.process.kill()
    first.wait()
    assert training.start(RESUME).wait() == 0
    assert (training.scratch / "job-1" / "found").read_text() == ""


def test_an_older_incarnation_leaves_without_a_commit(training):
    """A newer incarnation of the same job fences the older one."""
    training.write(training.entry())
    job = training.start(STEPS, "--save-interval", "60")
    training.until(lambda: (beat := training.heartbeat()) is not None and beat.phase is Phase.TRAINING)
    attempts.claim(training.store, Claim(attempt=1, job="job-1", incarnation=2))
    assert job.wait() in (0, 75, 143)
    assert checkpoints.present(training.store) == []


def test_closing_saves_and_leaves(training):
    """A live attempt that is asked to close commits its last step and says so."""
    training.write(training.entry())
    job = training.start(STEPS, "--save-interval", "60")
    training.until(lambda: (beat := training.heartbeat()) is not None and (beat.step or 0) > 5)
    training.write(training.entry(state=AttemptState.CLOSING, closing_why="promoted"))
    assert job.wait() == 75
    end = training.end()
    assert (end.reason, end.message, end.completed, end.interrupted) == ("closing", "promoted", False, True)
    assert checkpoints.present(training.store)[-1].id == end.committed


def test_an_ended_attempt_leaves_without_a_commit(training):
    """A fenced attempt commits nothing, whatever it still has."""
    training.write(training.entry())
    job = training.start(STEPS, "--save-interval", "60")
    training.until(lambda: (beat := training.heartbeat()) is not None and (beat.step or 0) > 5)
    training.write(training.entry(state=AttemptState.ENDED))
    assert job.wait() == 75
    assert training.end().reason == "fenced"
    assert checkpoints.present(training.store) == []


def test_a_stop_saves_first(training):
    """Desired state stopped: save, then leave, with the words of whoever stopped it."""
    training.write(training.entry())
    job = training.start(STEPS, "--save-interval", "60")
    training.until(lambda: (beat := training.heartbeat()) is not None and (beat.step or 0) > 5)
    training.write(training.entry(), desired=Desired(state="stopped", who="Ada", why="enough"))
    assert job.wait() == 75
    assert (training.end().reason, training.end().message) == ("stopped", "stopped by Ada: enough")
    assert len(checkpoints.present(training.store)) == 1


def test_a_standby_leaves_when_it_is_not_needed(training):
    """A standby that is closed leaves without having started its trainer."""
    training.write(training.entry(state=AttemptState.STANDBY))
    job = training.start(STEPS)
    training.until(lambda: training.heartbeat() is not None)
    training.write(training.entry(state=AttemptState.CLOSING, live_at=None))
    assert job.wait() == 75
    end = training.end()
    assert (end.exit_code, end.reason, end.completed) == (-1, "closing", False)


def test_the_lease_ends_an_attempt_that_nobody_waits_for(training):
    """An owner.json older than the limit, by the store's clock: save and leave."""
    training.write(training.entry())
    job = training.start(STEPS, "--save-interval", "60", AIRFLOW_SPOT_ORPHAN_AFTER_SECONDS="3")
    assert job.wait() == 75
    assert training.end().reason == "lease"
    assert len(checkpoints.present(training.store)) == 1


def test_a_bucket_that_is_not_there_is_misconfigured_at_once(training):
    """A store that refuses ends the agent with a sentence that names role and bucket."""
    job = training.start(STEPS, AIRFLOW_SPOT_RUN="s3://no-such-bucket/x")
    assert job.wait() == 78
    text = training.log.read_text()
    assert "no-such-bucket" in text
    assert "the job role" in text


def test_a_command_that_is_not_there_says_so(training):
    """The exit code is a shell's, and the end file names the command."""
    training.write(training.entry())
    job = training.start("", command=["does-not-exist"])
    assert job.wait() == 127
    assert "does-not-exist" in training.end().message


def test_a_notice_is_used_to_the_end_and_the_last_step_is_saved(training, metadata):
    """Training goes on after a spot notice until the save needs the rest; then the trainer is told and saves."""
    training.write(training.entry())
    job = training.start(
        STEPS,
        "--save-interval",
        "0.5",
        AWS_EC2_METADATA_DISABLED="false",
        AWS_EC2_METADATA_SERVICE_ENDPOINT=metadata.url,
    )
    training.until(lambda: (beat := training.heartbeat()) is not None and beat.saves > 0)
    beat = training.heartbeat()
    assert (beat.market, beat.instance, beat.zone) == ("spot", "i-0123456789abcdef0", "us-east-1a")
    begun = time.monotonic()
    metadata.notice(datetime.now(UTC) + timedelta(seconds=8))
    assert job.wait() == 75
    assert time.monotonic() - begun > 2.5
    end = training.end()
    assert (end.reason, end.notice.source, end.completed) == ("notice", "spot", False)
    assert checkpoints.present(training.store)[-1].manifest.step == end.final_step


def test_a_notice_alone_does_not_make_a_training_incomplete(training, metadata):
    """A trainer that finishes before a notice is acted on has completed."""
    training.write(training.entry())
    job = training.start(steps(150), AWS_EC2_METADATA_DISABLED="false", AWS_EC2_METADATA_SERVICE_ENDPOINT=metadata.url)
    training.until(lambda: (beat := training.heartbeat()) is not None and beat.phase is Phase.TRAINING)
    metadata.notice(datetime.now(UTC) + timedelta(seconds=100))
    assert job.wait() == 0
    end = training.end()
    assert (end.completed, end.interrupted, end.notice.source) == (True, False, "spot")


def test_a_notice_before_the_start_ends_the_attempt(training, metadata):
    """An instance that is about to go does not begin to train."""
    training.write(training.entry(state=AttemptState.STANDBY))
    metadata.notice(datetime.now(UTC) + timedelta(seconds=100))
    job = training.start(STEPS, AWS_EC2_METADATA_DISABLED="false", AWS_EC2_METADATA_SERVICE_ENDPOINT=metadata.url)
    assert job.wait() == 75
    assert (training.end().reason, training.end().exit_code) == ("notice", -1)


def test_a_trainer_that_ignores_everything_is_killed_in_time(training):
    """SIGTERM ignored, daemons forked: all of it is dead before the end file is written."""
    training.write(training.entry())
    job = training.start(STUBBORN, "--stop-grace", "3")
    training.until((training.scratch / "job-1" / "daemon.pid").exists)
    daemon = int((training.scratch / "job-1" / "daemon.pid").read_text())
    job.terminate()
    assert job.wait(10) == 137
    assert not alive(daemon)
    assert (training.end().exit_code, training.end().completed) == (137, False)


def test_what_a_trainer_leaves_behind_does_not_hold_up_its_end(training):
    """A daemon in a session of its own outlives the trainer, and is ended."""
    training.write(training.entry())
    assert training.start(DAEMON).wait(15) == 0
    daemon = int((training.scratch / "job-1" / "daemon.pid").read_text())
    assert not alive(daemon)
    assert training.end().completed


def test_exit_0_after_a_signal_is_not_completion(training):
    """A trainer that handles SIGTERM and exits 0 without finish() was interrupted."""
    training.write(training.entry())
    job = training.start(POLITE, "--save-interval", "60")
    training.until((training.scratch / "job-1" / "ready").exists)
    job.terminate()
    assert job.wait() == 75
    end = training.end()
    assert (end.exit_code, end.completed, end.interrupted) == (0, False, True)
    assert checkpoints.present(training.store)[-1].manifest.step == 7


def test_a_failing_trainer_keeps_its_exit_code(training):
    """An error of the trainer's own is passed on; nothing is called interrupted."""
    training.write(training.entry())
    assert training.start("raise SystemExit(3)").wait() == 3
    end = training.end()
    assert (end.exit_code, end.completed, end.interrupted, end.reason) == (3, False, False, "exit")


def test_depth_1_commits_complete_siblings_and_resumes_under_the_same_names(training):
    """Without a code change: what is complete is committed, unchanged files are reused, the next attempt finds them."""
    training.write(training.entry())
    job = training.start(FOLDERS, "--save-interval", "0.5")
    training.until(lambda: len(checkpoints.present(training.store)) >= 2)
    job.process.kill()
    job.wait()
    found = checkpoints.present(training.store)
    first, tip = found[0].manifest, found[-1].manifest
    kept = {entry.name: entry.key for entry in first.files}
    assert {entry.name: entry.key for entry in tip.files if entry.name in kept} == kept
    assert tip.ancestors[-1] == first.checkpoint
    training.write(training.entry(2, pin=tip.checkpoint))
    assert training.start(RESUME, number=2, job="job-2").wait() == 0
    listed = (training.scratch / "job-2" / "found").read_text().split()
    assert listed == sorted({entry.name.partition("/")[0] for entry in tip.files})
    assert training.end(2).artifacts is not None


@pytest.mark.parametrize("depth", [1, 2])
def test_a_last_save_that_is_refused_is_not_completion(training, policy, depth):
    """Exit 0 with nothing in the store: never completed, and the end file says what is missing and why."""
    policy.denied = ("/checkpoints/", "/artifacts/")
    training.write(training.entry())
    job = training.start(ONE_FILE if depth == 1 else ONE_SAVE, AWS_ENDPOINT_URL=policy.url)
    assert job.wait() == 74
    end = training.end()
    assert (end.exit_code, end.completed, end.interrupted, end.committed) == (0, False, False, None)
    assert "the last save did not get into the store: step 7: " in end.message
    assert "may not write" in end.message


def test_a_stored_model_completes_though_the_last_save_was_refused(training, policy):
    """The model is what the training was for; that its last checkpoint is not stored is said."""
    policy.denied = ("/checkpoints/",)
    training.write(training.entry())
    assert training.start(ONE_SAVE, AWS_ENDPOINT_URL=policy.url).wait() == 0
    end = training.end()
    assert (end.completed, end.committed, end.artifacts is not None) == (True, None, True)
    assert end.message.startswith("the last save did not get into the store: step 7: ")


def test_refused_saves_show_in_the_heartbeat(training, policy):
    """While training goes on, failures are counted and the last one is named; a later save makes it complete."""
    policy.denied = ("/checkpoints/",)
    training.write(training.entry())
    job = training.start(FEW_FILES, "--save-interval", "0.3", AWS_ENDPOINT_URL=policy.url)
    training.until(lambda: (beat := training.heartbeat()) is not None and beat.failed_saves > 0)
    beat = training.heartbeat()
    assert (beat.phase, beat.saves, beat.committed) == (Phase.TRAINING, 0, None)
    assert "may not write" in beat.last_error
    policy.denied = ()
    (training.scratch / "job-1" / "go").touch()
    assert job.wait() == 0
    end = training.end()
    assert (end.completed, end.message) == (True, "")
    assert end.committed == checkpoints.present(training.store)[-1].id


def test_training_goes_on_while_the_store_cannot_be_reached(training, gate):
    """A live attempt trains on through an outage, keeps its save, and commits it when the store is back."""
    training.write(training.entry())
    job = training.start(steps(250), "--save-interval", "1", AWS_ENDPOINT_URL=gate.url)
    training.until(lambda: (beat := training.heartbeat()) is not None and beat.saves > 0)
    gate.close()
    before = training.heartbeat()
    time.sleep(2.5)
    gate.shut = False
    assert job.wait() == 0
    end = training.end()
    assert (end.completed, end.final_step) == (True, 250)
    assert checkpoints.present(training.store)[-1].manifest.step == 250
    assert before.step < 250


def test_a_standby_holds_while_the_store_cannot_be_reached(training, gate):
    """It never trains before it has read live."""
    training.write(training.entry(state=AttemptState.STANDBY))
    job = training.start(steps(3), AWS_ENDPOINT_URL=gate.url)
    training.until(lambda: training.heartbeat() is not None)
    gate.close()
    training.write(training.entry())
    time.sleep(1)
    assert training.heartbeat().phase is Phase.HOLDING
    gate.shut = False
    assert job.wait() == 0


def test_a_trainer_dies_with_its_agent(training):
    """Killed without warning, the agent leaves no trainer that nobody fences."""
    training.write(training.entry())
    job = training.start(PID + STEPS)
    pid_file = training.scratch / "job-1" / "trainer.pid"
    training.until(pid_file.exists)
    job.process.kill()
    job.wait()
    training.until(lambda: not alive(int(pid_file.read_text())))


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except FileNotFoundError:
        return False


PID = """
import os
open("trainer.tmp", "w").write(str(os.getpid()))
os.rename("trainer.tmp", "trainer.pid")
"""

WRITE_PID = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "open('daemon.tmp', 'w').write(str(os.getpid())); os.rename('daemon.tmp', 'daemon.pid'); time.sleep(300)"
)

STUBBORN = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", {WRITE_PID!r}], start_new_session=True)
time.sleep(300)
"""

DAEMON = f"""
import os, subprocess, sys, time
os.environ["CODE"] = {WRITE_PID!r}
subprocess.Popen(["sh", "-c", f'"{{sys.executable}}" -c "$CODE" &'], start_new_session=True)
while not os.path.exists("daemon.pid"):
    time.sleep(0.02)
"""

POLITE = """
import os, signal, sys, time
from pathlib import Path
target = Path(os.environ["AIRFLOW_SPOT_CHECKPOINT_DIR"])
def leave(*_):
    (target / "step-7.bin").write_bytes(b"x" * 100)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
Path("ready").touch()
time.sleep(300)
"""

FOLDERS = """
import os, time
from pathlib import Path
target = Path(os.environ["AIRFLOW_SPOT_CHECKPOINT_DIR"])
for step in range(100, 10000, 100):
    folder = target / f"step-{step}"
    folder.mkdir()
    (folder / "model.bin").write_bytes(os.urandom(1000))
    with (folder / "optimizer.bin").open("wb") as file:
        file.write(os.urandom(500))
        file.flush()
        time.sleep(0.3)
        file.write(os.urandom(500))
    (target / "config.json").write_text("{}")
    time.sleep(0.3)
"""

RESUME = """
import os
from pathlib import Path
target = Path(os.environ["AIRFLOW_SPOT_CHECKPOINT_DIR"])
names = sorted(os.listdir(target))
for name in names:
    if name.startswith("step-"):
        assert (target / name / "model.bin").stat().st_size == 1000
        assert (target / name / "optimizer.bin").stat().st_size == 1000
Path("found").write_text(" ".join(names))
Path(os.environ["AIRFLOW_SPOT_OUTPUT_DIR"], "model.bin").write_bytes(b"done")
"""

ONE_FILE = """
import os
from pathlib import Path
Path(os.environ["AIRFLOW_SPOT_CHECKPOINT_DIR"], "step-7.bin").write_bytes(b"x" * 100)
"""

# What a save's refusal raises is left to the agent: here it mostly comes after the trainer has gone.
ONE_SAVE = """
import contextlib, os
from pathlib import Path
from airflow_spot.agent import attach
from airflow_spot.errors import SpotError
run = attach()
Path("save").mkdir()
Path("save", "state").write_text("7")
run.save("save", step=7, total_steps=7)
with contextlib.suppress(SpotError):
    run.finish(output="save")
"""

FEW_FILES = """
import os, time
from pathlib import Path
target = Path(os.environ["AIRFLOW_SPOT_CHECKPOINT_DIR"])
(target / "step-1.bin").write_bytes(b"1")
while not Path("go").exists():
    time.sleep(0.02)
"""
