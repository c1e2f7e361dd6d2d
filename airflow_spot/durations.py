"""One grammar for durations and instants everywhere: arguments, templates, Variables, the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from airflow_spot.errors import ConfigurationError

_SHORT = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")
_ISO = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")


def duration(value: timedelta | float | str, *, name: str) -> timedelta:
    """Return a span from a timedelta, seconds, ``6h30m`` or ISO 8601 (``PT6H30M``).

    :param name: the argument's name, for the message.
    :raises ConfigurationError: anything else, or a negative span.
    """
    span = value if isinstance(value, timedelta) else _parse(value)
    if span is None or span < timedelta(0):
        raise ConfigurationError(
            f"{name}={value!r} is not a duration; give a timedelta, seconds, '6h30m' or 'PT6H30M', not negative"
        )
    return span


def _parse(value: float | str) -> timedelta | None:
    text = str(value).strip()
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        pass
    if (match := _SHORT.fullmatch(text)) and any(match.groups()):
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if (match := _ISO.fullmatch(text)) and any(match.groups()):
        weeks, days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    return None


def instant_or_duration(value: timedelta | datetime | str, *, name: str) -> datetime | timedelta:
    """Return an instant (UTC) or a span, whichever the value is.

    :raises ConfigurationError: neither, or an instant without a time zone.
    """
    if isinstance(value, timedelta):
        return duration(value, name=name)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return duration(str(value), name=name)
    if value.tzinfo is None:
        raise ConfigurationError(f"{name}={value.isoformat()} has no time zone; write it with one, e.g. ...+00:00")
    return value.astimezone(UTC)


def as_text(value: datetime | timedelta) -> str:
    """Return an instant or a span as ISO 8601, which :func:`instant_or_duration` reads back."""
    return f"PT{value.total_seconds():g}S" if isinstance(value, timedelta) else value.isoformat()


def words(seconds: float) -> str:
    """Return a span as a person says it: ``6 h 30 min``, ``45 s``."""
    sign, left = ("-" if seconds < 0 else ""), round(abs(seconds))
    days, left = divmod(left, 86400)
    hours, left = divmod(left, 3600)
    minutes, left = divmod(left, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (left, "s")]
    shown = [f"{count} {unit}" for count, unit in parts if count][:2]
    return sign + (" ".join(shown) or "0 s")
