"""What an agent writes about itself, put together from what its parts know. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import airflow_spot
from airflow_spot.rundir.values import End, Heartbeat

if TYPE_CHECKING:
    from airflow_spot.agent.notices import Instance
    from airflow_spot.agent.progress import Pace
    from airflow_spot.agent.saver import Tally
    from airflow_spot.agent.session import Finished
    from airflow_spot.rundir.checkpoints import Restored
    from airflow_spot.rundir.values import Notice, Phase

_LONGEST_MESSAGE = 2000


class Author(NamedTuple):
    """Who writes."""

    attempt: int
    job: str
    incarnation: int


def heartbeat(
    author: Author,
    *,
    phase: Phase,
    sequence: int,
    now: float,
    began: float,
    trained_at: float | None,
    pace: Pace,
    tally: Tally,
    interval: float | None,
    pin: str | None,
    restored: Restored,
    instance: Instance,
    notice: Notice | None,
) -> Heartbeat:
    """Return a heartbeat; ``now``, ``began`` and ``trained_at`` are of one monotonic clock."""
    saved = tally.manifest
    return Heartbeat(
        attempt=author.attempt,
        job=author.job,
        incarnation=author.incarnation,
        phase=phase,
        sequence=sequence,
        elapsed_seconds=now - began,
        training_seconds=now - trained_at if trained_at is not None else 0.0,
        step=pace.step,
        total_steps=pace.total_steps,
        steps_per_second=pace.steps_per_second,
        seconds_since_step=pace.seconds_since_step,
        longest_step_seconds=pace.longest_step_seconds,
        committed_step=saved.step if saved else None,
        committed=saved.checkpoint if saved else None,
        seconds_since_commit=now - tally.committed_at if tally.committed_at is not None else None,
        saves=tally.saves,
        failed_saves=tally.failed,
        last_error=tally.last_error,
        save_seconds=tally.seconds,
        save_interval_seconds=interval,
        pin=pin,
        restored=restored.checkpoint,
        restored_step=restored.step if restored.checkpoint else None,
        restore_seconds=restored.seconds if restored.checkpoint else None,
        bad=restored.bad,
        market=instance.market,
        instance=instance.instance,
        instance_type=instance.instance_type,
        zone=instance.zone,
        notice=notice,
        agent_version=airflow_spot.__version__,
    )


def end(
    author: Author,
    *,
    exit_code: int,
    completed: bool,
    interrupted: bool,
    reason: str,
    message: str,
    pace: Pace,
    tally: Tally,
    restored: Restored,
    finished: Finished | None,
    artifacts: str | None,
    notice: Notice | None,
) -> End:
    """Return the last word."""
    return End(
        attempt=author.attempt,
        job=author.job,
        incarnation=author.incarnation,
        exit_code=exit_code,
        interrupted=interrupted,
        completed=completed,
        reason=reason,
        message=message[:_LONGEST_MESSAGE],
        final_step=pace.step,
        total_steps=pace.total_steps,
        new_steps=max(0, pace.step - restored.step) if pace.step is not None else None,
        committed=tally.manifest.checkpoint if tally.manifest else restored.checkpoint,
        metrics=finished.metrics if finished else {},
        artifacts=artifacts,
        bad=restored.bad,
        notice=notice,
    )
