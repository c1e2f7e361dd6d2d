"""Lines of jobs on their way into CloudWatch Logs."""

from __future__ import annotations

import threading
from typing import Any

GROUP = "/aws/batch/job"


class MotoLogs:
    """Puts lines into moto's CloudWatch Logs, in the group of AWS Batch.

    :param account: of the backend.
    :param region: of the backend.
    """

    def __init__(self, account: str, region: str) -> None:
        self._account = account
        self._region = region
        self._lock = threading.Lock()
        self._streams: set[str] = set()
        self._last: dict[str, int] = {}

    def put(self, stream: str, lines: list[tuple[float, str]]) -> None:
        """Append lines to a stream, which is made if need be, also without a line."""
        with self._lock:
            backend = self._backend(stream)
            events = [{"timestamp": self._after_last(stream, at), "message": line or " "} for at, line in lines]
            if events:
                backend.put_log_events(GROUP, stream, events)

    def flush(self) -> None:
        """Wait for lines that are being put."""
        with self._lock:
            return

    def _after_last(self, stream: str, at: float) -> int:
        """Return the time of a line in ms, never before the one above it."""
        self._last[stream] = max(self._last.get(stream, 0), round(at * 1000))
        return self._last[stream]

    def _backend(self, stream: str) -> Any:
        from airflow_spot.localcloud.moto import logs_backend

        backend = logs_backend(self._account, self._region)
        if GROUP not in backend.groups:
            backend.create_log_group(GROUP, {})
        if stream not in self._streams:
            self._streams.add(stream)
            backend.create_log_stream(GROUP, stream)
        return backend
