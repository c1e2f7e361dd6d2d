"""What EC2 says of the hosts: DescribeInstances and DescribeSpotInstanceRequests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from xml.sax.saxutils import escape

from airflow_spot.localcloud.faults import ApiError
from airflow_spot.localcloud.hosts import Host
from airflow_spot.localcloud.resources import INSTANCE_TYPES
from airflow_spot.localcloud.scheduler import State

_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
Node = str | list["Node"] | dict[str, "Node"]


def answer(state: State, params: dict[str, str]) -> str | None:
    """Return the answer as XML; None where the question is not about our hosts.

    :raises ApiError: an instance id that does not exist, or a dry run, which always would succeed.
    """
    if params.get("DryRun", "").lower() == "true":
        raise ApiError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
    match params.get("Action"):
        case "DescribeInstances":
            return _instances(state, params)
        case "DescribeSpotInstanceRequests":
            return _requests(state, params)
        case "DescribeInstanceTypes":
            return _types(params)
        case _:
            return None


def error(refusal: ApiError) -> str:
    """Return a refusal as EC2 writes it."""
    shown = f"<Code>{escape(refusal.code)}</Code><Message>{escape(refusal.message)}</Message>"
    return f"<Response><Errors><Error>{shown}</Error></Errors><RequestID>local</RequestID></Response>"


def _instances(state: State, params: dict[str, str]) -> str | None:
    wanted = _numbered(params, "InstanceId")
    if wanted and not any(each in state.hosts for each in wanted):
        missing = ", ".join(wanted)
        raise ApiError("InvalidInstanceID.NotFound", f"The instance IDs '{missing}' do not exist")
    if unknown := [each for each in wanted if each not in state.hosts]:
        raise ApiError("InvalidInstanceID.NotFound", f"The instance ID '{unknown[0]}' does not exist")
    hosts = [host for host in state.hosts.values() if not wanted or host.id in wanted]
    chosen = _filtered(hosts, params, _INSTANCE_FILTERS)
    reservations: list[Node] = [
        {"reservationId": f"r-{host.id[3:]}", "ownerId": "123456789012", "instancesSet": [_instance(host)]}
        for host in chosen
    ]
    return _xml("DescribeInstancesResponse", {"reservationSet": reservations})


def _requests(state: State, params: dict[str, str]) -> str:
    wanted = _numbered(params, "SpotInstanceRequestId")
    hosts = [each for each in state.hosts.values() if each.spot and (not wanted or each.spot_request in wanted)]
    chosen: list[Node] = [_request(host) for host in _filtered(hosts, params, _REQUEST_FILTERS)]
    return _xml("DescribeSpotInstanceRequestsResponse", {"spotInstanceRequestSet": chosen})


def _types(params: dict[str, str]) -> str | None:
    """Return what we know of machines; None where a type is asked for that we do not know."""
    wanted = _numbered(params, "InstanceType") or sorted(INSTANCE_TYPES)
    if any(name not in INSTANCE_TYPES for name in wanted) or any(key.startswith("Filter.") for key in params):
        return None
    return _xml("DescribeInstanceTypesResponse", {"instanceTypeSet": [_type(name) for name in wanted]})


def _type(name: str) -> Node:
    vcpus, memory, gpus = INSTANCE_TYPES[name]
    shown: dict[str, Node] = {
        "instanceType": name,
        "vCpuInfo": {"defaultVCpus": str(vcpus)},
        "memoryInfo": {"sizeInMiB": str(memory * 1024)},
    }
    return shown | ({"gpuInfo": {"gpus": [{"manufacturer": "NVIDIA", "count": str(gpus)}]}} if gpus else {})


def _instance(host: Host) -> Node:
    shown: dict[str, Node] = {
        "instanceId": host.id,
        "imageId": "ami-0local",
        "instanceState": {"code": "16" if host.state == "running" else "48", "name": host.state},
        "privateDnsName": _dns_name(host),
        "dnsName": "",
        "instanceType": host.instance.instance_type,
        "launchTime": _time(host.launched),
        "placement": {"availabilityZone": host.instance.zone, "tenancy": "default"},
        "reason": "",
    }
    if host.spot_request is not None:
        shown |= {"instanceLifecycle": "spot", "spotInstanceRequestId": host.spot_request}
    if host.state_reason is not None and host.died is not None:
        code, message = host.state_reason
        gone = datetime.fromtimestamp(host.died, UTC).strftime("%Y-%m-%d %H:%M:%S GMT")
        initiator = "Service" if code.startswith("Server.") else "User"
        shown |= {"stateReason": {"code": code, "message": message}, "reason": f"{initiator} initiated ({gone})"}
    return shown


def _request(host: Host) -> Node:
    closed = host.request_status != "fulfilled"
    changed = host.noticed or host.died or host.launched
    return {
        "spotInstanceRequestId": str(host.spot_request),
        "type": "one-time",
        "state": "closed" if closed else "active",
        "status": {"code": host.request_status, "updateTime": _time(changed), "message": _STATUS[host.request_status]},
        "instanceId": host.id,
        "createTime": _time(host.launched),
        "launchedAvailabilityZone": host.instance.zone,
        "instanceInterruptionBehavior": "terminate",
    }


_STATUS = {
    "fulfilled": "Your spot request is fulfilled.",
    "instance-terminated-no-capacity": "Your Spot Instance was terminated because there is no Spot capacity available.",
    "instance-terminated-by-user": "Your Spot Instance was terminated by the user.",
}


def _dns_name(host: Host) -> str:
    return f"{host.id}.ec2.internal"


_Filter = Callable[[Host], str]
_INSTANCE_FILTERS: dict[str, _Filter] = {
    "instance-id": lambda host: host.id,
    "private-dns-name": _dns_name,
    "instance-state-name": lambda host: host.state,
    "instance-lifecycle": lambda host: "spot" if host.spot else "",
    "instance-type": lambda host: host.instance.instance_type,
    "spot-instance-request-id": lambda host: host.spot_request or "",
}
_REQUEST_FILTERS: dict[str, _Filter] = {
    "instance-id": lambda host: host.id,
    "spot-instance-request-id": lambda host: host.spot_request or "",
    "status-code": lambda host: host.request_status,
    "state": lambda host: "active" if host.request_status == "fulfilled" else "closed",
}


def _filtered(hosts: Iterable[Host], params: dict[str, str], known: dict[str, _Filter]) -> list[Host]:
    chosen = list(hosts)
    for number in sorted({int(key.split(".")[1]) for key in params if re.fullmatch(r"Filter\.\d+\.Name", key)}):
        name, values = params[f"Filter.{number}.Name"], _numbered(params, f"Filter.{number}.Value")
        if name not in known:
            raise ApiError("InvalidParameterValue", f"The filter '{name}' is invalid")
        chosen = [host for host in chosen if known[name](host) in values]
    return chosen


def _numbered(params: dict[str, str], prefix: str) -> list[str]:
    keys = [key for key in params if re.fullmatch(rf"{re.escape(prefix)}\.\d+", key)]
    return [params[key] for key in sorted(keys, key=lambda key: int(key.rsplit(".", 1)[1]))]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _xml(root: str, content: dict[str, Node]) -> str:
    inner = _render({"requestId": "local", **content})
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{_NAMESPACE}">{inner}</{root}>'


def _render(node: Node) -> str:
    if isinstance(node, dict):
        return "".join(f"<{name}>{_render(value)}</{name}>" for name, value in node.items())
    if isinstance(node, list):
        return "".join(f"<item>{_render(value)}</item>" for value in node)
    return escape(node)
