"""The deadline watch: what it posts, when it fires, when it is skipped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_spot import session
from airflow_spot.core.model import Tier
from airflow_spot.core.spec import TrainingSpec
from airflow_spot.rundir import codec, record, requests
from airflow_spot.rundir.values import Attempt, AttemptState, Owner, Promotion, Record, Result
from airflow_spot.triggers.deadline import Decided, SpotDeadlineTrigger, Status, Watch

SPEC = TrainingSpec(
    job_definition="train",
    tiers=(Tier.spot("spot"), Tier.on_demand("on-demand")),
    expected_seconds=3600.0,
    poll_seconds=20.0,
)


@dataclass
class FakeTasks:
    """Airflow's answers."""

    found: dict[str, dict[int, str | None] | None] = field(default_factory=dict)
    pointers: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    def states(self, task_id: str) -> dict[int, str | None] | None:
        return self.found.get(task_id, {-1: "deferred"})

    def pointer(self, task_id: str, map_index: int) -> dict[str, Any] | None:
        return self.pointers.get((task_id, map_index))


class Watched:
    """Records of training runs under a watch."""

    def __init__(self, surface: Any) -> None:
        self.surface = surface
        self.tasks = FakeTasks()
        self.now = surface.kept.backend.now

    def watch(self, *task_ids: str, **changes: Any) -> Watch:
        arguments: dict[str, Any] = {
            "dag_id": "dag", "run_id": "run", "task_ids": task_ids or ("train",), "deadline": "PT10H",
            "began": self.began, "downstream_seconds": 600.0, "who": "sensor deadline", "run_root": None,
            "poll_seconds": 30.0, "tasks": self.tasks, "open_session": lambda uri, pointer: session.connect(uri),
        }  # fmt: skip
        return Watch(**arguments | changes)

    @property
    def began(self) -> Any:
        from datetime import UTC, datetime

        return datetime(2026, 1, 1, tzinfo=UTC)

    def put(self, task_id: str = "train", index: int = -1, **fields: Any) -> Record:
        """Write the record of a task."""
        spec = fields.pop("spec", SPEC)
        base = Record(
            run_key=f"dag/run/{task_id}/{index}",
            owner=Owner(deployment="test", dag_id="dag", run_id="run", task_id=task_id, map_index=index),
            spec=codec.encode(spec),
            began_at=self.began,
        )
        store = self.surface.store(task_id, index)
        loaded = record.load(store)
        if loaded is None:
            return record.create(store, replace(base, **fields)).record
        return record.save(store, replace(base, **fields), loaded.etag).record

    def requests(self, task_id: str = "train", index: int = -1) -> list[Any]:
        return requests.pending(self.surface.store(task_id, index), ())


@pytest.fixture
def watched(surface: Any) -> Watched:
    """A watch over the fake AWS."""
    return Watched(surface)


def live(number: int, tier: str, market: str, generation: int = 1) -> dict[str, Any]:
    attempt = Attempt(number=number, generation=generation, tier=tier, market=market, state=AttemptState.LIVE)
    return {"attempts": (attempt,), "last_live": number}


def test_deadline_is_posted_before_the_training_begins(watched: Watched) -> None:
    """At its start, with no record yet, the deadline is posted for generation 1, once, also by a restarted watch."""
    assert watched.watch().look() == 10.0
    assert watched.watch().look() == 10.0
    [request] = watched.requests()
    assert (request.kind, request.generation, request.downstream_seconds) == ("deadline", 1, 600.0)
    assert request.deadline == watched.began + timedelta(hours=10)


def test_waits_for_the_instant_that_the_loop_wrote(watched: Watched) -> None:
    """It looks at the training's own pace, and sooner when the instant is near."""
    watched.put(promote_at=watched.now() + timedelta(hours=1))
    assert watched.watch().look() == 20.0
    watched.put(promote_at=watched.now() + timedelta(seconds=7))
    assert watched.watch().look() == pytest.approx(7.0, abs=1.0)


def test_fires_at_the_instant(watched: Watched) -> None:
    """At promote_at it posts the promotion for that generation and has fired; a restart posts no second one."""
    watched.put(promote_at=watched.now() - timedelta(seconds=1), generation=2)
    for _ in range(2):
        decided = watched.watch().look()
        assert isinstance(decided, Decided)
        assert (decided.status, decided.runs) == (Status.FIRED, ("memory://surface/dag/run/train/-1",))
    [promotion] = [request for request in watched.requests() if request.kind == "promote"]
    assert (promotion.generation, promotion.who) == (2, "sensor deadline")


def test_fires_when_the_loop_moved_first(watched: Watched) -> None:
    """A standing promotion, or a live attempt on dependable capacity, is fired, and nothing is posted."""
    watched.put(promotion=Promotion(who="loop", why="", at=watched.now()))
    first = watched.watch().look()
    watched.put(**live(2, "on_demand", "on_demand"))
    second = watched.watch().look()
    assert [Status.FIRED, Status.FIRED] == [first.status, second.status]
    assert [request.kind for request in watched.requests()] == ["deadline"]


def test_dependable_first_choice_is_no_move(watched: Watched) -> None:
    """A training that prefers the reservation has not been promoted by being there."""
    spec = replace(SPEC, tiers=(Tier.reserved("reserved"), Tier.spot("spot"), Tier.on_demand("on-demand")))
    watched.put(spec=spec, **live(1, "reserved", "reserved"))
    assert watched.watch().look() == 20.0


@pytest.mark.parametrize(
    ("spec", "said"),
    [(replace(SPEC, expected_seconds=None), "expected_duration"), (replace(SPEC, tiers=(Tier.spot("s"),)), "not spot")],
)
def test_fails_where_no_deadline_can_be_kept(spec: TrainingSpec, said: str, watched: Watched) -> None:
    """Without expected_duration or a dependable tier the sensor fails, and says which is missing."""
    watched.put(spec=spec)
    decided = watched.watch().look()
    assert decided.status is Status.FAILED
    assert said in decided.message


def test_skipped_when_all_ended_or_never_began(watched: Watched) -> None:
    """A result before the instant, and a task that was skipped, leave nothing to promote."""
    watched.put(result=Result(outcome="SUCCEEDED", message="", generation=1))
    watched.tasks.found["other"] = {-1: "skipped"}
    assert watched.watch("train", "other").look().status is Status.SKIPPED


def test_never_begun_by_the_deadline_is_skipped(watched: Watched) -> None:
    """A training that has not begun at the deadline is not waited for."""
    watched.surface.batch.clock.advance(timedelta(hours=10))
    assert watched.watch().look().status is Status.SKIPPED


def test_times_out_an_hour_after_the_deadline(watched: Watched) -> None:
    """Neither ended nor promoted an hour after the deadline: the sensor gives up."""
    watched.put()
    watched.surface.batch.clock.advance(timedelta(hours=10, minutes=59))
    assert isinstance(watched.watch().look(), float)
    watched.surface.batch.clock.advance(timedelta(minutes=2))
    assert watched.watch().look().status is Status.TIMED_OUT


def test_new_generation_gets_its_own_deadline(watched: Watched) -> None:
    """After a Clear a duration counts from the Clear and is posted again; an instant stays what it is."""
    cleared = watched.began + timedelta(hours=4)
    watched.put(generation=2, began_at=cleared)
    watched.watch().look()
    assert [(each.generation, each.deadline) for each in watched.requests()] == [(2, cleared + timedelta(hours=10))]
    instant = watched.watch(deadline="2026-01-01T10:00:00+00:00")
    assert instant.instant(cleared) == watched.began + timedelta(hours=10)


def test_several_mapped_training_runs(watched: Watched) -> None:
    """Every instance is promoted at its own instant; the sensor waits for the last one that can still be promoted."""
    watched.tasks.found["trial"] = {0: "deferred", 1: "deferred", 2: "success"}
    watched.put("trial", 0, promote_at=watched.now() - timedelta(seconds=5))
    watched.put("trial", 1, promote_at=watched.now() + timedelta(hours=1))
    watched.put("trial", 2, result=Result(outcome="SUCCEEDED", message="", generation=1))
    assert isinstance(watched.watch("trial").look(), float)
    watched.surface.batch.clock.advance(timedelta(hours=2))
    decided = watched.watch("trial").look()
    assert decided.runs == ("memory://surface/dag/run/trial/0", "memory://surface/dag/run/trial/1")


def test_pointer_wins_over_the_key_rule(watched: Watched) -> None:
    """A training run with a key of its own is found by what its task pushed."""
    watched.tasks.pointers["train", -1] = {"uri": "memory://surface/models/final/-1", "aws_conn_id": "gpu"}
    watched.watch().look()
    assert len(requests.pending(watched.surface.root.at("models/final/-1"), ())) == 1


def test_training_run_of_another_owner_is_left_alone(watched: Watched) -> None:
    """A record that still belongs to yesterday's DAG run is not this one's: nothing is posted, nothing concluded."""
    watched.put(
        owner=Owner(deployment="test", dag_id="dag", run_id="yesterday", task_id="train"),
        result=Result(outcome="SUCCEEDED", message="", generation=1),
    )
    assert watched.watch().look() == 10.0
    assert watched.requests() == []


async def test_trigger_yields_the_decision(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trigger's only event is the decision, and it survives serialization."""
    from airflow_spot.triggers import deadline

    watched.put(promote_at=watched.now())
    monkeypatch.setattr(deadline, "AirflowTasks", lambda dag_id, run_id: watched.tasks)
    plain = {
        "dag_id": "dag", "run_id": "run", "task_ids": ["train"], "deadline": "PT10H",
        "began": watched.began.isoformat(), "downstream_seconds": 0.0, "who": "sensor deadline",
        "run_root": None, "poll_seconds": 30.0,
    }  # fmt: skip
    path, arguments = SpotDeadlineTrigger(watch=plain, aws_conn_id="gpu").serialize()
    assert path == "airflow_spot.triggers.deadline.SpotDeadlineTrigger"
    [event] = [event.payload async for event in SpotDeadlineTrigger(**arguments).run()]
    assert (event["status"], event["runs"]) == ("fired", ["memory://surface/dag/run/train/-1"])
