"""What can be made to go wrong with the API itself: throttling, refusals, lost replies, late visibility."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class ApiError(Exception):
    """An error as an AWS API gives it.

    :param code: e.g. ``ClientException``.
    :param message: AWS's sentence.
    :param status: the HTTP status.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


class ReplyLost(Exception):
    """The operation was done, and its reply is to be lost on the way back."""


class Loss(StrEnum):
    """How a reply is lost."""

    DROPPED = "dropped"
    """The connection ends without an answer."""
    SERVER_ERROR = "server_error"
    """A 500 comes in its place."""


def throttled() -> ApiError:
    """Return AWS Batch's answer to too many calls."""
    return ApiError("TooManyRequestsException", "Too Many Requests", 429)


@dataclass(slots=True, kw_only=True)
class Faults:
    """Settings that a test may change at any time. Operations are named as in the API: ``SubmitJob``.

    :param rate: calls per second over all operations before 429; None: no limit.
    :param burst: calls that may come at once under ``rate``.
    :param throttle: operation → how many of its next calls get 429 (nothing is done).
    :param lose_reply: operation → how many of its next calls are done and their reply lost.
    :param loss: how those replies are lost.
    :param fail: operation → errors for its next calls (nothing is done).
    :param deny: ``service:Operation`` names that answer AccessDenied, e.g. ``ec2:DescribeInstances``.
    :param list_delay: seconds before ListJobs shows a new job.
    :param describe_delay: seconds before DescribeJobs shows a new job.
    """

    rate: float | None = None
    burst: int = 1
    throttle: dict[str, int] = field(default_factory=dict)
    lose_reply: dict[str, int] = field(default_factory=dict)
    loss: Loss = Loss.DROPPED
    fail: dict[str, list[ApiError]] = field(default_factory=dict)
    deny: set[str] = field(default_factory=set)
    list_delay: float = 0.0
    describe_delay: float = 0.0
    _tokens: float = 0.0
    _refilled: float | None = None

    def before(self, operation: str, now: float) -> None:
        """Refuse the call if a setting says so.

        :raises ApiError: the refusal; nothing is to be done.
        """
        if f"batch:{operation}" in self.deny:
            raise ApiError("AccessDeniedException", f"User is not authorized to perform: batch:{operation}", 403)
        if _take(self.throttle, operation) or not self._within_rate(now):
            raise throttled()
        if queued := self.fail.get(operation):
            raise queued.pop(0)

    def after(self, operation: str) -> None:
        """Lose the reply if a setting says so.

        :raises ReplyLost: the connection is to be dropped.
        :raises ApiError: a 500 comes in the reply's place.
        """
        if not _take(self.lose_reply, operation):
            return
        if self.loss is Loss.SERVER_ERROR:
            raise ApiError("ServerException", "Internal server error", 500)
        raise ReplyLost(operation)

    def _within_rate(self, now: float) -> bool:
        if self.rate is None:
            return True
        since = 0.0 if self._refilled is None else now - self._refilled
        held = float(self.burst) if self._refilled is None else self._tokens
        self._tokens = min(float(self.burst), held + since * self.rate)
        self._refilled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def _take(counts: dict[str, int], operation: str) -> bool:
    left = counts.get(operation, 0)
    if left > 0:
        counts[operation] = left - 1
    return left > 0
