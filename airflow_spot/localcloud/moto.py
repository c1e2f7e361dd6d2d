"""What we need of moto. Its import takes seconds, so it happens here, and only when a cloud starts."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_CONDITIONAL = threading.Lock()


@functools.cache
def _dispatcher() -> Any:
    from moto.server import DomainDispatcherApplication, create_backend_app

    return DomainDispatcherApplication(create_backend_app)


def handler_class() -> Any:
    """Return the request handler that keeps header names as moto needs them, and is quiet."""
    from moto.server import MotoRequestHandler

    class Quiet(MotoRequestHandler):  # type: ignore[misc]  # moto is not typed
        dated = False

        def send_response(self, code: int, message: str | None = None) -> None:
            """Begin a response; the base class dates it."""
            self.dated = False
            super().send_response(code, message)

        def send_header(self, keyword: str, value: str) -> None:
            """Send a header, but no second date: clients would join the two and could not read the time."""
            if keyword.lower() == "date":
                if self.dated:
                    return
                self.dated = True
            super().send_header(keyword, value)

        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002  (the base class names it so)
            """Say nothing: jobs and loops ask all the time."""

    return Quiet


def service_of(environ: dict[str, Any]) -> str:
    """Return the service that a request is signed for; ``s3`` where nothing says."""
    signature = str(environ.get("HTTP_AUTHORIZATION", ""))
    if "Credential=" in signature:
        scope = signature.split("Credential=", 1)[1].split(",", 1)[0].split("/")
        return scope[-2].lower() if len(scope) >= 2 else "s3"
    return "s3"


def application() -> Application:
    """Return moto behind the lock that makes its conditional writes atomic."""
    return _serve


def _serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    dispatch = _dispatcher()
    if not ("HTTP_IF_MATCH" in environ or "HTTP_IF_NONE_MATCH" in environ) or environ.get("REQUEST_METHOD") == "GET":
        answered: Iterable[bytes] = dispatch(environ, start_response)
        return answered
    # moto compares and then stores, with nothing in between to stop a second writer: as on AWS, one must win.
    with _CONDITIONAL:
        answered = dispatch(environ, start_response)
        return list(answered)


def make_bucket(account: str, region: str, name: str) -> None:
    """Make a bucket that is there from the start."""
    from moto.s3.models import s3_backends

    backend = s3_backends[account]["aws"]
    if name not in backend.buckets:
        backend.create_bucket(name, region)


def logs_backend(account: str, region: str) -> Any:
    """Return moto's CloudWatch Logs."""
    from moto.logs.models import logs_backends

    return logs_backends[account][region]
