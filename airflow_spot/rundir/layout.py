"""Where each object of a training run lies. Pure: names in, names out."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from airflow_spot.errors import UnsafePath

CONTRACT = 1
RECORD = "run.json"
OWNER = "owner.json"
REQUESTS = "requests/"
ATTEMPTS = "attempts/"
CHECKPOINTS = "checkpoints/"
ARTIFACTS = "artifacts/"
MANIFEST = "manifest.json"

_UNSAFE = re.compile(r"[^A-Za-z0-9._=+-]+")
_CHECKPOINT = re.compile(r"(\d{12})-a(\d{4,9})-([0-9a-f]{4,32})")
_MAX_NAME = 512


def run_key(*, dag_id: str, run_id: str, task_id: str, map_index: int = -1, given: str | None = None) -> str:
    """Return the key of a training run below the run root.

    :param given: the operator's ``run_key=``; it replaces DAG, run and task. The map index is always appended.
    """
    parts = [part for part in given.split("/") if part] if given else [dag_id, run_id, task_id]
    if not parts:
        raise UnsafePath(f"run_key={given!r} names nothing; give letters and digits", given=given)
    return "/".join([*map(_safe, parts), str(map_index)])


def _safe(part: str) -> str:
    """Replace what object stores and shells trip over; a short hash keeps replaced names apart."""
    clean = _UNSAFE.sub("_", part)[:150]
    if clean == part and clean.strip("."):
        return part
    return f"{clean.strip('.') or '_'}-{hashlib.sha256(part.encode()).hexdigest()[:8]}"


def attempt_name(number: int) -> str:
    """Return ``a0003`` for attempt 3."""
    return f"a{number:04d}"


def attempt_dir(number: int) -> str:
    """Return the prefix of one attempt, with its slash."""
    return f"{ATTEMPTS}{attempt_name(number)}/"


def claim_key(number: int, incarnation: int) -> str:
    """Return where the given incarnation of an attempt's agent claims it."""
    return f"{attempt_dir(number)}claim-{incarnation}.json"


def end_key(number: int, incarnation: int) -> str:
    """Return where the given incarnation of an attempt's agent says its last word."""
    return f"{attempt_dir(number)}end-{incarnation}.json"


def heartbeat_key(number: int) -> str:
    """Return where an attempt's agent reports progress."""
    return f"{attempt_dir(number)}heartbeat.json"


def outcome_key(number: int) -> str:
    """Return where the Airflow side keeps an attempt that left the record."""
    return f"{attempt_dir(number)}outcome.json"


def artifacts_dir(number: int) -> str:
    """Return the prefix of what an attempt produced, with its slash."""
    return f"{ARTIFACTS}{attempt_name(number)}/"


class CheckpointName(NamedTuple):
    """The parts of a checkpoint's id."""

    step: int
    attempt: int
    nonce: str


def checkpoint_id(step: int, attempt: int, nonce: str) -> str:
    """Return an id that sorts by step; the nonce keeps a prefix from being used twice."""
    return f"{step:012d}-{attempt_name(attempt)}-{nonce}"


def parse_checkpoint_id(text: str) -> CheckpointName | None:
    """Return the parts of an id, or None where the text is not one."""
    match = _CHECKPOINT.fullmatch(text)
    return CheckpointName(int(match[1]), int(match[2]), match[3]) if match else None


def manifest_key(checkpoint: str) -> str:
    """Return where a checkpoint's manifest lies; the checkpoint exists when it does."""
    return f"{CHECKPOINTS}{checkpoint}/{MANIFEST}"


def data_key(checkpoint: str, name: str) -> str:
    """Return where a file of a checkpoint lies."""
    return f"{CHECKPOINTS}{checkpoint}/data/{safe_name(name)}"


def safe_name(name: str) -> str:
    """Return a relative file name unchanged, or refuse it.

    :raises UnsafePath: absolute, with ``..``, empty parts, backslashes or control characters, not UTF-8, or longer
        than 512 bytes.
    """
    parts = name.split("/")
    if (
        not 0 < len(name.encode(errors="surrogatepass")) <= _MAX_NAME
        or any(char in "\\\x7f" or ord(char) < 32 or "\ud800" <= char <= "\udfff" for char in name)
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise UnsafePath(f"file name {name[:80]!r} is not a plain relative path; nothing was written", name=name)
    return name
