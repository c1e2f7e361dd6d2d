"""Job definitions, read once in a while."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from airflow_spot.batch.aws import AwsClock, is_denied, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

ACTION = "batch:DescribeJobDefinitions"
KEPT_SECONDS = 300.0


class Definitions:
    """Reads job definitions and keeps each for five minutes. Thread-safe."""

    def __init__(self, batch: Any, clock: AwsClock, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._batch = batch
        self._clock = clock
        self._monotonic = monotonic
        self._kept: dict[str, tuple[float, dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._said_denied = False

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the newest active revision, or the one that the name gives; None: missing or not to be seen.

        :raises BatchUnavailable: AWS gave no answer.
        """
        try:
            return self.read(name)
        except ClientError as error:
            if not is_denied(error):
                raise unavailable(error, ACTION) from error
            if not self._said_denied:
                self._said_denied = True
                log.warning("%s is not allowed: overrides assume a definition with containerProperties", ACTION)
            return None
        except BotoCoreError as error:
            raise unavailable(error, ACTION) from error

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the definition, None where there is none.

        :raises ClientError: AWS's own, denied ones too.
        """
        with self._lock:
            kept = self._kept.get(name)
        if kept and self._monotonic() - kept[0] < KEPT_SECONDS:
            return kept[1]
        found = self._newest(name)
        if found is not None:
            with self._lock:
                self._kept[name] = (self._monotonic(), found)
        return found

    def _newest(self, name: str) -> dict[str, Any] | None:
        # An ARN and name:revision are looked up as such; a bare name by all of its revisions.
        which: dict[str, Any] = {"jobDefinitions": [name]} if ":" in name else {"jobDefinitionName": name}
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {}
        while True:
            reply = self._batch.describe_job_definitions(**which, status="ACTIVE", **page)
            self._clock.hear(reply)
            found += reply.get("jobDefinitions", ())
            if not reply.get("nextToken"):
                break
            page = {"nextToken": reply["nextToken"]}
        # A fake, or a given revision, may come back deregistered.
        active = [item for item in found if item.get("status", "ACTIVE") == "ACTIVE"]
        return max(active, key=lambda item: int(item.get("revision", 0)), default=None)
