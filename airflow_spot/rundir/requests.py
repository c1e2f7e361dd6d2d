"""``requests/``: what a sensor, a callback or a person asks of the loop. Create-only, oldest first."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_spot.errors import ContractError
from airflow_spot.rundir.conditional import Refused, create_json
from airflow_spot.rundir.layout import REQUESTS
from airflow_spot.rundir.reading import read, skip
from airflow_spot.rundir.values import Request

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_spot.rundir.store import Store

KINDS = frozenset({"promote", "stay", "stop", "deadline"})
_NAME = re.compile(r"\d{8}T\d{12}Z-([0-9A-Za-z_-]{1,64})\.json")
_AT_ONCE = 200


def new_request(
    kind: str,
    *,
    who: str,
    why: str = "",
    generation: int = 1,
    at: datetime | None = None,
    tier: str | None = None,
    until: datetime | None = None,
    deadline: datetime | None = None,
    downstream_seconds: float = 0.0,
    by_person: bool = False,
    try_number: int | None = None,
    id: str | None = None,  # noqa: A002 - the field's name in the contract
) -> Request:
    """Return a request that can be posted.

    :param at: when it was made; the wall clock unless given. It only orders requests.
    :param id: unique unless given; the same id and time post the same request once.
    """
    if kind not in KINDS:
        raise ContractError(f"request kind {kind!r} is none of {sorted(KINDS)}", what="request")
    return Request(
        id=id or uuid4().hex[:16],
        kind=kind,
        who=who,
        why=why,
        generation=generation,
        at=at or datetime.now(UTC),
        tier=tier,
        until=until,
        deadline=deadline,
        downstream_seconds=downstream_seconds,
        by_person=by_person,
        try_number=try_number,
    )


def request_key(request: Request) -> str:
    """Return where a request lies; keys sort by time."""
    at = (request.at or datetime.fromtimestamp(0, UTC)).astimezone(UTC)
    name = f"{at:%Y%m%dT%H%M%S%f}Z-{request.id}.json"
    if not _NAME.fullmatch(name):
        raise ContractError(f"request id {request.id[:80]!r} is not 1 to 64 letters, digits, _ or -", what="request")
    return REQUESTS + name


def post(store: Store, request: Request) -> str:
    """Write a request and return its id; posting the very same one again changes nothing.

    :raises ContractError: another request bears that time and id.
    """
    key = request_key(request)
    if isinstance(create_json(store, key, request), Refused):
        raise ContractError(f"{store.uri}/{key}: another request bears this id; give it an id of its own", what=key)
    return request.id


def pending(store: Store, applied: Collection[str]) -> list[Request]:
    """Return the requests that were not applied, oldest first, at most 200 at once; malformed ones are skipped."""
    found = []
    for item in store.list(REQUESTS):
        match = _NAME.fullmatch(item.key.removeprefix(REQUESTS))
        if match and match[1] not in applied and (request := _read(store, item.key, match[1])):
            found.append(request)
        if len(found) == _AT_ONCE:
            break
    return found


def _read(store: Store, key: str, name: str) -> Request | None:
    request = read(store, key, Request)
    if request is None:
        return None
    if request[0].id != name or request[0].kind not in KINDS:
        skip(store, key, f"id {request[0].id[:64]!r} or kind {request[0].kind[:64]!r} is not what was expected")
        return None
    return request[0]
