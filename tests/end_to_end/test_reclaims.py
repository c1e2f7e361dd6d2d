"""What machines and processes may do to a training: it ends with the very same weights."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import Run


def test_a_reclaim_leaves_the_weights_as_they_would_have_been(training: Run, reference: dict[str, Any]) -> None:
    """After a reclaim with a notice the training ends with the weights of an undisturbed one, and one reclaim."""
    training.open()
    training.call()
    live = training.live(1, committed=2)
    training.cloud.reclaim(str(live.ref), notice=4.0)
    result = training.finish()
    training.check_model(result, reference)
    assert training.record.counters.reclaims == 1, training.said
    assert training.record.attempts[0].verdict.outcome == "RECLAIMED", training.said


def test_a_reclaim_while_the_checkpoint_is_restored_costs_no_checkpoint(
    training: Run, reference: dict[str, Any]
) -> None:
    """The second attempt loses its machine the moment it goes live: the third goes on from the same checkpoint."""
    training.open()
    training.call()
    training.cloud.reclaim(str(training.live(1, committed=2).ref))
    training.cloud.reclaim(str(training.live(2).ref))
    result = training.finish()
    training.check_model(result, reference)
    _, second, third = training.record.attempts
    assert second.pin is not None, training.said
    assert third.pin == second.pin, training.said
    assert training.record.counters.reclaims == 2, training.said


def test_a_killed_agent_costs_one_attempt(training: Run, reference: dict[str, Any]) -> None:
    """SIGKILL of the agent ends the job, the trainer dies with it, and the next attempt resumes."""
    training.open()
    training.call()
    training.live(1, committed=2)
    os.kill(training.agent(1), signal.SIGKILL)
    result = training.finish()
    training.check_model(result, reference)
    assert len(training.jobs()) == 2, training.said


def test_a_killed_trainer_is_a_failure_that_the_next_try_resumes(training: Run, reference: dict[str, Any]) -> None:
    """SIGKILL of the trainer is retryable by the task; the next try goes on and ends with the same weights."""
    training.open(max_tries=1)
    training.call()
    training.live(1, committed=2)
    os.kill(training.trainer(1), signal.SIGKILL)
    result = training.finish()
    assert result.retryable, training.said
    training.open(try_number=2, max_tries=1)
    training.call(try_number=2)
    training.wait(lambda rec: rec.result is not None and rec.result.outcome == "SUCCEEDED", "success")
    training.check_model(training.finish(), reference)


def test_two_callers_are_as_good_as_one(training: Run, reference: dict[str, Any]) -> None:
    """Two triggers of the same training run at once submit each attempt once."""
    training.open()
    training.call()
    training.call()
    training.cloud.reclaim(str(training.live(1, committed=1).ref))
    training.call()
    training.check_model(training.finish(), reference)
    assert len(training.jobs()) == 2, training.said


def test_a_store_that_is_away_for_a_while_stops_nothing(training: Run, reference: dict[str, Any]) -> None:
    """While the store answers 503 the training goes on; what it saved comes in afterwards."""
    training.open(pace=0.12)
    caller = training.call()
    training.live(1, committed=1)
    training.cloud.store_down = True
    time.sleep(4)
    training.cloud.store_down = False
    training.check_model(training.finish(), reference)
    assert caller.errors
    assert len(training.jobs()) == 1, training.said
