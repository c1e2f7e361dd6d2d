"""The supervisor's end of the socket that :func:`airflow_spot.agent.attach` speaks to."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_spot.errors import ConfigurationError, SpotError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

_LONGEST_PATH = 100
"""Bytes: a socket's address is a small fixed array."""
_LONGEST_LINE = 1 << 20


class Channel:
    """Serves requests of the trainer's processes, each connection in a thread.

    :param handle: takes the connection's number and a request, and returns the reply.
    :param on_close: takes the number of a connection that has ended.
    """

    def __init__(
        self, handle: Callable[[int, dict[str, Any]], dict[str, Any]], on_close: Callable[[int], None]
    ) -> None:
        self._handle, self._on_close = handle, on_close
        self._folder = _short_folder()
        self.path = str(self._folder / "agent.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.path)
        self._socket.listen(64)
        threading.Thread(target=self._accept, name="channel", daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            number += 1
            threading.Thread(target=self._serve, args=(number, connection), name="client", daemon=True).start()

    def _serve(self, number: int, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as lines:
                while line := lines.readline(_LONGEST_LINE):
                    connection.sendall(json.dumps(self._answer(number, line)).encode() + b"\n")
        except OSError as error:
            log.debug("a trainer's connection ended: %s", error)
        finally:
            self._on_close(number)

    def _answer(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ConfigurationError("a request is a JSON object")
            return self._handle(number, request)
        except SpotError as error:
            return {"error": type(error).__name__, "message": error.message}
        except (OSError, ValueError, TypeError, KeyError) as error:
            return {"error": "SpotError", "message": f"{type(error).__name__}: {error}"}


def _short_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="spot-"))
    if len(os.fsencode(folder)) + len("/agent.sock") <= _LONGEST_PATH:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="spot-", dir="/tmp"))
