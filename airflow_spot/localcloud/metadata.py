"""The instance metadata service of one host (IMDSv2), as far as a training job looks at it."""

from __future__ import annotations

import http.server
import json
import secrets
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime

TOKEN_TTL = "x-aws-ec2-metadata-token-ttl-seconds"  # noqa: S105  (the name of a header)
TOKEN = "x-aws-ec2-metadata-token"  # noqa: S105  (the name of a header)
_LONGEST_TTL = 21600


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """What a host says of itself.

    :param life_cycle: ``spot`` or ``on-demand``.
    """

    instance_id: str
    instance_type: str = "m5.large"
    life_cycle: str = "spot"
    zone: str = "us-east-1a"
    region: str = "us-east-1"


class MetadataServer:
    """Serves the metadata of one instance on a free port of this machine.

    :param instance: what it says.
    :param port: 0 for any free one.
    """

    def __init__(self, instance: Instance, port: int = 0) -> None:
        self.instance = instance
        self._tokens: dict[str, float] = {}
        self._lock = threading.Lock()
        self._interruption: datetime | None = None
        self._rebalance: datetime | None = None
        self._server = _Server(("127.0.0.1", port), _handler(self))
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The base address, for ``AWS_EC2_METADATA_SERVICE_ENDPOINT``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Serve in a thread."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="metadata", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join(timeout=5)
        self._server.server_close()

    def notice(self, at: datetime) -> None:
        """Announce a reclaim at that time."""
        self._interruption = at.astimezone(UTC)

    def rebalance(self, at: datetime) -> None:
        """Give a rebalance recommendation."""
        self._rebalance = at.astimezone(UTC)

    def new_token(self, ttl: int) -> str:
        """Return a token that is good for that many seconds."""
        token = secrets.token_urlsafe(24)
        with self._lock:
            self._tokens[token] = time.monotonic() + ttl
        return token

    def expire_tokens(self) -> None:
        """Make every token given so far invalid."""
        with self._lock:
            self._tokens.clear()

    def accepts(self, token: str | None) -> bool:
        """Return whether a token is good."""
        with self._lock:
            return token is not None and self._tokens.get(token, 0.0) > time.monotonic()

    def value(self, path: str) -> str | None:
        """Return what lies at a path below ``/latest/``; None: 404."""
        instance = self.instance
        values: dict[str, str | None] = {
            "meta-data/spot/instance-action": self._action(),
            "meta-data/spot/termination-time": _stamp(self._interruption),
            "meta-data/events/recommendations/rebalance": self._recommendation(),
            "meta-data/instance-life-cycle": instance.life_cycle,
            "meta-data/instance-id": instance.instance_id,
            "meta-data/instance-type": instance.instance_type,
            "meta-data/placement/availability-zone": instance.zone,
            "meta-data/placement/region": instance.region,
            "dynamic/instance-identity/document": self._document(),
        }
        return values.get(path.strip("/"))

    def _action(self) -> str | None:
        if self._interruption is None:
            return None
        return json.dumps({"action": "terminate", "time": _stamp(self._interruption)})

    def _recommendation(self) -> str | None:
        return None if self._rebalance is None else json.dumps({"noticeTime": _stamp(self._rebalance)})

    def _document(self) -> str:
        instance = self.instance
        return json.dumps(
            {
                "instanceId": instance.instance_id,
                "instanceType": instance.instance_type,
                "availabilityZone": instance.zone,
                "region": instance.region,
            }
        )


def _stamp(at: datetime | None) -> str | None:
    return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


def _handler(metadata: MetadataServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        server_version = "EC2ws"

        def do_PUT(self) -> None:
            ttl = self.headers.get(TOKEN_TTL, "")
            if self.path != "/latest/api/token":
                self._reply(404)
            elif not ttl.isdigit() or not 1 <= int(ttl) <= _LONGEST_TTL:
                self._reply(400)
            else:
                self._reply(200, metadata.new_token(int(ttl)))

        def do_GET(self) -> None:
            if not metadata.accepts(self.headers.get(TOKEN)):
                self._reply(401)
                return
            value = metadata.value(self.path.removeprefix("/latest/"))
            self._reply(404 if value is None else 200, value or "")

        def _reply(self, status: int, text: str = "") -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class names it so)
            """Say nothing: a job asks every few seconds."""

    return Handler
