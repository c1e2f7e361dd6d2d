"""Training runs as tables for a terminal. Pure functions from values to rich renderables; nothing is read here.

``now`` and ``zone`` are arguments, so that the same record always gives the same picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_spot.cli import facts
from airflow_spot.cli.facts import Beats, plain
from airflow_spot.durations import words
from airflow_spot.rundir.values import Attempt, AttemptState, Record

_STALE_SECONDS = 15 * 60.0
_FEW_CENTS = 0.1
_GOOD = frozenset({"succeeded", "training", "saving"})
_BAD = frozenset({"user error", "out of memory", "misconfigured", "never fits", "stalled", "timed out", "incomplete"})


def training_run(
    record: Record, beats: Beats, now: datetime, *, uri: str = "", zone: tzinfo | None = UTC
) -> RenderableType:
    """Return all of a training run: where it stands, deadline and slack, cost, and a table of its attempts.

    :param beats: per attempt number, its last heartbeat and when the store received it.
    :param zone: for times of day; None is the machine's own.
    """
    parts: list[RenderableType] = [title(record, uri=uri), facts_table(record, beats, now, zone=zone)]
    if record.attempts:
        parts.append(attempts_table(record, beats, now))
    if record.result is not None:
        parts.append(Text(closing_line(record, zone=zone), style="bold"))
    return Group(*parts)


def title(record: Record, *, uri: str = "") -> Text:
    """Return the training run's name, and where its directory lies."""
    owner = record.owner
    index = "" if owner.map_index < 0 else f"[{owner.map_index}]"
    text = Text(plain(f"{owner.dag_id} · {owner.run_id} · {owner.task_id}{index}"), style="bold")
    if uri:
        text.append(f"\n{plain(uri)}", style="dim")
    return text


def facts_table(record: Record, beats: Beats, now: datetime, *, zone: tzinfo | None = UTC) -> Table:
    """Return what holds for the whole training run, a line each; lines with nothing to say are left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    lines = {
        "now": _standing(record),
        "progress": _progress(record, beats, now),
        "deadline": _deadline(record, beats, now, zone),
        "asked for": _promotion(record, now, zone),
        "so far": _counted(record),
        "cost": _cost(record, now),
        "because": Text(plain(record.why)) if record.result is None else Text(),
    }
    for label, text in lines.items():
        if text.plain:
            table.add_row(label, text)
    return table


def attempts_table(record: Record, beats: Beats, now: datetime) -> Table:
    """Return the attempts, oldest first: tier, state, time, steps, checkpoint, cost, and why each ended, in words."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=False)
    for name, justify in (("#", "right"), ("tier", "left"), ("state", "left"), ("lasted", "right"), ("step", "right")):
        table.add_column(name, justify=justify, no_wrap=name != "state")  # type: ignore[arg-type]  # literals above
    table.add_column("saved", justify="right", no_wrap=True)
    table.add_column("lost", justify="right", no_wrap=True)
    table.add_column("cost", justify="right", no_wrap=True)
    table.add_column("why", ratio=1)
    for attempt in record.attempts:
        table.add_row(*_attempt_row(attempt, record, beats, now))
    return table


def _attempt_row(attempt: Attempt, record: Record, beats: Beats, now: datetime) -> list[Text]:
    beat = beats[attempt.number][0] if attempt.number in beats else None
    state = facts.state_words(attempt, beats)
    seconds = facts.seconds_of(attempt, now)
    usd = facts.cost_of(attempt, record, now)
    lost = attempt.verdict.lost_steps if attempt.verdict else None
    return [
        Text(str(attempt.number)),
        Text(plain(attempt.tier)),
        Text(state, style=_style(state, attempt)),
        Text("" if seconds is None else words(seconds)),
        Text(_number(beat.step if beat and beat.step is not None else attempt.steps)),
        Text(_number(beat.committed_step if beat and beat.committed_step is not None else attempt.committed_step)),
        Text(_number(lost)),
        Text("" if usd is None or seconds is None else money(usd)),
        Text(facts.why_words(attempt, beats)),
    ]


def _style(state: str, attempt: Attempt) -> str:
    if state in _GOOD:
        return "green"
    if state in _BAD:
        return "red"
    if attempt.state is AttemptState.ENDED or attempt.state is AttemptState.CLOSING:
        return "yellow"
    return ""


def _standing(record: Record) -> Text:
    text = Text(facts.standing(record))
    if record.result is not None:
        text.stylize("green" if record.result.outcome == "SUCCEEDED" else "red")
    if record.generation > 1:
        text.append(f" (cleared {_times(record.generation - 1)})", style="dim")
    return text


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _progress(record: Record, beats: Beats, now: datetime) -> Text:
    at = facts.progress(record, beats)
    parts = []
    if at.step is not None:
        share = f" of {at.total_steps} ({at.step / at.total_steps:.0%})" if at.total_steps else ""
        parts.append(f"step {at.step}{share}")
    if at.committed_step is not None:
        parts.append(f"checkpoint at {at.committed_step}")
    if at.steps_per_second and record.result is None:
        parts.append(f"{at.steps_per_second:.3g} steps/s")
    text = Text(" · ".join(parts))
    current = facts.live(record)
    if current is not None and current.number in beats:
        age = max(0.0, (now - beats[current.number][1]).total_seconds())
        text.append(f"{' · ' if parts else ''}heartbeat {words(age)} ago", style="red" if age > _STALE_SECONDS else "")
    return text


def _deadline(record: Record, beats: Beats, now: datetime, zone: tzinfo | None) -> Text:
    if record.deadline is None:
        return Text()
    text = Text(clock(record.deadline, now, zone))
    if record.result is not None:
        return text
    text.append(f" ({distance(record.deadline, now)})")
    slack = facts.slack_seconds(record, beats, now)
    if slack is not None:
        text.append(f" · slack {words(slack)}", style="" if slack > 0 else "red")
    current = facts.live(record)
    if record.promote_at is not None and (current is None or current.market == "spot"):
        text.append(f" · promotes at {clock(record.promote_at, now, zone)}")
    return text


def _promotion(record: Record, now: datetime, zone: tzinfo | None) -> Text:
    asked = record.promotion
    if asked is None or record.result is not None:
        return Text()
    tier = f" to {asked.tier}" if asked.tier else ""
    why = f": {asked.why}" if asked.why else ""
    return Text(plain(f"promotion{tier} by {asked.who} at {clock(asked.at, now, zone)}{why}"))


def _counted(record: Record) -> Text:
    counters = record.counters
    return Text(
        " · ".join(
            [
                count(record.next_attempt - 1, "attempt"),
                count(counters.total_reclaims, "reclaim"),
                f"{count(counters.lost_steps, 'step')} lost",
                count(counters.promotions, "promotion"),
            ]
        )
    )


def _cost(record: Record, now: datetime) -> Text:
    spent = facts.cost(record, now)
    if not spent.seconds:
        return Text()
    amount = f"{spent.seconds / 3600:.2f} h of job time"
    if spent.usd is not None:
        amount = f"{money(spent.usd)} for {amount}"
    return Text(amount + (" so far" if spent.estimated else ""))


def closing_line(record: Record, *, also: Iterable[str] = (), zone: tzinfo | None = UTC) -> str:
    """Return one line on a training run that ended: reclaims, steps lost, promotion, deadline, cost.

    :param also: put before the cost, such as ``weights equal``.
    """
    counters = record.counters
    parts = [count(counters.total_reclaims, "reclaim"), f"{count(counters.lost_steps, 'step')} lost"]
    if (promoted := facts.promoted_at(record)) is not None:
        parts.append(f"promoted {promoted.astimezone(zone):%H:%M}")
    succeeded = record.result is not None and record.result.outcome == "SUCCEEDED"
    if succeeded and (early := facts.early(record)) is not None:
        seconds = early.total_seconds()
        parts.append(f"done {words(abs(seconds))} {'early' if seconds >= 0 else 'late'}")
    return " · ".join([*parts, *also, *_compared_cost(record)])


def _compared_cost(record: Record) -> list[str]:
    cost = record.result.summary.get("cost") if record.result else None
    if not isinstance(cost, Mapping) or not isinstance(usd := cost.get("usd"), (int, float)):
        return []
    instead = cost.get("on_demand_usd")
    return [money(usd) + (f" instead of {money(instead)}" if isinstance(instead, (int, float)) else "")]


def runs_table(rows: Iterable[Mapping[str, Any]], now: datetime, *, zone: tzinfo | None = UTC) -> Table:
    """Return the rows of ``runs`` (see :func:`airflow_spot.cli.facts.summary_row`)."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("training run", overflow="fold")
    table.add_column("began", no_wrap=True)
    for name in ("attempts", "reclaims", "step"):
        table.add_column(name, justify="right")
    table.add_column("deadline", no_wrap=True)
    table.add_column("stands", ratio=1)
    for row in rows:
        table.add_row(
            Text(plain(row["run_key"])),
            Text(_iso_clock(row["began"], now, zone)),
            *(Text(_number(row[name])) for name in ("attempts", "reclaims", "step")),
            Text(_iso_clock(row["deadline"], now, zone)),
            Text(plain(row["standing"])),
        )
    return table


def orphans_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return the rows of ``orphans``: jobs that nobody waits for, and why we say so."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("job", overflow="fold")
    table.add_column("status", no_wrap=True)
    table.add_column("training run", overflow="fold")
    table.add_column("attempt", justify="right")
    table.add_column("why it is listed", ratio=1)
    table.add_column("done", no_wrap=True)
    for row in rows:
        table.add_row(
            *(Text(plain(row[name])) for name in ("job", "status", "uri", "attempt", "why")),
            Text(plain(row.get("done") or "")),
        )
    return table


def clock(instant: datetime, now: datetime, zone: tzinfo | None = UTC) -> str:
    """Return a time of day, with its date where that is not today's."""
    there, today = instant.astimezone(zone), now.astimezone(zone)
    return f"{there:%H:%M:%S}" if there.date() == today.date() else f"{there:%Y-%m-%d %H:%M}"


def distance(instant: datetime, now: datetime) -> str:
    """Return ``in 25 min`` or ``25 min ago``."""
    seconds = (instant - now).total_seconds()
    return f"in {words(seconds)}" if seconds >= 0 else f"{words(-seconds)} ago"


def money(usd: float) -> str:
    """Return dollars: cents, and four digits below ten of them, for rehearsals cost little."""
    return f"${usd:.2f}" if usd >= _FEW_CENTS or usd == 0 else f"${usd:.4f}"


def count(number: int, noun: str) -> str:
    """Return ``1 reclaim`` or ``2 reclaims``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _iso_clock(value: str | None, now: datetime, zone: tzinfo | None) -> str:
    return "" if value is None else clock(datetime.fromisoformat(value), now, zone)
