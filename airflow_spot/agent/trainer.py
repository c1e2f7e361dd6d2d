"""The trainer's face of the agent: what a training script imports. Standard library only.

::

    from airflow_spot.agent import attach

    run = attach()
    state = load(run.resume_dir) if run.resume_dir else fresh()
    for state.step in range(state.step + 1, total + 1):
        train(state)
        run.progress(step=state.step, total_steps=total)
        if run.should_save:
            with tempfile.TemporaryDirectory() as scratch:
                write(state, scratch)
                run.save(scratch, step=state.step, total_steps=total)
        if run.stopping:
            sys.exit(0)
    run.finish(metrics={"loss": state.loss}, output="model/")

Every method may be called from any thread. Outside a training run :func:`attach` warns once and gives an object of
the same shape that does nothing, so that the script works on a laptop.

How it works
    A thread tells the agent the last step, and asks it what to do, four times a second: ``progress``, ``should_save``
    and ``stopping`` cost no system call. The other methods speak to the agent and block until it has answered.

What it does not do
    It installs no signal handler. Where the script has its own for SIGTERM, the agent forwards SIGTERM at once; where
    it has none, ``stopping`` becomes true first, and SIGTERM follows only when time runs out.
    With several processes (ranks) it does not make them agree: each sees ``stopping`` and ``should_save`` at a moment
    of its own. Let one rank read them and broadcast the answer.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import socket
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airflow_spot import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET = "AIRFLOW_SPOT_SOCKET"
POLL_SECONDS = 0.25
METRICS_BYTES = 4096
"""All of a task's XCom is kept below 8 KB."""


class TrainingRun(Protocol):
    """What :func:`attach` gives."""

    @property
    def resume_dir(self) -> Path | None:
        """Where the files of the checkpoint to continue from lie; None: begin from the beginning."""

    @property
    def resume_step(self) -> int:
        """The step of that checkpoint, or 0."""

    @property
    def should_save(self) -> bool:
        """Whether now is a good time to save: the interval has passed, or the end is near."""

    @property
    def stopping(self) -> bool:
        """Whether to save and exit: a notice has come, or the training moves elsewhere. Do not call ``finish`` then."""

    def save(self, directory: str | os.PathLike[str], *, step: int, total_steps: int | None = None) -> None:
        """Make a checkpoint of all files in a directory. The files may be changed or deleted once it returns.

        Blocks while they are linked or copied, not while they are uploaded.

        :raises ConfigurationError: no such directory, or nothing in it.
        :raises StoreError: an earlier save failed for good. It is said once.
        """

    def progress(self, *, step: int, total_steps: int | None = None) -> None:
        """Report a step. Cheap enough for every step."""

    def finish(self, *, metrics: Mapping[str, Any] | None = None, output: str | os.PathLike[str] | None = None) -> None:
        """Say that the training is complete.

        Without it, an exit with code 0 is complete too, unless the trainer was asked to stop.

        :param metrics: what the task returns, as JSON; at most 4 KB.
        :param output: directory of the model; it may be deleted once this returns.
        """


_lock = threading.Lock()
_current: TrainingRun | None = None


def attach() -> TrainingRun:
    """Return this process's training run; the same one each time. Blocks until the agent has answered.

    :raises StoreUnavailable: there was an agent, and it is gone.
    """
    global _current  # noqa: PLW0603 - one per process
    with _lock:
        if _current is None:
            path = os.environ.get(SOCKET)
            if path:
                _current = Attached(path)
            else:
                warnings.warn("not in a training run (no spot-agent): nothing is saved or resumed", stacklevel=2)
                _current = Detached()
        return _current


class Detached:
    """A training run outside of one: nothing to resume, nothing is saved, the script goes on."""

    resume_dir: Path | None = None
    resume_step = 0
    should_save = False
    stopping = False

    def save(self, directory: str | os.PathLike[str], *, step: int, total_steps: int | None = None) -> None:
        """Do nothing."""

    def progress(self, *, step: int, total_steps: int | None = None) -> None:
        """Do nothing."""

    def finish(self, *, metrics: Mapping[str, Any] | None = None, output: str | os.PathLike[str] | None = None) -> None:
        """Do nothing, but refuse what a training run would refuse."""
        _plain(metrics or {})
        if output is not None and not Path(output).is_dir():
            raise errors.ConfigurationError(f"output={str(output)!r} is no directory; give the one with the model")


class Attached:
    """A training run beside an agent.

    :param path: the agent's socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._owner = 0
        self._wire: _Wire | None = None
        self._step: tuple[int, int | None] | None = None
        self._sent: tuple[int, int | None] | None = None
        self._should_save = self._stopping = self._lost = False
        hello = self._ask({"op": "hello"})
        self._resume_dir = Path(hello["resume_dir"]) if hello.get("resume_dir") else None
        self._resume_step = int(hello.get("resume_step") or 0)
        atexit.register(self._flush)
        os.register_at_fork(after_in_child=self._forked)

    @property
    def resume_dir(self) -> Path | None:
        """See :class:`TrainingRun`."""
        return self._resume_dir

    @property
    def resume_step(self) -> int:
        """See :class:`TrainingRun`."""
        return self._resume_step

    @property
    def should_save(self) -> bool:
        """See :class:`TrainingRun`."""
        return self._should_save

    @property
    def stopping(self) -> bool:
        """See :class:`TrainingRun`."""
        return self._stopping

    def save(self, directory: str | os.PathLike[str], *, step: int, total_steps: int | None = None) -> None:
        """See :class:`TrainingRun`."""
        request = {
            "op": "save",
            "directory": str(Path(directory).absolute()),
            "step": int(step),
            "total_steps": total_steps if total_steps is None else int(total_steps),
            "world_size": _world_size(),
        }
        self._ask(request)

    def progress(self, *, step: int, total_steps: int | None = None) -> None:
        """See :class:`TrainingRun`."""
        self._step = (int(step), total_steps if total_steps is None else int(total_steps))

    def finish(self, *, metrics: Mapping[str, Any] | None = None, output: str | os.PathLike[str] | None = None) -> None:
        """See :class:`TrainingRun`."""
        where = str(Path(output).absolute()) if output is not None else None
        self._ask({"op": "finish", "metrics": _plain(metrics or {}), "output": where})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            if self._lost:
                raise errors.StoreUnavailable("the agent is gone; nothing can be saved any more, exit")
            if step := self._step:
                request = {"progress": step, **request}
            try:
                reply = self._connected().ask({**request, "handles_term": _handles_term()})
            except (OSError, ValueError) as error:
                self._lost = self._stopping = True
                raise errors.StoreUnavailable(f"the agent is gone ({error}); nothing can be saved any more") from error
            self._sent = step
            self._should_save, self._stopping = bool(reply.get("should_save")), bool(reply.get("stopping"))
        if kind := reply.get("error"):
            raise _error(str(kind), str(reply.get("message", "")))
        return reply

    def _connected(self) -> _Wire:
        """Return the connection of this very process: a forked one must not share its parent's."""
        if self._wire is None or self._owner != os.getpid():
            self._wire, self._owner = _Wire(self._path), os.getpid()
            threading.Thread(target=self._poll, args=(self._owner,), name="airflow-spot", daemon=True).start()
        return self._wire

    def _forked(self) -> None:
        """The thread that may hold the lock does not exist in a forked process."""
        self._lock = threading.RLock()

    def _poll(self, owner: int) -> None:
        pause = threading.Event()
        while not self._lost and owner == os.getpid():
            pause.wait(POLL_SECONDS)
            with contextlib.suppress(errors.SpotError):
                self._ask({"op": "state"})

    def _flush(self) -> None:
        if self._owner == os.getpid() and self._step != self._sent and not self._lost:
            with contextlib.suppress(errors.SpotError):
                self._ask({"op": "state"})


class _Wire:
    """One JSON object a line, there and back."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rb")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        line = self._file.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("it closed the connection")
        reply: dict[str, Any] = json.loads(line)
        return reply


def _handles_term() -> bool:
    return signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None)


def _world_size() -> int:
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdigit() and int(text) > 0 else 1


def _error(kind: str, message: str) -> errors.SpotError:
    cls = getattr(errors, kind, errors.SpotError) if kind in errors.__all__ else errors.SpotError
    error: errors.SpotError = cls(message)
    return error


def _plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics as JSON holds them: numbers of other libraries become plain, NaN and infinity become None."""
    try:
        text = json.dumps(dict(metrics), default=_number)
    except (TypeError, ValueError) as error:
        raise errors.ConfigurationError(
            f"metrics cannot be written as JSON: {error}; give numbers, texts, lists"
        ) from error
    if len(text) > METRICS_BYTES:
        raise errors.ConfigurationError(
            f"metrics have {len(text)} bytes as JSON, at most {METRICS_BYTES} are kept; write the rest into output="
        )
    plain: dict[str, Any] = _finite(json.loads(text))
    return plain


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value
