"""What keeps the demo from starting is said in one sentence; what happens is told once."""

from __future__ import annotations

import shutil
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import demo
import pytest
from processes import StartError
from story import Story

from airflow_spot.rundir.values import (
    Attempt,
    AttemptState,
    Heartbeat,
    Notice,
    Owner,
    Phase,
    Record,
    Verdict,
)

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def test_port_in_use(tmp_path: Path) -> None:
    """A port that was asked for and is in use is refused with what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"port {port} is in use; end what listens there, or leave --port out"):
            demo.precheck(tmp_path / "state", port=port)


def test_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is met with what is free and what is needed."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 5 * 1024**2))

    with pytest.raises(StartError, match=r"only 5 MB are free in .*; the demo needs 500 MB"):
        demo.precheck(tmp_path / "state", port=None)


def test_second_demo(tmp_path: Path) -> None:
    """Two demos in one directory are refused; what an earlier one left is cleared away."""
    (tmp_path / "state" / "airflow").mkdir(parents=True)
    (tmp_path / "state" / "cloud.log").touch()
    with demo.own_directory(tmp_path / "state") as state:
        assert [entry.name for entry in state.iterdir()] == ["lock"]
        with pytest.raises(StartError, match="another demo runs in"), demo.own_directory(state):
            pass


def record(*attempts: Attempt) -> Record:
    owner = Owner(deployment="local", dag_id="d", run_id="r", task_id="train")
    return Record(run_key="d/r/train/-1", owner=owner, spec={}, attempts=attempts)


def attempt(state: AttemptState) -> Attempt:
    return Attempt(number=1, generation=1, tier="spot", market="spot", state=state, ref="job-1", why="no deadline")


def test_story_tells_each_thing_once() -> None:
    """A look that shows nothing new adds no sentence."""
    story, seen = Story(), record(attempt(AttemptState.SUBMITTED))

    assert story.news(seen, {}, NOW) == ["attempt 1 submitted to spot: no deadline"]
    assert story.news(seen, {}, NOW) == []


def test_story_of_a_reclaim() -> None:
    """Going live, the notice and the end are told with their numbers."""
    pin = "000000000120-a0001-abcd"
    live = replace(attempt(AttemptState.LIVE), number=2, live_at=NOW, pin=pin)
    notice = Notice(source="spot", seconds_left=4.0)
    beat = Heartbeat(attempt=2, job="job-2", incarnation=1, phase=Phase.SAVING, notice=notice)
    verdict = Verdict(outcome="RECLAIMED", sentence="AWS took the machine (i-0, m5.large). AWS says: 'x'", lost_steps=3)
    ended = replace(live, state=AttemptState.ENDED, verdict=verdict)
    story = Story()

    assert story.news(record(live), {2: (beat, NOW)}, NOW) == [
        "attempt 2 submitted to spot: no deadline",
        "attempt 2 trains on spot, from the checkpoint at step 120",
        "attempt 2 has a notice (spot), 4 s to act",
    ]
    assert story.news(record(ended), {}, NOW) == ["attempt 2 ended, RECLAIMED: AWS took the machine; 3 steps lost"]


def test_story_of_the_deadline() -> None:
    """The deadline is told, and again when it has changed."""
    story, seen = Story(), replace(record(), deadline=NOW)

    assert story.news(seen, {}, NOW) == [f"the deadline is {NOW.astimezone():%H:%M:%S}"]
    assert story.news(seen, {}, NOW) == []
    assert len(story.news(replace(seen, deadline=NOW + timedelta(hours=1)), {}, NOW)) == 1


def test_story_of_a_drought() -> None:
    """A spot job that stays queued is worth a sentence after a while, with the time of the move."""
    waiting = replace(record(attempt(AttemptState.SUBMITTED)), promote_at=NOW + timedelta(seconds=30))
    story = Story()
    story.news(waiting, {}, NOW)

    moves = (NOW + timedelta(seconds=30)).astimezone()
    assert story.news(waiting, {}, NOW + timedelta(seconds=5)) == [
        f"no spot capacity: the training waits; it moves at {moves:%H:%M:%S}"
    ]
