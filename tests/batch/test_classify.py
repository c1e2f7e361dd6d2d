"""Why a job ended or waits: the vectors of AWS's texts, and the agent's own evidence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_spot.batch import classify
from airflow_spot.batch.classify import blocked, interruptions
from airflow_spot.batch.evidence import Evidence
from airflow_spot.batch.jobs import job_seen
from airflow_spot.core.outcomes import TABLE, Outcome
from airflow_spot.rundir.values import End, Heartbeat, Notice, Phase, Verdict

from .conftest import ESSENTIAL, HOST_LOST, INSTANCE, as_tasks, attempt, detail, lost_host

TOKEN = "airflow-spot 0123456789"
OOM = "OutOfMemoryError: Container killed due to memory usage"
STOPPED_AT = datetime.fromtimestamp(1765040671.155, UTC)
NOW = STOPPED_AT + timedelta(minutes=4)
SPOT, EC2 = Evidence(capacity="SPOT"), Evidence(capacity="EC2")
SPOT_NOTICE = Notice(source="spot", time="2026-01-01T00:02:00Z")


def end(**fields) -> End:
    base = {"attempt": 1, "job": "J", "incarnation": 1, "exit_code": 0, "interrupted": False, "completed": False}
    return End(**base | {"reason": "exit"} | fields)


def heartbeat(**fields) -> Heartbeat:
    return Heartbeat(**{"attempt": 1, "job": "J", "incarnation": 1, "phase": Phase.TRAINING} | fields)


def judge(job: dict, evidence: Evidence = SPOT, **options) -> Verdict:
    base = {"market": "spot", "end": None, "agent": True, "stop_token": TOKEN, "trusted": False, "now": NOW}
    return classify.verdict(job_seen(job), evidence=evidence, **base | options)


def exited(code: int | None, reason: str | None = None, status: str = "FAILED", **more) -> dict:
    container = {key: value for key, value in (("exitCode", code), ("reason", reason)) if value is not None}
    return detail(status, ESSENTIAL, [attempt(ESSENTIAL, **container)], stoppedAt=1765040671155, **more)


def unstarted(reason: str | None, status_reason: str = "Task failed to start") -> dict:
    return detail("FAILED", status_reason, [attempt(status_reason, **({"reason": reason} if reason else {}))])


DONE = end(completed=True)
RECLAIMED_EC2 = Evidence(
    capacity="SPOT", lifecycle="spot", state="terminated", state_reason="Server.SpotInstanceTermination"
)
BY_USER = "Client.UserInitiatedShutdown"
BLOCK = Evidence(capacity="EC2", lifecycle="capacity-block", reservation_ends=STOPPED_AT + timedelta(minutes=29))
LIMIT = "Canceled by JobStateTimeLimit action due to reason: "
NOT_FOUND = "CannotPullContainerError: pull image manifest has been retried 1 time(s): failed to resolve ref: not found"
CANCELED = "CannotPullContainerError: ref pull has been retried 1 time(s): failed to copy: context canceled"

VECTORS = {
    "1 reclaim proven by EC2": (lost_host(), RECLAIMED_EC2, {}, Outcome.RECLAIMED, "high"),
    "2 on-demand host ended": (
        lost_host(),
        Evidence(capacity="EC2", state_reason=BY_USER),
        {},
        Outcome.HOST_LOST,
        "high",
    ),
    "3 spot host ended by user": (
        lost_host(),
        Evidence(capacity="SPOT", spot_status="instance-terminated-by-user"),
        {},
        Outcome.HOST_LOST,
        "high",
    ),
    "4 EC2 not allowed": (
        lost_host(),
        Evidence(capacity="SPOT", denied=("ec2:DescribeInstances",)),
        {},
        Outcome.RECLAIMED,
        "low",
    ),
    "5 asked too late": (lost_host(), Evidence(capacity="SPOT", state="gone"), {}, Outcome.RECLAIMED, "low"),
    "6 compute environment not found": (lost_host(), Evidence(), {}, Outcome.HOST_LOST, "low"),
    "7 SIGTERM on a reclaimed host": (exited(143), RECLAIMED_EC2, {}, Outcome.RECLAIMED, "high"),
    "8 SIGTERM, host still runs": (
        exited(143),
        Evidence(capacity="SPOT", lifecycle="spot", state="running"),
        {},
        Outcome.USER_ERROR,
        "low",
    ),
    "9 memory, by the EC2 agent": (exited(137, OOM), SPOT, {}, Outcome.OUT_OF_MEMORY, "high"),
    "9 memory, by Fargate": (
        exited(137, OOM.replace("Container", "container")),
        SPOT,
        {},
        Outcome.OUT_OF_MEMORY,
        "high",
    ),
    "10 time-out": (
        detail("FAILED", t := "Job attempt duration exceeded timeout", [attempt(t, exitCode=137)]),
        SPOT,
        {},
        Outcome.TIMED_OUT,
        "high",
    ),
    "11 killed, nobody says why": (exited(137), SPOT, {}, Outcome.UNKNOWN, "low"),
    "12 exit 0 without a completed end": (exited(0, status="SUCCEEDED"), SPOT, {}, Outcome.INCOMPLETE, "high"),
    "13 own stop": (
        detail("FAILED", f"{TOKEN}: deadline", [attempt(f"{TOKEN}: deadline", exitCode=137)], isTerminated=True),
        SPOT,
        {},
        Outcome.STOPPED_BY_US,
        "high",
    ),
    "14 foreign stop": (
        detail("FAILED", "cost control", isTerminated=True),
        SPOT,
        {},
        Outcome.STOPPED_BY_OTHERS,
        "high",
    ),
    "15 image permanent": (unstarted(NOT_FOUND), SPOT, {}, Outcome.MISCONFIGURED, "high"),
    "15 image transient": (unstarted(CANCELED), SPOT, {}, Outcome.START_FAILED, "high"),
    "16 exit lost, but completed": (
        exited(None, "CannotInspectContainerError: Could not transition to inspecting; timed out after waiting 30s"),
        SPOT,
        {"end": DONE},
        Outcome.SUCCEEDED,
        "high",
    ),
    "19 queue's time limit": (
        detail("FAILED", LIMIT + "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"),
        SPOT,
        {},
        Outcome.NO_CAPACITY,
        "high",
    ),
    "20 two losses, then completed": (
        detail("SUCCEEDED", ESSENTIAL, [attempt(HOST_LOST), attempt(HOST_LOST), attempt(ESSENTIAL, exitCode=0)]),
        SPOT,
        {"end": DONE},
        Outcome.SUCCEEDED,
        "high",
    ),
    "22 nothing known": (
        detail("FAILED", "Something new", [attempt("Something new")]),
        SPOT,
        {},
        Outcome.UNKNOWN,
        "low",
    ),
    "23 capacity block near its end": (
        lost_host(stoppedAt=1765040671155),
        BLOCK,
        {},
        Outcome.RESERVATION_ENDED,
        "high",
    ),
}
# 17 and 18 wait and are tested below, as is 25. 24 is SageMaker's, which this package does not drive.


@pytest.mark.parametrize("shape", [dict, as_tasks], ids=["container", "taskProperties"])
@pytest.mark.parametrize("vector", VECTORS)
def test_vector(vector, shape):
    """Each known signature has its outcome, in both shapes of DescribeJobs (vector 21), with AWS's words quoted."""
    job, evidence, options, outcome, confidence = VECTORS[vector]
    found = judge(shape(job), evidence, **options)
    assert (outcome, confidence) == (found.outcome, found.confidence)
    assert repr(job["statusReason"]) in found.sentence
    assert f"Batch status reason: {job['statusReason']}" in found.evidence
    assert found == judge(shape(job), evidence, **options)


@pytest.mark.parametrize(("minutes", "settled"), [(2, False), (20, True)], ids=["17 wait", "17 fail fast"])
def test_misconfiguration_must_last(minutes, settled):
    """A misconfigured queue head is shown at once and believed after a quarter of an hour, with AWS's text."""
    reason = "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The job resource requirement (vCPU/memory/GPU) is higher"
    found = blocked(reason, minutes * 60)
    assert found is not None
    assert (found.outcome, found.settled) == (Outcome.NEVER_FITS, settled)
    assert reason in found.sentence


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill [p4d.24xlarge]", Outcome.NO_CAPACITY),
        ("UNDETERMINED - Batch job is blocked, root cause is undetermined.", Outcome.NO_CAPACITY),
        ("MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE", Outcome.NEVER_FITS),
        ("MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS - x", Outcome.MISCONFIGURED),
    ],
)
def test_blocked_reasons(reason, outcome):
    """Vector 18 and its siblings: a blocked reason is sorted by its code, and told whole."""
    found = blocked(reason, 3600)
    assert found is not None
    assert (found.outcome, found.settled, found.reason) == (outcome, True, reason)
    assert reason in found.sentence


@pytest.mark.parametrize("reason", ["", "Waiting for your turn"])
def test_not_blocked(reason):
    """Whoever merely waits its turn is not blocked."""
    assert blocked(reason, 3600) is None


def test_interruptions_are_counted_over_all_tries():
    """Vector 20: earlier tries inside Batch are in the count, the sentence and the evidence."""
    tries = [attempt(HOST_LOST), attempt(HOST_LOST), attempt(ESSENTIAL, exitCode=0)]
    job = detail("SUCCEEDED", ESSENTIAL, tries)
    assert interruptions(job_seen(job)) == 2
    found = judge(job, end=DONE)
    assert "2 interruptions" in found.sentence
    assert f"try 1 inside Batch: {HOST_LOST}" in found.evidence


def test_event_detail_is_judged_like_a_description():
    """Vector 25: the same job told twice, or by an event without optional keys, has the same verdict."""
    event = {key: value for key, value in lost_host().items() if key != "startedAt"}
    assert judge(event, RECLAIMED_EC2) == judge(lost_host(), RECLAIMED_EC2)


SIGNATURES = {
    "on-demand host stopped": (
        detail("FAILED", "Host EC2 (instance i-1a2b3c4d) stopped."),
        EC2,
        {},
        Outcome.HOST_LOST,
        "high",
    ),
    "Fargate Spot": (
        detail("FAILED", "Your Spot Task was interrupted.", [attempt("Your Spot Task was interrupted.", exitCode=137)]),
        Evidence(capacity="FARGATE_SPOT"),
        {},
        Outcome.RECLAIMED,
        "high",
    ),
    "swallowed SIGTERM on Fargate Spot": (
        detail("SUCCEEDED", "Your Spot Task was interrupted.", [{"container": {"exitCode": 0}}]),
        SPOT,
        {"agent": False, "trusted": True},
        Outcome.RECLAIMED,
        "high",
    ),
    "managed instance drained": (
        detail("FAILED", "Task stopped during instance draining"),
        SPOT,
        {},
        Outcome.HOST_LOST,
        "high",
    ),
    "cancelled by others": (detail("FAILED", "no more", isCancelled=True), SPOT, {}, Outcome.STOPPED_BY_OTHERS, "high"),
    "our token of another training run": (
        detail("FAILED", "airflow-spot aaaaaaaaaa: x", isTerminated=True),
        SPOT,
        {},
        Outcome.STOPPED_BY_OTHERS,
        "high",
    ),
    "time limit, misconfigured": (
        detail("FAILED", LIMIT + "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT", isCancelled=True),
        SPOT,
        {},
        Outcome.NEVER_FITS,
        "high",
    ),
    "time limit, role": (
        detail("FAILED", LIMIT + "MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS"),
        SPOT,
        {},
        Outcome.MISCONFIGURED,
        "high",
    ),
    "docker timed out": (
        unstarted("DockerTimeoutError: Could not transition to started; timed out after waiting 3m0s"),
        SPOT,
        {},
        Outcome.START_FAILED,
        "high",
    ),
    "start refused": (
        unstarted("CannotStartContainerError: Error response from daemon: boom"),
        SPOT,
        {},
        Outcome.START_FAILED,
        "high",
    ),
    "command not in image": (
        unstarted('CannotStartContainerError: exec: "spot-agent": executable file not found in $PATH'),
        SPOT,
        {},
        Outcome.MISCONFIGURED,
        "high",
    ),
    "created no container": (unstarted("CannotCreateContainerError: x"), SPOT, {}, Outcome.START_FAILED, "high"),
    "start without a reason": (unstarted(None), SPOT, {}, Outcome.START_FAILED, "high"),
    "image without disk": (
        unstarted("CannotPullContainerError: no space left on device"),
        SPOT,
        {},
        Outcome.MISCONFIGURED,
        "high",
    ),
    "registry overloaded": (
        unstarted("CannotPullContainerError: 503 Service Unavailable"),
        SPOT,
        {},
        Outcome.START_FAILED,
        "high",
    ),
    "digest with a 404 in it": (
        unstarted("CannotPullContainerError: sha256:ab404cd: unexpected status"),
        SPOT,
        {},
        Outcome.START_FAILED,
        "high",
    ),
    "ECR login": (
        unstarted("CannotPullContainerAuthError: no basic auth credentials"),
        SPOT,
        {},
        Outcome.MISCONFIGURED,
        "high",
    ),
    "log group": (
        unstarted("ResourceInitializationError: The specified log group does not exist"),
        SPOT,
        {},
        Outcome.MISCONFIGURED,
        "high",
    ),
    "resource init in the status": (
        unstarted(None, "ResourceInitializationError: unable to pull secrets"),
        SPOT,
        {},
        Outcome.MISCONFIGURED,
        "high",
    ),
    "role": (
        detail("FAILED", "ECS was unable to assume the role 'arn:x' that was provided for this task."),
        SPOT,
        {},
        Outcome.MISCONFIGURED,
        "high",
    ),
    "dead ECS agent": (detail("FAILED", None, [attempt(None, reason="AGENT")]), SPOT, {}, Outcome.START_FAILED, "high"),
    "exit lost": (
        exited(0, "CannotInspectContainerError: Could not transition to inspecting"),
        SPOT,
        {},
        Outcome.INCOMPLETE,
        "low",
    ),
    "application error": (exited(3), EC2, {"agent": False}, Outcome.USER_ERROR, "high"),
    "application error on a reclaimed host": (exited(1), RECLAIMED_EC2, {"agent": False}, Outcome.USER_ERROR, "high"),
    "agent crashed": (exited(3), EC2, {}, Outcome.USER_ERROR, "low"),
    "agent not in the image": (exited(127), EC2, {}, Outcome.MISCONFIGURED, "high"),
    "plain, trusted": (
        exited(0, status="SUCCEEDED"),
        EC2,
        {"agent": False, "trusted": True},
        Outcome.SUCCEEDED,
        "high",
    ),
    "plain, not trusted": (exited(0, status="SUCCEEDED"), EC2, {"agent": False}, Outcome.INCOMPLETE, "high"),
    "plain, exit 0 as the host was reclaimed": (
        exited(0, status="SUCCEEDED"),
        RECLAIMED_EC2,
        {"agent": False},
        Outcome.RECLAIMED,
        "high",
    ),
    "trust does not reach the agent's jobs": (
        exited(0, status="SUCCEEDED"),
        EC2,
        {"trusted": True},
        Outcome.INCOMPLETE,
        "high",
    ),
    "reclaim proven late": (exited(143), RECLAIMED_EC2, {"now": NOW + timedelta(hours=1)}, Outcome.RECLAIMED, "low"),
    "signal, host gone, nobody knows why": (
        exited(143),
        Evidence(capacity="SPOT", state="gone"),
        {},
        Outcome.RECLAIMED,
        "low",
    ),
    "spot request flips first": (
        exited(143),
        Evidence(capacity="SPOT", lifecycle="spot", state="running", spot_status="instance-terminated-no-capacity"),
        {},
        Outcome.RECLAIMED,
        "high",
    ),
    "fault injection": (
        lost_host(),
        Evidence(capacity="SPOT", spot_status="instance-terminated-by-experiment"),
        {},
        Outcome.RECLAIMED,
        "high",
    ),
    "hardware retired": (
        lost_host(),
        Evidence(capacity="SPOT", state_reason="Server.ScheduledStop"),
        {},
        Outcome.HOST_LOST,
        "high",
    ),
    "compute environment not to be asked": (
        lost_host(),
        Evidence(denied=("batch:DescribeComputeEnvironments",)),
        {},
        Outcome.RECLAIMED,
        "low",
    ),
    "capacity block long before its end": (
        lost_host(stoppedAt=1765040671155),
        Evidence(capacity="EC2", lifecycle="capacity-block", reservation_ends=STOPPED_AT + timedelta(hours=9)),
        {},
        Outcome.HOST_LOST,
        "high",
    ),
    "interruptible reservation": (
        lost_host(),
        Evidence(capacity="EC2", lifecycle="interruptible-capacity-reservation"),
        {},
        Outcome.RECLAIMED,
        "low",
    ),
    "no reason at all": (detail("FAILED"), Evidence(), {}, Outcome.UNKNOWN, "low"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    """Every text of AWS that is known has its outcome."""
    job, evidence, options, outcome, confidence = SIGNATURES[name]
    found = judge(job, evidence, **options)
    assert (outcome, confidence) == (found.outcome, found.confidence)
    assert found.sentence.endswith((".", ")", "'", '"')) or "exit code" in found.sentence


AGENT_WORDS = {
    "completed beats a foreign stop": (
        detail("FAILED", "x", isTerminated=True),
        SPOT,
        {"end": DONE},
        Outcome.SUCCEEDED,
    ),
    "completed beats a lost host": (lost_host(), RECLAIMED_EC2, {"end": DONE}, Outcome.SUCCEEDED),
    "misconfigured": (
        exited(1),
        SPOT,
        {"end": end(exit_code=-1, reason="misconfigured", message="403")},
        Outcome.MISCONFIGURED,
    ),
    "fenced": (exited(0, status="SUCCEEDED"), SPOT, {"end": end(reason="fenced")}, Outcome.SUPERSEDED),
    "lease": (exited(0, status="SUCCEEDED"), SPOT, {"end": end(reason="lease")}, Outcome.STOPPED_BY_US),
    "stopped": (exited(0, status="SUCCEEDED"), SPOT, {"end": end(reason="stopped")}, Outcome.STOPPED_BY_US),
    "closing": (exited(0, status="SUCCEEDED"), SPOT, {"end": end(reason="closing")}, Outcome.STOPPED_BY_US),
    "trainer failed": (exited(2), SPOT, {"end": end(exit_code=2)}, Outcome.USER_ERROR),
    "trainer failed, then we ended the job": (
        detail("FAILED", f"{TOKEN}: x", isTerminated=True),
        SPOT,
        {"end": end(exit_code=2)},
        Outcome.USER_ERROR,
    ),
    "trainer failed, then the host was reclaimed": (
        lost_host(),
        RECLAIMED_EC2,
        {"end": end(exit_code=2)},
        Outcome.USER_ERROR,
    ),
    "trainer killed for memory": (exited(137, OOM), SPOT, {"end": end(exit_code=137)}, Outcome.OUT_OF_MEMORY),
    "trainer killed": (exited(137), SPOT, {"end": end(exit_code=137)}, Outcome.USER_ERROR),
    "left on a notice in time": (
        exited(0, status="SUCCEEDED"),
        SPOT,
        {"end": end(reason="notice", interrupted=True, notice=SPOT_NOTICE)},
        Outcome.RECLAIMED,
    ),
    "left on a notice, job not ended yet": (
        detail("RUNNING"),
        SPOT,
        {"end": end(reason="notice", interrupted=True, exit_code=143, notice=SPOT_NOTICE)},
        Outcome.RECLAIMED,
    ),
    "notice and host loss": (lost_host(), EC2, {"heartbeat": heartbeat(notice=SPOT_NOTICE)}, Outcome.RECLAIMED),
    "spot by its own word": (lost_host(), SPOT, {"heartbeat": heartbeat(market="spot")}, Outcome.RECLAIMED),
    "on-demand by its own word": (
        lost_host(),
        Evidence(),
        {"heartbeat": heartbeat(market="on-demand")},
        Outcome.HOST_LOST,
    ),
    "foreign stop, agent left in order": (
        detail("FAILED", "x", isTerminated=True),
        SPOT,
        {"end": end(reason="notice", interrupted=True, exit_code=143, notice=Notice(source="sigterm"))},
        Outcome.STOPPED_BY_OTHERS,
    ),
}


@pytest.mark.parametrize("name", AGENT_WORDS)
def test_agent_evidence(name):
    """What the agent itself says decides with high confidence, where it may."""
    job, evidence, options, outcome = AGENT_WORDS[name]
    found = judge(job, evidence, **options)
    assert outcome == found.outcome
    assert found.confidence == ("low" if name == "trainer killed" else "high")


def test_spot_notice_is_not_hidden_by_the_signal_after_it():
    """The host's SIGTERM follows the spot notice: what the heartbeat said before still counts."""
    last = end(reason="notice", interrupted=True, exit_code=143, notice=Notice(source="sigterm"))
    found = judge(exited(143), EC2, end=last, heartbeat=heartbeat(notice=SPOT_NOTICE))
    assert (found.outcome, found.confidence) == (Outcome.RECLAIMED, "high")


def test_flag_without_a_reason_is_nobodys_stop_yet():
    """While a job still runs, isTerminated may precede the reason that tells whose stop it is."""
    last = end(reason="notice", interrupted=True, exit_code=143, notice=Notice(source="sigterm"))
    found = judge(detail("RUNNING", isTerminated=True), EC2, end=last)
    assert (found.outcome, found.confidence) == (Outcome.INCOMPLETE, "low")


def test_unexplained_signal_is_incomplete():
    """A trainer that a signal ended, with no one known to have sent it, is not a user error."""
    last = end(reason="notice", interrupted=True, exit_code=143, notice=Notice(source="sigterm"))
    assert judge(exited(143), EC2, end=last).outcome == Outcome.INCOMPLETE


def test_sentence_names_cause_place_and_words():
    """The sentence holds cause, instance, type, zone and AWS's text; the verdict holds them as fields."""
    evidence = Evidence(
        capacity="SPOT", instance=INSTANCE, instance_type="g5.xlarge", zone="us-west-2a", lifecycle="spot",
        state_reason="Server.SpotInstanceTermination", lines=("EC2: asked",),
    )  # fmt: skip
    found = judge(lost_host(), evidence)
    assert found.sentence == (
        "AWS took the spot machine back: EC2 reports Server.SpotInstanceTermination "
        f"({INSTANCE}, g5.xlarge, us-west-2a). AWS says: {HOST_LOST!r}"
    )
    assert (found.instance, found.instance_type, found.zone) == (INSTANCE, "g5.xlarge", "us-west-2a")
    assert "EC2: asked" in found.evidence


def test_place_falls_back_on_the_agent():
    """Where EC2 tells nothing, the agent's own instance, type and zone are named."""
    beat = heartbeat(
        instance="i-0000000a", instance_type="g5.2xlarge", zone="us-west-2b", market="spot", notice=SPOT_NOTICE
    )
    found = judge(exited(137), Evidence(), heartbeat=beat)
    assert (found.instance, found.instance_type, found.zone) == ("i-0000000a", "g5.2xlarge", "us-west-2b")
    assert "agent: saw a spot notice (terminate 2026-01-01T00:02:00Z)" in found.evidence


def test_no_bare_run_in_user_text():
    """User text says training, attempt or training run, never bare "run"."""
    texts = [
        judge(*row[:2], **row[2]).sentence for row in (*VECTORS.values(), *SIGNATURES.values(), *AGENT_WORDS.values())
    ]
    assert [text for text in texts if " the run " in text or " a run " in text] == []


def test_every_outcome_of_a_job_is_reachable():
    """Only STALLED, which the loop sees by itself, is no verdict on a job."""
    rows = (*VECTORS.values(), *SIGNATURES.values(), *AGENT_WORDS.values())
    assert {Outcome(row[3]) for row in rows} == set(TABLE) - {Outcome.STALLED}
