"""The operations on compute environments, job queues, job definitions and tags."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from airflow_spot.localcloud import checks
from airflow_spot.localcloud.checks import client_error
from airflow_spot.localcloud.ids import Ids
from airflow_spot.localcloud.jobs import Job
from airflow_spot.localcloud.listing import page
from airflow_spot.localcloud.resources import JSON, ComputeEnvironment, Definition, Queue
from airflow_spot.localcloud.scheduler import State

_TYPES = {"EC2", "SPOT", "FARGATE", "FARGATE_SPOT", "ECS_MANAGED_INSTANCES"}
_DEFINITION_KEYS = {
    "type",
    "parameters",
    "schedulingPriority",
    "containerProperties",
    "ecsProperties",
    "retryStrategy",
    "propagateTags",
    "timeout",
    "tags",
    "platformCapabilities",
}


class Catalogue:
    """What jobs are submitted to, and from."""

    def __init__(self, state: State, ids: Ids) -> None:
        self._state = state
        self._ids = ids

    def operations(self) -> dict[str, Callable[[JSON], JSON]]:
        """Return the operations by name."""
        return {
            "CreateComputeEnvironment": self._create_environment,
            "DescribeComputeEnvironments": self._describe_environments,
            "UpdateComputeEnvironment": self._update_environment,
            "DeleteComputeEnvironment": self._delete_environment,
            "CreateJobQueue": self._create_queue,
            "DescribeJobQueues": self._describe_queues,
            "UpdateJobQueue": self._update_queue,
            "DeleteJobQueue": self._delete_queue,
            "RegisterJobDefinition": self._register,
            "DescribeJobDefinitions": self._describe_definitions,
            "DeregisterJobDefinition": self._deregister,
            "TagResource": self._tag,
            "UntagResource": self._untag,
            "ListTagsForResource": self._list_tags,
        }

    # -- finding -------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        """Return a queue by name or ARN.

        :raises ApiError: there is none.
        """
        found = next((each for each in self._state.queues.values() if name in {each.name, each.arn}), None)
        if found is None:
            raise client_error(f"JobQueue {name} not found.")
        return found

    def definition(self, name: str) -> Definition:
        """Return an active definition by ``name`` (the newest), ``name:revision`` or ARN.

        :raises ApiError: there is none.
        """
        short = name.rsplit("job-definition/", 1)[-1]
        base, _, revision = short.partition(":")
        active = [each for each in self._state.definitions.get(base, []) if each.status == "ACTIVE"]
        found = [each for each in active if not revision or str(each.revision) == revision]
        if not found:
            raise client_error(f"JobDefinition {name} not found or is not ACTIVE.")
        return found[-1]

    def environment(self, name: str) -> ComputeEnvironment:
        """Return a compute environment by name or ARN.

        :raises ApiError: there is none.
        """
        found = next((each for each in self._state.environments.values() if name in {each.name, each.arn}), None)
        if found is None:
            raise client_error(f"ComputeEnvironment {name} not found.")
        return found

    # -- compute environments ------------------------------------------------------------------------------------

    def _create_environment(self, params: JSON) -> JSON:
        name = checks.name(params.get("computeEnvironmentName"), "ComputeEnvironment")
        if name in self._state.environments:
            raise client_error("Object already exists")
        resources = dict(params.get("computeResources") or {})
        if resources.get("type") not in _TYPES:
            raise client_error(f"computeResources.type must be one of {', '.join(sorted(_TYPES))}.")
        cluster = f"AWSBatch-{name}-{self._ids.uuid()}"
        created = ComputeEnvironment(
            name=name,
            arn=self._ids.arn("batch", f"compute-environment/{name}"),
            cluster=cluster,
            cluster_arn=self._ids.arn("ecs", f"cluster/{cluster}"),
            resources={"allocationStrategy": "BEST_FIT_PROGRESSIVE", "minvCpus": 0, "maxvCpus": 256, **resources},
            state=str(params.get("state", "ENABLED")),
            tags=dict(params.get("tags") or {}),
            rest={key: params[key] for key in ("serviceRole", "updatePolicy") if key in params},
        )
        self._state.environments[name] = created
        return {"computeEnvironmentName": name, "computeEnvironmentArn": created.arn}

    def _describe_environments(self, params: JSON) -> JSON:
        wanted = params.get("computeEnvironments")
        chosen = [each for each in self._state.environments.values() if _is_wanted(wanted, each.name, each.arn)]
        return page([each.describe() for each in chosen], "computeEnvironments", params, 100)

    def _update_environment(self, params: JSON) -> JSON:
        found = self.environment(str(params.get("computeEnvironment", "")))
        found.state = str(params.get("state", found.state))
        found.resources |= params.get("computeResources") or {}
        return {"computeEnvironmentName": found.name, "computeEnvironmentArn": found.arn}

    def _delete_environment(self, params: JSON) -> JSON:
        found = self.environment(str(params.get("computeEnvironment", "")))
        if found.state != "DISABLED":
            raise client_error("Cannot delete, state must be DISABLED")
        if any(found.name in queue.environments for queue in self._state.queues.values()):
            raise client_error("Cannot delete, found existing JobQueue relationship")
        del self._state.environments[found.name]
        return {}

    # -- queues --------------------------------------------------------------------------------------------------

    def _create_queue(self, params: JSON) -> JSON:
        name = checks.name(params.get("jobQueueName"), "JobQueue")
        if name in self._state.queues:
            raise client_error("Object already exists")
        environments, order = self._order(params.get("computeEnvironmentOrder") or [])
        limits = list(params.get("jobStateTimeLimitActions") or [])
        checks.time_limits(limits)
        created = Queue(
            name=name,
            arn=self._ids.arn("batch", f"job-queue/{name}"),
            priority=int(params.get("priority", 1)),
            environments=environments,
            order=order,
            state=str(params.get("state", "ENABLED")),
            scheduling_policy=params.get("schedulingPolicyArn"),
            time_limits=limits,
            tags=dict(params.get("tags") or {}),
        )
        self._state.queues[name] = created
        return {"jobQueueName": name, "jobQueueArn": created.arn}

    def _order(self, order: list[JSON]) -> tuple[list[str], list[JSON]]:
        if not 1 <= len(order) <= 3:
            raise client_error("A job queue needs one to three compute environments.")
        ordered = sorted(order, key=lambda each: int(each["order"]))
        found = [self.environment(str(each["computeEnvironment"])) for each in ordered]
        fargate = {str(each.resources.get("type", "")).startswith("FARGATE") for each in found}
        if len(fargate) > 1:
            raise client_error("EC2 and Fargate compute environments cannot be mixed in one job queue.")
        shown = [
            {"order": int(each["order"]), "computeEnvironment": environment.arn}
            for each, environment in zip(ordered, found, strict=True)
        ]
        return [each.name for each in found], shown

    def _describe_queues(self, params: JSON) -> JSON:
        wanted = params.get("jobQueues")
        chosen = [each for each in self._state.queues.values() if _is_wanted(wanted, each.name, each.arn)]
        return page([each.describe() for each in chosen], "jobQueues", params, 100)

    def _update_queue(self, params: JSON) -> JSON:
        found = self.queue(str(params.get("jobQueue", "")))
        if "computeEnvironmentOrder" in params:
            found.environments, found.order = self._order(params["computeEnvironmentOrder"])
        if "jobStateTimeLimitActions" in params:
            checks.time_limits(params["jobStateTimeLimitActions"])
            found.time_limits = list(params["jobStateTimeLimitActions"])
        found.state = str(params.get("state", found.state))
        found.priority = int(params.get("priority", found.priority))
        return {"jobQueueName": found.name, "jobQueueArn": found.arn}

    def _delete_queue(self, params: JSON) -> JSON:
        found = self.queue(str(params.get("jobQueue", "")))
        if found.state != "DISABLED":
            raise client_error("Cannot delete, state must be DISABLED")
        del self._state.queues[found.name]
        return {}

    # -- job definitions -----------------------------------------------------------------------------------------

    def _register(self, params: JSON) -> JSON:
        name = checks.name(params.get("jobDefinitionName"), "JobDefinition")
        if params.get("type", "container") != "container":
            raise client_error("The local cloud runs job definitions of type container only.")
        kinds = ("containerProperties", "ecsProperties")
        checks.exactly_one(params, kinds, "Exactly one of containerProperties, ecsProperties is required.")
        checks.retry_strategy(params.get("retryStrategy"))
        checks.timeout(params.get("timeout"))
        revisions = self._state.definitions.setdefault(name, [])
        number = len(revisions) + 1
        body = {"type": "container"} | {key: value for key, value in params.items() if key in _DEFINITION_KEYS}
        arn = self._ids.arn("batch", f"job-definition/{name}:{number}")
        revisions.append(Definition(name=name, revision=number, arn=arn, body=body))
        return {"jobDefinitionName": name, "jobDefinitionArn": arn, "revision": number}

    def _describe_definitions(self, params: JSON) -> JSON:
        all_revisions = [each for revisions in self._state.definitions.values() for each in revisions]
        name, status, wanted = params.get("jobDefinitionName"), params.get("status"), params.get("jobDefinitions")
        chosen = [
            each
            for each in all_revisions
            if name in {None, each.name}
            and status in {None, each.status}
            and _is_wanted(wanted, each.arn, f"{each.name}:{each.revision}")
        ]
        newest = sorted(chosen, key=lambda each: (each.name, -each.revision))
        return page([each.describe() for each in newest], "jobDefinitions", params, 100)

    def _deregister(self, params: JSON) -> JSON:
        short = str(params.get("jobDefinition", "")).rsplit("job-definition/", 1)[-1]
        if ":" not in short:
            raise client_error("A job definition is deregistered by name:revision or by its ARN.")
        self.definition(short).status = "INACTIVE"
        return {}

    # -- tags ----------------------------------------------------------------------------------------------------

    def _tag(self, params: JSON) -> JSON:
        self._tags(str(params["resourceArn"])).update(params.get("tags") or {})
        return {}

    def _untag(self, params: JSON) -> JSON:
        tags = self._tags(str(params["resourceArn"]))
        for key in params.get("tagKeys") or []:
            tags.pop(key, None)
        return {}

    def _list_tags(self, params: JSON) -> JSON:
        return {"tags": dict(self._tags(str(params["resourceArn"])))}

    def _tags(self, arn: str) -> dict[str, Any]:
        """Return the tags of a resource, to be changed in place.

        :raises ApiError: no such resource.
        """
        named: list[Queue | ComputeEnvironment] = [*self._state.queues.values(), *self._state.environments.values()]
        for each in named:
            if each.arn == arn:
                return each.tags
        of_body: dict[str, JSON] = {
            **{each.arn: each.body for revisions in self._state.definitions.values() for each in revisions},
            **{each.arn: each.request for each in self._jobs()},
        }
        if arn not in of_body:
            raise client_error(f"Resource {arn} not found.")
        tags: dict[str, Any] = of_body[arn].setdefault("tags", {})
        return tags

    def _jobs(self) -> Iterable[Job]:
        return self._state.jobs.values()


def _is_wanted(wanted: list[str] | None, *names: str) -> bool:
    return not wanted or any(name in wanted for name in names)
