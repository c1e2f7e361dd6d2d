"""The name of the job role, for a sentence that says who was refused."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOST = "http://169.254.170.2"
_UNKNOWN = "the job role"


def role_name(environment: Mapping[str, str], *, host: str = _HOST, timeout: float = 2.0) -> str:
    """Return the role that ECS gives this container, or just "the job role"; nothing else of the answer is kept."""
    path = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "")
    if not path.startswith("/"):
        return _UNKNOWN
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(host + path, timeout=timeout) as reply:
            found = json.loads(reply.read(65536)).get("RoleArn", "")
    except (OSError, ValueError, AttributeError):
        return _UNKNOWN
    return f"role {found}" if isinstance(found, str) and found else _UNKNOWN
