"""The trainer's face, outside of a training run and beside a real channel."""

from __future__ import annotations

import math
import threading
import warnings

import pytest

from airflow_spot.agent import Detached, attach, trainer
from airflow_spot.agent.channel import Channel
from airflow_spot.errors import ConfigurationError, StoreDenied, StoreUnavailable


class Scripted:
    """Answers a trainer as told, and keeps what it said."""

    def __init__(self) -> None:
        self.requests = []
        self.reply = {"should_save": False, "stopping": False, "resume_dir": None, "resume_step": 0}
        self.raises = None
        self.heard = threading.Condition()

    def handle(self, client, request):
        with self.heard:
            self.requests.append(request)
            self.heard.notify_all()
        if self.raises and request["op"] == "save":
            raise self.raises
        return self.reply

    def until(self, what):
        with self.heard:
            assert self.heard.wait_for(lambda: any(what(request) for request in self.requests), 5)


@pytest.fixture
def scripted():
    return Scripted()


@pytest.fixture
def run(scripted, monkeypatch):
    channel = Channel(scripted.handle, lambda client: None)
    found = trainer.Attached(channel.path)
    yield found
    found._lost = True
    channel.close()


def test_outside_a_training_run_it_warns_once_and_does_nothing(monkeypatch, tmp_path):
    """The script works on a laptop."""
    monkeypatch.delenv(trainer.SOCKET, raising=False)
    monkeypatch.setattr(trainer, "_current", None)
    with pytest.warns(UserWarning, match="not in a training run"):
        found = attach()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert attach() is found
    assert isinstance(found, Detached)
    found.progress(step=1)
    found.save(tmp_path, step=1)
    found.finish(metrics={"loss": 1.0}, output=tmp_path)
    assert (found.resume_dir, found.resume_step, found.should_save, found.stopping) == (None, 0, False, False)


def test_progress_is_sent_in_the_background(run, scripted):
    """The last step arrives without another call."""
    for step in range(1, 1000):
        run.progress(step=step, total_steps=2000)
    scripted.until(lambda request: request.get("progress") == [999, 2000])


def test_what_the_agent_wants_becomes_visible(run, scripted):
    """stopping and should_save follow the agent's answers."""
    scripted.reply = {**scripted.reply, "stopping": True, "should_save": True}
    seen = len(scripted.requests)
    scripted.until(lambda request: len(scripted.requests) > seen + 1)
    assert (run.stopping, run.should_save) == (True, True)


def test_a_failed_save_is_raised(run, scripted, tmp_path):
    """As the error it was, with its sentence."""
    scripted.raises = StoreDenied("the earlier save failed: 403")
    with pytest.raises(StoreDenied, match="403"):
        run.save(tmp_path, step=1)


def test_an_agent_that_is_gone_stops_the_trainer(scripted, tmp_path):
    """Nothing can be saved any more: say so, and stop."""
    channel = Channel(scripted.handle, lambda client: None)
    found = trainer.Attached(channel.path)
    channel.close()
    found._wire._socket.close()
    found._wire._file.close()
    with pytest.raises(StoreUnavailable, match="agent is gone"):
        found.save(tmp_path, step=1)
    assert found.stopping


def test_any_thread_may_save(run, scripted, tmp_path):
    """Requests of several threads do not mix."""
    threads = [threading.Thread(target=run.save, args=(tmp_path,), kwargs={"step": step}) for step in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {request["step"] for request in scripted.requests if request["op"] == "save"} == set(range(8))


class Scalar:
    def item(self):
        return 0.25


def test_metrics_become_plain_json(run, scripted):
    """Scalars of other libraries are numbers, and what JSON has no word for is null."""
    run.finish(metrics={"loss": Scalar(), "bad": math.nan, "curve": [1, math.inf]})
    scripted.until(
        lambda request: request.get("metrics") == {"loss": 0.25, "bad": None, "curve": [1, None]},
    )


def test_too_many_metrics_are_refused(run):
    """With the limit, and where to put the rest."""
    with pytest.raises(ConfigurationError, match="at most 4096"):
        run.finish(metrics={"curve": list(range(5000))})
