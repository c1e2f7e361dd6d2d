"""The operator: what it writes, submits, waits for, returns, raises and stops."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    TaskDeferralError,
    TaskDeferralTimeout,
    TaskDeferred,
)

from airflow_spot import Tier, engine, session, stopping
from airflow_spot.errors import ConfigurationError, StoreDenied, StoreUnavailable
from airflow_spot.operators.training import SpotTrainingOperator
from airflow_spot.policies import SlackRatio
from airflow_spot.rundir import codec
from airflow_spot.rundir.values import Result
from airflow_spot.triggers.training import SpotTrainingTrigger


def operator(**changes: Any) -> SpotTrainingOperator:
    arguments: dict[str, Any] = {
        "task_id": "train",
        "job_definition": "train",
        "command": ["python", "train.py"],
        "tiers": [Tier.spot("spot", price=0.97), Tier.on_demand("on-demand", price=3.06)],
    }
    return SpotTrainingOperator(**arguments | changes)


def deferred(op: SpotTrainingOperator, context: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        op.execute(context)
    return caught.value


def event(outcome: str, *, retryable: bool = False, **summary: Any) -> dict[str, Any]:
    result = Result(outcome=outcome, message=f"it was {outcome}", generation=1, retryable=retryable, summary=summary)
    return {
        "run": "memory://surface/dag/run/train/-1",
        "generation": 1,
        "region": "eu-west-1",
        "result": codec.encode(result),
    }


def test_deferrable_is_literally_the_default() -> None:
    """Without a setting of Airflow's the operator defers."""
    assert operator().deferrable is True


def test_wrong_argument_is_named_before_a_missing_one() -> None:
    """``job_queue=`` in place of ``tiers`` says "use `tiers`", although tiers are missing as well."""
    with pytest.raises(ConfigurationError, match="use `tiers`"):
        SpotTrainingOperator(task_id="train", job_definition="train", job_queue="spot")


def test_base_arguments_pass() -> None:
    """Arguments of BaseOperator and default_args are taken as everywhere."""
    op = operator(
        retries=2, pool="gpu", default_args={"region_name": "eu-west-1"}, execution_timeout=timedelta(hours=1)
    )
    assert (2, "gpu", "eu-west-1") == (op.retries, op.pool, op.region_name)


def test_templates_reach_into_tiers(surface: Any) -> None:
    """A queue name inside a tier is rendered, and a template may give all of them as JSON."""
    tiers = [Tier.spot("{{ queue }}", price=0.97)]
    with DAG("dag", schedule=None):
        op, whole = operator(tiers=tiers), operator(task_id="whole", tiers="{{ tiers }}")
    context = {"queue": "from-a-variable", "tiers": '[{"market": "on_demand", "job_queue": "q"}]'}
    op.render_template_fields(context)
    whole.render_template_fields(context)
    assert op.training_spec().tiers == (Tier.spot("from-a-variable", price=0.97),)
    assert whole.training_spec().tiers == (Tier.on_demand("q"),)


def test_spec_holds_every_argument(surface: Any) -> None:
    """What the loop gets is what was written, times in seconds."""
    spec = operator(
        deadline=timedelta(hours=60), expected_duration="48h", downstream_duration="2h", changeover=600,
        environment={"A": 1}, policy=SlackRatio(), max_reclaims=7, run_key="model", tags={"team": "ml"},
        keep_checkpoints=5, poll_interval="20",
    ).training_spec(bucket_region="eu-west-1")  # fmt: skip
    assert ("PT216000S", 172800.0, 7200.0, 600.0) == (
        spec.deadline, spec.expected_seconds, spec.downstream_seconds, spec.changeover_seconds,
    )  # fmt: skip
    assert spec.environment == {"A": "1"}
    assert spec.policy["name"] == SlackRatio.name
    assert (spec.max_reclaims, spec.keep_checkpoints, spec.poll_seconds) == (7, 5, 20.0)
    assert (spec.bucket_region, spec.heartbeat_seconds, spec.orphan_after_seconds) == ("eu-west-1", 60.0, 21600.0)


def test_execute_creates_the_record_and_defers_once(surface: Any) -> None:
    """The record and the pointer are there before anything is submitted; the trigger knows whose it is."""
    raised = deferred(operator(execution_timeout=timedelta(hours=1)), surface.context())
    assert surface.jobs() == []
    assert surface.record().owner.task_id == "train"
    assert surface.xcoms["training_run"] == {
        "uri": "memory://surface/dag/run/train/-1",
        "aws_conn_id": "aws_default",
        "region_name": "eu-central-1",
        "deployment": "test",
    }
    assert (raised.method_name, raised.timeout) == ("execute_complete", timedelta(hours=1))
    assert isinstance(raised.trigger, SpotTrainingTrigger)
    assert (raised.trigger.generation, raised.trigger.try_number) == (1, 1)


def test_pointer_is_pushed_even_when_the_set_up_is_refused(surface: Any) -> None:
    """A definition that does not exist fails the task without a retry, by name, and nothing was submitted."""
    with pytest.raises(AirflowFailException, match="missing-definition"):
        operator(job_definition="missing-definition").execute(surface.context())
    assert surface.xcoms["training_run"]["uri"].endswith("dag/run/train/-1")
    assert surface.jobs() == []


def test_no_run_root(surface: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a run root both places where one can be given are named."""
    monkeypatch.delenv("AIRFLOW__AIRFLOW_SPOT__RUN_ROOT")
    with pytest.raises(AirflowFailException, match=r"run_root='s3://bucket/prefix'.*\[airflow_spot\] run_root"):
        operator().execute(surface.context())


def test_run_key_outlives_the_dag_run(surface: Any) -> None:
    """With a run key the directory bears it, and the map index."""
    deferred(operator(run_key="models/final"), surface.context(map_index=2))
    assert surface.xcoms["training_run"]["uri"] == "memory://surface/models/final/2"


def test_retry_adopts_and_clear_raises_the_generation(surface: Any) -> None:
    """An unchanged max_tries adopts the training run, a raised one begins its next generation."""
    deferred(operator(), surface.context(max_tries=2))
    second = deferred(operator(), surface.context(try_number=2, max_tries=2))
    cleared = deferred(operator(), surface.context(try_number=3, max_tries=5))
    assert [(1, 2), (2, 3)] == [(each.trigger.generation, each.trigger.try_number) for each in (second, cleared)]


@pytest.mark.parametrize(
    ("outcome", "retryable", "raises"),
    [("USER_ERROR", True, AirflowException), ("NEVER_FITS", False, AirflowFailException)],
)
def test_failures(outcome: str, retryable: bool, raises: type[Exception], surface: Any) -> None:
    """What a retry may change raises a retryable error, anything else fails for good; both say why."""
    with pytest.raises(raises, match=f"it was {outcome}") as caught:
        operator().execute_complete(surface.context(), event(outcome, retryable=retryable))
    assert isinstance(caught.value, AirflowFailException) is not retryable


def test_success_returns_the_summary(surface: Any) -> None:
    """The return value is the summary, and the link leads to the job that finished."""
    op = operator()
    assert op.execute_complete(surface.context(), event("SUCCEEDED", job_id="j1", steps=7)) == {
        "job_id": "j1",
        "steps": 7,
    }
    assert op.link_values["training_job"] == {"job_id": "j1", "region_name": "eu-west-1"}


def test_superseded_fails_with_a_sentence(surface: Any) -> None:
    """A trigger whose place was taken ends its task, and says so."""
    with pytest.raises(AirflowFailException, match="taken over"):
        operator().execute_complete(surface.context(), {"run": "x", "generation": 1})


@pytest.mark.parametrize("result", [None, event("STOPPED_BY_US")["result"]], ids=["superseded", "result"])
def test_the_last_word_of_an_earlier_trys_trigger_is_not_ours(result: Any, surface: Any) -> None:
    """After a Clear the old trigger's event reaches the new try, whose trigger bears its number: wait again."""
    deferred(operator(), surface.context())
    deferred(operator(), surface.context(try_number=2, max_tries=1))
    late = {"run": "x", "generation": 1, "try_number": 1, "region": "eu-west-1"} | (
        {"result": result} if result else {}
    )
    with pytest.raises(TaskDeferred) as caught:
        operator().execute_complete(surface.context(try_number=2, max_tries=1), late)
    assert (caught.value.trigger.generation, caught.value.trigger.try_number) == (2, 2)


@pytest.mark.parametrize(
    ("error", "raises", "why"),
    [
        ("Trigger timeout", TaskDeferralTimeout, "execution_timeout passed"),
        ("boom", TaskDeferralError, "trigger failed"),
    ],
)
def test_deferral_that_ends_badly_stops_the_training(error: str, raises: Any, why: str, surface: Any) -> None:
    """A deferral time-out and a failed trigger end the job before the error goes on: nobody waits any more."""
    context = surface.context()
    trigger = deferred(operator(), context).trigger
    trigger._advance()
    [job] = surface.jobs()
    with pytest.raises(raises):
        operator().resume_execution("__fail__", {"error": error}, context)
    assert surface.record().desired.state == "stopped"
    assert why in surface.record().desired.why
    assert surface.batch.describe_jobs(jobs=[job])["jobs"][0]["isTerminated"]


def test_on_kill_stops_only_its_own_try(surface: Any) -> None:
    """A killed worker ends its training; a worker of an older try does not touch the newer one's."""
    old, new = operator(), operator()
    deferred(old, surface.context(max_tries=1))
    deferred(new, surface.context(try_number=2, max_tries=1))
    old.on_kill()
    assert surface.record().desired.state == "running"
    new.on_kill()
    assert surface.record().desired.state == "stopped"


def test_on_kill_may_be_forbidden(surface: Any) -> None:
    """With cancel_on_kill=False, and before there is anything, a kill stops nothing."""
    operator().on_kill()
    op = operator(cancel_on_kill=False)
    deferred(op, surface.context())
    op.on_kill()
    assert surface.record().desired.state == "running"


def test_worker_runs_the_same_loop(surface: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """deferrable=False submits, waits and returns in the worker; a plain image's exit code is its proof."""
    op = operator(deferrable=False, agent=False, trust_exit_code=True, command=["true"])

    def sleep(seconds: float) -> None:
        surface.batch.advance(seconds)
        if surface.jobs() and surface.batch.runner.handles:
            surface.batch.runner.handles[-1].finish(0)

    monkeypatch.setattr(op, "_sleep", sleep)
    summary = op.execute(surface.context())
    assert (summary["attempts"], summary["tier"]) == (1, "spot")
    assert len(json.dumps(summary)) < 8192


def test_kill_ends_the_wait_of_a_worker(surface: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed while it sleeps stops the training and leaves with an error."""
    op = operator(deferrable=False)
    monkeypatch.setattr(engine, "advance", lambda loop: op.on_kill() or engine.Waiting(60.0, surface.record()))
    with pytest.raises(AirflowException, match="killed"):
        op.execute(surface.context())
    assert surface.record().desired.state == "stopped"


def test_person_s_stop_holds(surface: Any) -> None:
    """A retry does not undo what a person stopped; the message says what does."""
    deferred(operator(), surface.context(max_tries=1))
    stopping.stop(surface.store(), surface.kept.backend, who="anna", why="enough", by_person=True)
    with pytest.raises(AirflowFailException, match="Clear the task"):
        operator().execute(surface.context(try_number=2, max_tries=1))


def test_finished_training_is_not_run_again(surface: Any) -> None:
    """A retry of a task whose training has succeeded returns its summary at once."""
    deferred(operator(), surface.context(max_tries=1))
    from dataclasses import replace

    from airflow_spot.rundir import record

    loaded = record.load(surface.store())
    done = Result(outcome="SUCCEEDED", message="done", generation=1, summary={"steps": 9})
    record.save(surface.store(), replace(loaded.record, result=done), loaded.etag)
    assert operator().execute(surface.context(try_number=2, max_tries=1)) == {"steps": 9}


def test_mapped_task_serializes_and_unmaps() -> None:
    """Tiers and policy of a mapped task are plain values in the serialized DAG, and work when it is unmapped."""
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("dag", schedule=None) as dag:
        mapped = SpotTrainingOperator.partial(
            task_id="trial", job_definition="train", tiers=[Tier.spot("spot")], policy=SlackRatio()
        ).expand(command=[["a"], ["b"]])
    text = json.dumps(DagSerialization.to_dict(dag))
    assert '"job_queue": "spot"' in text
    assert mapped.unmap({"command": ["a"]}).training_spec().tiers == (Tier.spot("spot"),)


def test_mapped_task_refuses_foreign_arguments() -> None:
    """partial() refuses what the constructor refuses."""
    with pytest.raises(ConfigurationError, match="use `tiers`"):
        SpotTrainingOperator.partial(task_id="trial", job_queue="spot")


def test_a_run_root_that_cannot_be_written_fails_the_task(surface: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A denied run root, or a bucket that is not there: no retry, and one sentence that says where to look."""

    def denied(*_: object) -> str:
        raise StoreDenied("s3:PutObject is denied")

    monkeypatch.setattr(surface.root.__class__, "create", denied)
    with pytest.raises(AirflowFailException, match=r"memory://surface/dag/run/train/-1 cannot be used.*run_root="):
        operator().execute(surface.context())
    assert surface.jobs() == []


def test_an_endpoint_that_gives_no_answer_is_retried(surface: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer from the store: the task's own retries may try again, with the endpoint in the sentence."""

    def silent(*_: object, **__: object) -> None:
        raise StoreUnavailable("no answer within 30 s")

    monkeypatch.setattr(surface.root.__class__, "get", silent)
    with pytest.raises(AirflowException, match=r"endpoint \(AWS's own in eu-west-1\)") as caught:
        operator().execute(surface.context())
    assert not isinstance(caught.value, AirflowFailException)


def test_a_set_up_that_broke_under_a_running_job_is_adopted(surface: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue was disabled meanwhile: the retry waits for the job that runs, and warns."""
    deferred(operator(), surface.context()).trigger._advance()
    assert len(surface.jobs()) == 1

    def refused(*_: object) -> list[str]:
        raise ConfigurationError("job queue 'spot' is DISABLED")

    monkeypatch.setattr(surface.kept.backend, "preflight", refused)
    deferred(operator(), surface.context(try_number=2))
    assert surface.record().try_number == 2


def test_a_kill_while_execute_opens_stops_what_was_opened(surface: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """on_kill comes before the record is opened: what opening undid is stopped again."""
    task = operator()
    true = surface.kept.backend.preflight

    def killed(*arguments: object) -> list[str]:
        task.on_kill()
        return true(*arguments)

    monkeypatch.setattr(surface.kept.backend, "preflight", killed)
    monkeypatch.setattr("airflow_spot.session.connect_alone", lambda uri, **_: session.connect(uri))
    with pytest.raises(AirflowException, match="the training was stopped"):
        task.execute(surface.context())
    assert surface.record().desired.state == "stopped"


def test_a_worker_whose_loop_fails_stops_the_training(surface: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """deferrable=False and an error that nobody foresaw: nobody waits any more, so the training is stopped."""

    def broken(loop: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(engine, "advance", broken)
    monkeypatch.setattr("airflow_spot.session.connect_alone", lambda uri, **_: session.connect(uri))
    with pytest.raises(RuntimeError, match="a bug"):
        operator(deferrable=False).execute(surface.context())
    assert surface.record().desired.state == "stopped"


def test_a_stop_works_by_job_id_while_the_store_is_silent(surface: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store gives no answer: the jobs that were known are ended by their ids, and the risk is said."""
    from airflow_spot.stopping import stop_for

    deferred(operator(), surface.context()).trigger._advance()
    known = surface.record()

    def silent(*_: object, **__: object) -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(surface.root.__class__, "get", silent)
    here = session.connect("memory://surface/dag/run/train/-1")
    report = stop_for(here, owner=known.owner, try_number=1, who="x", why="y", known=known)
    assert (report.stopped, list(report.terminated)) == (False, surface.jobs())
    assert "gives no answer" in report.why
