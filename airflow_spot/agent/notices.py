"""Instance metadata (IMDSv2): who am I, and am I about to be reclaimed?

Nothing depends on an answer. A 404 is normal; a 401 renews the token; anything else is said once and asked again
more rarely, since containers often cannot reach the service (hop limit 1, Fargate).
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_spot.rundir.values import Notice

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 60.0
NOTICE_SPAN_SECONDS = 120.0
"""What a spot notice gives at best; also what is assumed where its time cannot be read."""
_TOKEN_SECONDS = 21600


class MetadataUnavailable(OSError):
    """The metadata service did not answer as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """What the instance says of itself; None where it does not."""

    market: str | None = None
    """``spot`` or ``on_demand``; a reservation shows as the latter."""
    instance: str | None = None
    instance_type: str | None = None
    zone: str | None = None


class Metadata:
    """A client of the metadata service.

    :param endpoint: its base address.
    """

    def __init__(self, endpoint: str, timeout: float = TIMEOUT_SECONDS) -> None:
        self._base = endpoint.rstrip("/")
        self._timeout = timeout
        self._token = ""
        # The address is link-local: a proxy in the environment must not see it.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> str | None:
        """Return the text below ``/latest/meta-data/``, or None for a 404.

        :raises MetadataUnavailable: no answer, or another status.
        """
        for renewed in (False, True):
            if renewed or not self._token:
                self._token = self._new_token()
            try:
                return self._ask(f"/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": self._token})
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404:
                        return None
                    if error.code != 401 or renewed:
                        raise MetadataUnavailable(f"{path}: status {error.code}") from error
            except OSError as error:
                raise MetadataUnavailable(f"{path}: {error}") from error
        return None

    def _new_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
        try:
            return self._ask("/latest/api/token", headers, method="PUT")
        except urllib.error.HTTPError as error:
            with error:
                raise MetadataUnavailable(f"no token: status {error.code}") from error
        except OSError as error:
            raise MetadataUnavailable(f"no token: {error}") from error

    def _ask(self, path: str, headers: dict[str, str], method: str = "GET") -> str:
        request = urllib.request.Request(self._base + path, headers=headers, method=method)  # noqa: S310 - http by design
        with self._opener.open(request, timeout=self._timeout) as reply:
            text: str = reply.read(65536).decode("utf-8", "replace")
        return text.strip()

    def instance(self) -> Instance:
        """Return what the instance says of itself.

        :raises MetadataUnavailable: no answer.
        """
        cycle = self.get("instance-life-cycle")
        return Instance(
            market=cycle.replace("-", "_") if cycle else None,
            instance=self.get("instance-id"),
            instance_type=self.get("instance-type"),
            zone=self.get("placement/availability-zone"),
        )

    def notice(self, now: datetime) -> Notice | None:
        """Return the spot notice, if there is one.

        :raises MetadataUnavailable: no answer.
        """
        text = self.get("spot/instance-action")
        if text is None:
            return None
        action, instant = _parsed(text, "action"), _parsed(text, "time")
        return Notice(
            source="spot", action=action or "terminate", time=instant, seconds_left=_seconds_left(instant, now)
        )

    def rebalance(self) -> Notice | None:
        """Return the rebalance recommendation, if there is one: a hint that a notice may follow.

        :raises MetadataUnavailable: no answer.
        """
        text = self.get("events/recommendations/rebalance")
        if text is None:
            return None
        return Notice(source="rebalance", action="rebalance", time=_parsed(text, "noticeTime"))


def _parsed(text: str, name: str) -> str:
    try:
        found: Any = json.loads(text)
    except ValueError:
        return ""
    value = found.get(name, "") if isinstance(found, dict) else ""
    return value[:100] if isinstance(value, str) else ""


def _seconds_left(instant: str, now: datetime) -> float:
    try:
        at = datetime.fromisoformat(instant)
    except ValueError:
        return NOTICE_SPAN_SECONDS
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return min(max((at - now).total_seconds(), 0.0), NOTICE_SPAN_SECONDS)


class Watch:
    """Polls the metadata service in a thread until it is closed.

    :param on_instance: called once, from the thread.
    :param on_notice: called for each new notice, from the thread.
    """

    def __init__(
        self,
        metadata: Metadata,
        *,
        every: float,
        on_instance: Callable[[Instance], None],
        on_notice: Callable[[Notice], None],
    ) -> None:
        self._metadata = metadata
        self._every = every
        self._on_instance, self._on_notice = on_instance, on_notice
        self._closed = threading.Event()
        self._seen: set[tuple[str, str, str]] = set()
        self._known = self._warned = False
        self._thread = threading.Thread(target=self._loop, name="notices", daemon=True)

    def start(self) -> None:
        """Begin to poll."""
        self._thread.start()

    def close(self) -> None:
        """Stop polling; returns at once."""
        self._closed.set()

    def _loop(self) -> None:
        wait = self._every
        while not self._closed.is_set():
            begun = time.monotonic()
            wait = self._every if self._look() else min(2 * wait, max(LONGEST_WAIT_SECONDS, self._every))
            self._closed.wait(max(0.0, wait - (time.monotonic() - begun)))

    def _look(self) -> bool:
        try:
            if not self._known:
                self._on_instance(self._metadata.instance())
                self._known = True
            for notice in (self._metadata.notice(datetime.now(UTC)), self._metadata.rebalance()):
                self._tell(notice)
        except MetadataUnavailable as error:
            if not self._warned:
                log.warning("instance metadata gives no answer (%s): reclaims come without warning here", error)
                self._warned = True
            return False
        return True

    def _tell(self, notice: Notice | None) -> None:
        if notice is None or (key := (notice.source, notice.action, notice.time)) in self._seen:
            return
        self._seen.add(key)
        self._on_notice(notice)
