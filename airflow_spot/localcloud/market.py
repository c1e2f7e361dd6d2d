"""Markets: when capacity is there, how long a start takes, which hosts are lost and with what warning.

A script is TOML: one ``[[market]]`` per job queue or compute environment. All times are seconds. Jobs are numbered
by their starts on that market, from 1; a retry of a job is a new start::

    [[market]]
    queue = "spot"                # or compute_environment = "spot"
    hosts = 4                     # how many hosts there are; without it as many as maxvCpus allows
    runnable = 1                  # seconds in RUNNABLE at least
    starting = 1                  # seconds in STARTING
    detection = 1                 # seconds until Batch sees that a host is gone

    [[market.reclaim]]            # the spot host of job 1 is taken 12 s after its start, warned 4 s before
    job = 1                       # without it: of every job
    after = 12                    # or at = 60: every host that runs 60 s after the cloud began
    notice = 4                    # default 120, as on AWS; 0: none

    [[market.failure]]            # the host fails, whatever its market: never a warning
    job = 2
    after = 10

    [[market.drought]]            # no new host ...
    from = 60                     # ... between 60 and 120 s after the cloud began
    to = 120
    takes_running = true          # and those that run are reclaimed

    [[market.drought]]
    from_job = 3                  # ... for the third start and all later ones

    [[market.slow_start]]
    job = 1
    runnable = 20
    starting = 40

    [market.trace]                # recorded availability in place of a script
    file = "aws-2023-02-15.json"  # relative to the script
    zone = "us-west-2a_v100_1"
    start = 0                     # first probe
    seconds_per_probe = 1         # default: the trace's own gap
    notice = 120
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from airflow_spot.errors import ConfigurationError

AWS_NOTICE = 120.0
BUILT_IN = Path(__file__).with_name("markets")


class Cause(StrEnum):
    """Why a host is lost."""

    RECLAIM = "reclaim"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoss:
    """A host that goes away: that of one start or of every one (``after``), or all at one time (``at``).

    :param sigterm: seconds before the end at which the dying system sends SIGTERM; None: it does not.
    """

    cause: Cause
    job: int | None = None
    after: float | None = None
    at: float | None = None
    notice: float = 0.0
    sigterm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drought:
    """Time without new hosts, by the clock or from one start on."""

    since: float | None = None
    until: float | None = None
    from_job: int | None = None
    takes_running: bool = False
    notice: float = AWS_NOTICE

    def holds(self, seconds: float, starts: int) -> bool:
        """Return whether no host is to be had now.

        :param seconds: since the cloud began.
        :param starts: jobs that were started on this market so far.
        """
        if self.from_job is not None:
            return starts + 1 >= self.from_job
        return (self.since or 0.0) <= seconds < (float("inf") if self.until is None else self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStart:
    """A start, or every one, that takes its time."""

    job: int | None = None
    runnable: float = 0.0
    starting: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Recorded availability: one character per probe, ``1`` to be had, ``0`` not, ``?`` as before."""

    series: str
    gap: float
    start: int = 0
    notice: float = AWS_NOTICE

    def available(self, seconds: float) -> bool:
        """Return whether spot is to be had; the last probe stays true for ever."""
        index = min(self.start + int(seconds / self.gap), len(self.series) - 1)
        return self.series[: index + 1].rstrip("?")[-1:] != "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """The market of one queue or compute environment."""

    queue: str | None = None
    compute_environment: str | None = None
    hosts: int | None = None
    runnable: float | None = None
    starting: float | None = None
    detection: float | None = None
    losses: tuple[HostLoss, ...] = ()
    droughts: tuple[Drought, ...] = ()
    slow_starts: tuple[SlowStart, ...] = ()
    trace: Trace | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What the market belongs to."""
        return ("queue", self.queue) if self.queue else ("compute_environment", str(self.compute_environment))

    def has_hosts(self, seconds: float, starts: int, busy: int) -> bool:
        """Return whether one more host is to be had."""
        dry = any(drought.holds(seconds, starts) for drought in self.droughts)
        gone = self.trace is not None and not self.trace.available(seconds)
        return not (dry or gone or (self.hosts is not None and busy >= self.hosts))

    def takes_running(self, seconds: float, starts: int) -> float | None:
        """Return the notice with which every running host is reclaimed now; None: they stay."""
        if self.trace is not None and not self.trace.available(seconds):
            return self.trace.notice
        taking = [d.notice for d in self.droughts if d.takes_running and d.holds(seconds, starts)]
        return min(taking, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Markets:
    """All markets of a cloud; a queue or environment without one is calm."""

    markets: tuple[Market, ...] = field(default_factory=tuple)

    def of(self, queue: str, compute_environment: str) -> list[Market]:
        """Return the markets that a job of that queue on that environment is subject to."""
        keys = {("queue", queue), ("compute_environment", compute_environment)}
        return [market for market in self.markets if market.key in keys]


def load(path: Path | str) -> Markets:
    """Read a market script; a bare name such as ``reclaims`` is one of the built-in ones.

    :raises ConfigurationError: no such file, not TOML, or a key that is not known.
    """
    file = Path(path)
    if not file.exists() and (BUILT_IN / f"{file.name.removesuffix('.toml')}.toml").exists() and file.parent == Path():
        file = BUILT_IN / f"{file.name.removesuffix('.toml')}.toml"
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        names = ", ".join(sorted(each.stem for each in BUILT_IN.glob("*.toml")))
        raise ConfigurationError(
            f"market {str(path)!r} cannot be read ({error.strerror}); give a TOML file or one of: {names}"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"market {str(file)!r} is not TOML: {error}") from error
    return parse(table, base=file.parent)


def parse(table: dict[str, Any], *, base: Path | None = None) -> Markets:
    """Return the markets of a parsed script.

    :param base: where relative trace files are looked for.
    :raises ConfigurationError: an unknown key, or a value that cannot be.
    """
    _known(table, {"market"}, "the script")
    entries = table.get("market", [])
    if not isinstance(entries, list):
        raise ConfigurationError("market must be an array of tables; write [[market]], with two brackets")
    markets = tuple(_market(entry, base or Path()) for entry in entries)
    keys = [market.key for market in markets]
    if double := next((key for key in keys if keys.count(key) > 1), None):
        raise ConfigurationError(f"{double[0]} {double[1]!r} has two [[market]] tables; put all of it into one")
    return Markets(markets=markets)


_MARKET_KEYS = {
    "queue",
    "compute_environment",
    "hosts",
    "runnable",
    "starting",
    "detection",
    "reclaim",
    "failure",
    "drought",
    "slow_start",
    "trace",
}


def _market(entry: dict[str, Any], base: Path) -> Market:
    _known(entry, _MARKET_KEYS, "[[market]]")
    if ("queue" in entry) == ("compute_environment" in entry):
        raise ConfigurationError("[[market]] needs either queue or compute_environment, and not both")
    losses = [_loss(each, Cause.RECLAIM) for each in _tables(entry, "reclaim")]
    losses += [_loss(each, Cause.FAILURE) for each in _tables(entry, "failure")]
    return Market(
        queue=entry.get("queue"),
        compute_environment=entry.get("compute_environment"),
        hosts=_count(entry, "hosts", least=0),
        runnable=_seconds(entry, "runnable"),
        starting=_seconds(entry, "starting"),
        detection=_seconds(entry, "detection"),
        losses=tuple(losses),
        droughts=tuple(_drought(each) for each in _tables(entry, "drought")),
        slow_starts=tuple(_slow_start(each) for each in _tables(entry, "slow_start")),
        trace=_trace(entry["trace"], base) if "trace" in entry else None,
    )


def _loss(entry: dict[str, Any], cause: Cause) -> HostLoss:
    known = {"job", "after", "at"} | ({"notice", "sigterm"} if cause is Cause.RECLAIM else set())
    _known(entry, known, f"[[market.{cause}]]")
    if ("after" in entry) == ("at" in entry):
        raise ConfigurationError(f"[[market.{cause}]] needs either after (of a start) or at (of the cloud), not both")
    if "at" in entry and "job" in entry:
        raise ConfigurationError(f"[[market.{cause}]] with at takes every host; job goes with after")
    notice = _seconds(entry, "notice")
    return HostLoss(
        cause=cause,
        job=_count(entry, "job"),
        after=_seconds(entry, "after"),
        at=_seconds(entry, "at"),
        notice=(AWS_NOTICE if notice is None else notice) if cause is Cause.RECLAIM else 0.0,
        sigterm=_seconds(entry, "sigterm"),
    )


def _drought(entry: dict[str, Any]) -> Drought:
    _known(entry, {"from", "to", "from_job", "takes_running", "notice"}, "[[market.drought]]")
    if ("from_job" in entry) == ("from" in entry or "to" in entry):
        raise ConfigurationError("[[market.drought]] needs from and to (seconds), or from_job, and not both")
    notice = _seconds(entry, "notice")
    return Drought(
        since=_seconds(entry, "from"),
        until=_seconds(entry, "to"),
        from_job=_count(entry, "from_job"),
        takes_running=bool(entry.get("takes_running", False)),
        notice=AWS_NOTICE if notice is None else notice,
    )


def _slow_start(entry: dict[str, Any]) -> SlowStart:
    _known(entry, {"job", "runnable", "starting"}, "[[market.slow_start]]")
    return SlowStart(
        job=_count(entry, "job"),
        runnable=_seconds(entry, "runnable") or 0.0,
        starting=_seconds(entry, "starting") or 0.0,
    )


def _trace(entry: dict[str, Any], base: Path) -> Trace:
    _known(entry, {"file", "zone", "start", "seconds_per_probe", "notice"}, "[market.trace]")
    for key in ("file", "zone"):
        if key not in entry:
            raise ConfigurationError(f"[market.trace] needs {key}")
    file = base / str(entry["file"])
    try:
        recorded = json.loads(file.read_text(encoding="utf-8"))
        zones, gap = recorded["zones"], float(recorded["gap_seconds"])
    except OSError as error:
        raise ConfigurationError(f"trace {str(file)!r} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"trace {str(file)!r} is not a recorded trace: JSON with gap_seconds and zones"
        ) from error
    return _series(zones, entry, gap)


def _series(zones: dict[str, str], entry: dict[str, Any], gap: float) -> Trace:
    if entry["zone"] not in zones:
        raise ConfigurationError(f"the trace has no zone {entry['zone']!r}; it has: {', '.join(sorted(zones))}")
    series, start = str(zones[entry["zone"]]), _count(entry, "start", least=0) or 0
    if start >= len(series):
        raise ConfigurationError(f"start={start} is beyond the trace's last probe, {len(series) - 1}")
    spacing, notice = _seconds(entry, "seconds_per_probe"), _seconds(entry, "notice")
    if spacing == 0:
        raise ConfigurationError("seconds_per_probe=0: must be above 0")
    return Trace(series=series, gap=spacing or gap, start=start, notice=AWS_NOTICE if notice is None else notice)


def _known(entry: Any, keys: set[str], where: str) -> None:
    if not isinstance(entry, dict):
        raise ConfigurationError(f"{where} must be a table, not {entry!r}")
    if unknown := sorted(set(entry) - keys):
        raise ConfigurationError(f"{where} does not know {', '.join(unknown)}; it knows: {', '.join(sorted(keys))}")


def _tables(entry: dict[str, Any], key: str) -> list[dict[str, Any]]:
    tables = entry.get(key, [])
    if not isinstance(tables, list):
        raise ConfigurationError(f"{key} must be an array of tables; write [[market.{key}]], with two brackets")
    return tables


def _seconds(entry: dict[str, Any], key: str) -> float | None:
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigurationError(f"{key} = {value!r}: a number of seconds, not negative")
    return float(value)


def _count(entry: dict[str, Any], key: str, *, least: int = 1) -> int | None:
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{key} = {value!r}: a whole number from {least}")
    return value
