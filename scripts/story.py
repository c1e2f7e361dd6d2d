"""What happens in a training run, told as it happens: the difference of two looks at it, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from airflow_spot.cli.facts import Beats, plain
from airflow_spot.durations import words
from airflow_spot.rundir.values import Attempt, AttemptState, Heartbeat, Record

PATIENCE_SECONDS = 4.0
"""A job that is queued for longer is worth a sentence."""


@dataclass(slots=True)
class Story:
    """Tells each thing once."""

    told: set[tuple[object, ...]] = field(default_factory=set)
    first_seen: dict[int, datetime] = field(default_factory=dict)

    def news(self, record: Record, beats: Beats, now: datetime) -> list[str]:
        """Return the sentences that this look adds."""
        lines = []
        for key, sentence in self._facts(record, beats, now):
            if key not in self.told:
                self.told.add(key)
                lines.append(sentence)
        return lines

    def _facts(self, record: Record, beats: Beats, now: datetime) -> Iterator[tuple[tuple[object, ...], str]]:
        if record.deadline is not None:
            yield ("deadline", record.deadline), f"the deadline is {record.deadline.astimezone():%H:%M:%S}"
        if record.promotion is not None:
            asked = record.promotion
            yield ("promotion", asked.at), f"{plain(asked.who)} asks for the promotion: {plain(asked.why)}"
        for attempt in record.attempts:
            beat = beats[attempt.number][0] if attempt.number in beats else None
            yield from self._of_attempt(attempt, beat, record, now)
        if record.result is not None:
            yield ("result",), f"{record.result.outcome}: {plain(record.result.message)}"

    def _of_attempt(
        self, attempt: Attempt, beat: Heartbeat | None, record: Record, now: datetime
    ) -> Iterator[tuple[tuple[object, ...], str]]:
        number, name = attempt.number, f"attempt {attempt.number}"
        if attempt.ref:
            yield (number, "submitted"), f"{name} submitted to {attempt.tier}: {plain(attempt.why)}"
        yield from self._of_waiting(attempt, record, now)
        if attempt.live_at is not None:
            begin = "from the beginning" if attempt.pin is None else f"from the checkpoint at step {_step(attempt.pin)}"
            yield (number, "live"), f"{name} trains on {attempt.tier}, {begin}"
        if beat is not None and beat.notice is not None:
            left = beat.notice.seconds_left
            to_act = "" if left is None else f", {words(left)} to act"
            yield (number, "notice"), f"{name} has a notice ({beat.notice.source}){to_act}"
        if attempt.state is AttemptState.ENDED and attempt.verdict is not None:
            lost, why = attempt.verdict.lost_steps, _first_clause(attempt.verdict.sentence)
            why += "" if lost is None else f"; {lost} steps lost"
            yield (number, "ended"), f"{name} ended, {attempt.verdict.outcome}: {why}"

    def _of_waiting(self, attempt: Attempt, record: Record, now: datetime) -> Iterator[tuple[tuple[object, ...], str]]:
        if attempt.state is not AttemptState.SUBMITTED or attempt.started_at is not None or record.promotion:
            return
        since = self.first_seen.setdefault(attempt.number, now)
        if attempt.market == "spot" and (now - since).total_seconds() >= PATIENCE_SECONDS:
            moves = f"; it moves at {record.promote_at.astimezone():%H:%M:%S}" if record.promote_at else ""
            yield (attempt.number, "waits"), f"no {attempt.tier} capacity: the training waits{moves}"


def _first_clause(sentence: str) -> str:
    """Return what a verdict says before it names machine and evidence; the table at the end has all of it."""
    return plain(sentence).partition(" (")[0].partition(". AWS says")[0]


def _step(checkpoint: str) -> int | str:
    number, _, _ = checkpoint.partition("-")
    return int(number) if number.isdigit() else checkpoint
