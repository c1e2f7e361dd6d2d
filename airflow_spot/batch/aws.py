"""How AWS is called: the clients, the clock that its replies set, and its errors in our words."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from airflow_spot.errors import BatchUnavailable, SubmitRefused, SubmitThrottled, SubmitUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

THROTTLED = frozenset(
    {
        "TooManyRequestsException",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestLimitExceeded",
        "LimitExceededException",
        "SlowDown",
        "PriorRequestNotComplete",
        "EC2ThrottledException",
    }
)
"""TooManyRequestsException is not in Batch's service model: only the code tells it."""
DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "UnauthorizedOperation",
        "UnauthorizedException",
        "AuthorizationError",
        "NotAuthorized",
    }
)
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
UNCERTAIN = frozenset(
    {"", "ServerException", "InternalFailure", "InternalError", "ServiceUnavailable", "RequestTimeout"}
)
_TOO_MANY, _SERVER_ERROR, _REQUEST_TIMEOUT = 429, 500, 408
_NOTHING_SENT = frozenset(
    {
        "EndpointConnectionError",
        "ConnectTimeoutError",
        "ProxyConnectionError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "SSOTokenLoadError",
        "UnauthorizedSSOTokenError",
    }
)
"""Errors of botocore that are raised before a byte of the request has left."""


class AwsClock:
    """AWS's time: the ``Date`` of the last reply plus the monotonic time since. Thread-safe.

    :param wall: stands in where no reply ever bore a date, as with a fake client.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._last: tuple[datetime, float] | None = None

    def hear(self, reply: Mapping[str, Any]) -> None:
        """Set the clock by a reply of boto3, also by that of an error; one without a date is passed over."""
        headers = (reply.get("ResponseMetadata") or {}).get("HTTPHeaders") or {}
        try:
            date = parsedate_to_datetime(headers["date"])
        except (KeyError, ValueError):
            return
        # One assignment of a tuple: readers in other threads see a date with its own reading, or the former pair.
        self._last = (date.replace(tzinfo=date.tzinfo or UTC).astimezone(UTC), self._monotonic())

    @property
    def heard(self) -> bool:
        """Whether a reply has set it."""
        return self._last is not None

    def now(self) -> datetime:
        """Return AWS's present."""
        if self._last is None:
            return self._wall()
        date, at = self._last
        return date + timedelta(seconds=self._monotonic() - at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The boto3 clients of one connection and region.

    :param batch_once: never repeats a request by itself: SubmitJob has no idempotency token.
    :param ec2: and the other optional ones: None means that what they would tell stays unknown.
    """

    batch: Any
    batch_once: Any
    ec2: Any = None
    ecs: Any = None
    logs: Any = None

    @classmethod
    def from_session(
        cls,
        session: boto3.session.Session,
        region: str | None = None,
        endpoint_url: str | None = None,
        verify: bool | str | None = None,
        config: Config | None = None,
    ) -> Clients:
        """Return clients that are made at their first use; making one costs a good part of a second."""
        lock = threading.Lock()

        def later(service: Any, *, once: bool = False) -> _Lazy:
            def make() -> Any:
                settings = _config(config, once=once)
                with lock:  # a session makes one client at a time
                    return session.client(
                        service, region_name=region, endpoint_url=endpoint_url, verify=verify, config=settings
                    )

            return _Lazy(make)

        return cls(
            batch=later("batch"),
            batch_once=later("batch", once=True),
            ec2=later("ec2"),
            ecs=later("ecs"),
            logs=later("logs"),
        )


def _config(config: Config | None, *, once: bool) -> Config:
    from botocore.config import Config

    base = Config(
        connect_timeout=10,
        read_timeout=30,
        retries={"mode": "standard", "total_max_attempts": 1 if once else 4},
        user_agent_extra="airflow-provider-spot",
    )
    if config is None:
        return base
    merged = base.merge(config)
    return merged.merge(Config(retries={"mode": "standard", "total_max_attempts": 1})) if once else merged


class _Lazy:
    """Stands for a client until its first method is asked for."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._client: Any = None
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._make()
        return getattr(self._client, name)


def code_of(error: ClientError) -> str:
    """Return AWS's code of an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ClientError) -> int:
    """Return the HTTP status of an error, 0 where there is none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)


def is_throttled(error: ClientError) -> bool:
    """Whether AWS says: later."""
    return code_of(error) in THROTTLED or status_of(error) == _TOO_MANY


def is_denied(error: ClientError) -> bool:
    """Whether the caller may not do this."""
    return code_of(error) in DENIED


def unavailable(error: ClientError | BotoCoreError, action: str) -> BatchUnavailable:
    """Return the error for a call other than SubmitJob that gave no answer.

    A denied one is unavailable as well: a training that goes on must not end because a policy was edited.
    """
    from botocore.exceptions import ClientError

    if not isinstance(error, ClientError):
        return BatchUnavailable(f"{action} got no answer ({error}); nothing is decided, we ask again", action=action)
    if is_denied(error):
        return BatchUnavailable(
            f"{action} is not allowed: {error}. Allow the action to the role of the Airflow connection; "
            "until then nothing is decided",
            action=action,
            code=code_of(error),
            denied=True,
        )
    word = "was throttled" if is_throttled(error) else "failed"
    return BatchUnavailable(
        f"{action} {word}: {error}; nothing is decided, we ask again", action=action, code=code_of(error)
    )


def submit_error(error: ClientError | BotoCoreError, name: str) -> SubmitThrottled | SubmitRefused | SubmitUnknown:
    """Return what an error of SubmitJob proves: that no job exists, now or ever, or nothing at all."""
    from botocore.exceptions import ClientError, ParamValidationError

    if isinstance(error, ParamValidationError):
        return SubmitRefused(f"SubmitJob of {name!r} is malformed: {error}. No job exists", name=name, code="")
    if not isinstance(error, ClientError):
        if type(error).__name__ in _NOTHING_SENT:
            return SubmitThrottled(f"SubmitJob of {name!r} was not sent ({error}); no job exists", name=name)
        return SubmitUnknown(f"SubmitJob of {name!r} got no answer ({error}); a job may exist", name=name)
    code, status = code_of(error), status_of(error)
    if is_throttled(error) or code in EXPIRED:
        return SubmitThrottled(
            f"SubmitJob of {name!r} was put off by AWS: {error}; no job exists", name=name, code=code
        )
    if status >= _SERVER_ERROR or status == _REQUEST_TIMEOUT or code in UNCERTAIN:
        return SubmitUnknown(f"SubmitJob of {name!r} failed inside AWS: {error}; a job may exist", name=name, code=code)
    return SubmitRefused(f"AWS refused SubmitJob of {name!r}: {error}. No job exists", name=name, code=code)
