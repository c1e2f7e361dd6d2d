"""The life of an agent: real processes and signals, a real S3, a real metadata service."""

from __future__ import annotations

import time

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
