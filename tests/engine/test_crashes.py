"""One crash anywhere in a history: the caller dies before or after any one of its effects, and another goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from airflow_spot import engine
from airflow_spot.core.model import Tier
from airflow_spot.rundir import record
from airflow_spot.rundir.values import AttemptState

if TYPE_CHECKING:
    from conftest import Agent, World

LAST = 60
"""More effects than the history has; a crash that never came fails its test."""


class Died(BaseException):
    """kill -9: nothing catches it."""


@dataclass
class Crash:
    """Kills the caller at the nth effect, before it happens or after."""

    at: int
    after: bool
    count: int = 0
    names: list[str] = field(default_factory=list)

    def around(self, name: str, effect: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            self.names.append(name)
            if self.count == self.at and not self.after:
                raise Died
            answer = effect(*arguments, **named)
            if self.count == self.at:
                raise Died
            return answer

        return wrapped


class Agents:
    """Agents in all jobs that run: each obeys its own entry in the record, as the true one does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.known: dict[str, Agent] = {}
        self.trained: list[tuple[int, int]] = []
        self.reclaimed = False

    def tick(self) -> None:
        for job, status in self.world.jobs().items():
            if status == "RUNNING":
                self._act(job)

    def _act(self, job: str) -> None:
        detail = self.world.batch.describe_jobs(jobs=[job])["jobs"][0]
        number = next(int(e["value"]) for e in detail["container"]["environment"] if e["name"].endswith("_ATTEMPT"))
        entry = next((item for item in self.world.record.attempts if item.number == number), None)
        agent = self.known.get(job)
        if agent is None:
            agent = self.known[job] = self.world.agent(number)
            agent.job = job
            agent.claim()
        elif entry is None or entry.state in (AttemptState.ENDED, AttemptState.UNRESOLVED):
            self.world.batch.finish(job, 81)
        elif entry.state is AttemptState.CLOSING:
            agent.end(reason="closing", exit_code=143)
        elif entry.state is AttemptState.LIVE:
            self._train(agent, entry.pin)

    def _train(self, agent: Agent, pin: str | None) -> None:
        if not agent.step:
            agent.step = int(pin[:12]) if pin else 0
        step = agent.step + 20
        agent.commit(step)
        self.trained.append((agent.number, step))
        if step >= 100:
            agent.end(completed=True)
        elif step == 40 and not self.reclaimed:
            self.reclaimed = True
            self.world.batch.reclaim(agent.job)
            self.world.batch.drought("spot")


def play(world: World, crash: Crash, monkeypatch: pytest.MonkeyPatch) -> Agents:
    """One reclaim, then a drought, then a promotion by max_wait, then the end; the caller is replaced when it dies."""
    monkeypatch.setattr(engine.record, "save", crash.around("save", record.save))
    for name in ("submit", "terminate"):
        monkeypatch.setattr(world.backend, name, crash.around(name, getattr(world.backend, name)))
    world.open(tiers=(Tier.spot("spot", max_wait=20), Tier.on_demand("on-demand")), poll_seconds=5.0)
    agents, loop = Agents(world), world.loop()
    for _ in range(120):
        world.batch.advance(5)
        agents.tick()
        try:
            if isinstance(engine.advance(loop), engine.Finished):
                break
        except Died:
            loop = world.loop()
    return agents


def check(world: World, agents: Agents) -> None:
    """What must hold after any history."""
    world.batch.advance(90)
    result = world.record.result
    assert result is not None
    assert ("SUCCEEDED", 1) == (result.outcome, world.record.counters.total_reclaims)
    assert all(status in ("SUCCEEDED", "FAILED") for status in world.jobs().values())
    known = {item.ref for item in world.record.attempts}
    assert all(job in known or job not in agents.known for job in world.jobs()), "a job trained that nobody noted"
    steps = [step for _, step in agents.trained]
    assert steps == sorted(steps), "the line went back behind a committed checkpoint"
    assert 1 == sum(step >= 100 for step in steps)


def test_the_history_without_a_crash(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history that the others disturb: three attempts, the second never runs."""
    agents = play(world, Crash(at=LAST, after=False), monkeypatch)
    check(world, agents)
    assert [1, 3] == sorted({number for number, _ in agents.trained})


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 21))
def test_one_crash(world: World, monkeypatch: pytest.MonkeyPatch, at: int, after: bool) -> None:
    """Wherever the caller dies: one job at a time trains, nothing committed is lost, every job ends."""
    crash = Crash(at=at, after=after)
    agents = play(world, crash, monkeypatch)
    assert crash.count >= at, f"the history has only {crash.count} effects: {crash.names}"
    check(world, agents)
