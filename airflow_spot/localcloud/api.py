"""The HTTP face of the model: AWS's wire formats of Batch, and of what EC2 and ECS say of our hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qs, parse_qsl, unquote

from airflow_spot.localcloud import ec2, ecs
from airflow_spot.localcloud.faults import ApiError
from airflow_spot.localcloud.model import LocalBatch
from airflow_spot.localcloud.resources import JSON

_TAGS = {"GET": "ListTagsForResource", "POST": "TagResource", "DELETE": "UntagResource"}
_ECS_TARGET = re.compile(r"AmazonEC2ContainerServiceV20141113\.(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to an AWS API. Header names are in lower case."""

    service: str
    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer; ``Date`` is always among the headers, since the loop takes its time from there."""

    status: int
    headers: dict[str, str]
    body: bytes


def answer(batch: LocalBatch, request: Request) -> Reply | None:
    """Return the answer to a request; None where it is not for the model.

    :raises airflow_spot.localcloud.faults.ReplyLost: it was done, and no answer is to reach the caller.
    """
    match request.service:
        case "batch":
            return _batch(batch, request)
        case "ec2":
            return _ec2(batch, request)
        case "ecs":
            return _ecs(batch, request)
        case _:
            return None


def _reply(batch: LocalBatch, status: int, body: str, kind: str, **headers: str) -> Reply:
    raw = body.encode()
    shown = {
        "Content-Type": kind,
        "Content-Length": str(len(raw)),
        "x-amzn-RequestId": batch.request_ids.uuid(),
        **headers,
    }
    return Reply(status=status, headers={"Date": formatdate(batch.clock.time(), usegmt=True), **shown}, body=raw)


def _batch(batch: LocalBatch, request: Request) -> Reply:
    try:
        operation, params = _operation(batch, request)
        done = batch.call(operation, params)
    except ApiError as error:
        body = json.dumps({"message": error.message})
        return _reply(batch, error.status, body, "application/json", **{"x-amzn-errortype": error.code})
    return _reply(batch, 200, json.dumps(done), "application/json")


def _operation(batch: LocalBatch, request: Request) -> tuple[str, JSON]:
    if request.path.startswith("/v1/tags/"):
        arn = unquote(request.path.removeprefix("/v1/tags/"))
        params = _body(request) | {"resourceArn": arn, "tagKeys": parse_qs(request.query).get("tagKeys", [])}
        return _TAGS.get(request.method, request.method), params
    asked = request.path.removeprefix("/v1/").strip("/")
    return next((name for name in batch.operations if name.lower() == asked), asked), _body(request)


def _body(request: Request) -> JSON:
    if not request.body:
        return {}
    try:
        parsed: JSON = json.loads(request.body)
    except ValueError as error:
        raise ApiError("SerializationException", "The body is not JSON.") from error
    return parsed


def _ec2(batch: LocalBatch, request: Request) -> Reply | None:
    params = dict(parse_qsl(request.body.decode("utf-8", "replace") or request.query, keep_blank_values=True))
    try:
        _check_denied(batch, "ec2", params.get("Action", ""), "UnauthorizedOperation")
        with batch.lock:
            batch.scheduler.tick()
            xml = ec2.answer(batch.state, params)
    except ApiError as error:
        return _reply(batch, error.status, ec2.error(error), "text/xml")
    return None if xml is None else _reply(batch, 200, xml, "text/xml")


def _ecs(batch: LocalBatch, request: Request) -> Reply | None:
    found = _ECS_TARGET.search(request.headers.get("x-amz-target", ""))
    if found is None:
        return None
    kind = "application/x-amz-json-1.1"
    try:
        _check_denied(batch, "ecs", found[1], "AccessDeniedException")
        with batch.lock:
            batch.scheduler.tick()
            done = ecs.answer(batch.state, found[1], _body(request))
    except ApiError as error:
        return _reply(batch, error.status, json.dumps({"__type": error.code, "message": error.message}), kind)
    return None if done is None else _reply(batch, 200, json.dumps(done), kind)


def _check_denied(batch: LocalBatch, service: str, operation: str, code: str) -> None:
    if f"{service}:{operation}" in batch.faults.deny:
        raise ApiError(code, f"You are not authorized to perform: {service}:{operation}", 403)
