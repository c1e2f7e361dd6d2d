"""Controls of a running local cloud over HTTP: what a second terminal needs to play the market by hand."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from airflow_spot.localcloud.api import Reply, Request
from airflow_spot.localcloud.faults import ApiError

if TYPE_CHECKING:
    from airflow_spot.localcloud.server import LocalCloud


def administer(cloud: LocalCloud, request: Request) -> Reply:
    """Do what a request to ``/_localcloud/…`` asks: ``status``, ``reclaim``, ``fail``, ``drought``."""
    try:
        params = json.loads(request.body or b"{}")
        status, body = 200, _do(cloud, request.path.removeprefix("/_localcloud/"), params)
    except ApiError as error:
        status, body = error.status, {"message": error.message}
    except (ValueError, KeyError, TypeError) as error:
        status, body = 400, {"message": f"The body does not say what to do: {error!r}"}
    raw = json.dumps(body).encode()
    headers = {"Date": formatdate(cloud.batch.clock.time(), usegmt=True), "Content-Type": "application/json"}
    return Reply(status=status, headers={**headers, "Content-Length": str(len(raw))}, body=raw)


def _do(cloud: LocalCloud, what: str, params: dict[str, Any]) -> dict[str, Any]:
    match what:
        case "status":
            return _status(cloud)
        case "reclaim":
            cloud.reclaim(str(params["job"]), notice=float(params.get("notice", 0)))
        case "fail":
            cloud.fail_host(str(params["job"]))
        case "drought":
            cloud.drought(str(params["name"]), on=bool(params.get("on", True)))
        case _:
            raise ApiError("NotFound", f"No control is named {what!r}; there are status, reclaim, fail, drought.", 404)
    return {}


def _status(cloud: LocalCloud) -> dict[str, Any]:
    with cloud.batch.lock:
        jobs = [
            {"job": job.id, "name": job.name, "queue": job.queue, "status": job.status, "reason": job.status_reason}
            for job in cloud.batch.state.jobs.values()
        ]
    return {"endpoint": cloud.endpoint_url, "variables": cloud.variables(), "jobs": jobs}
