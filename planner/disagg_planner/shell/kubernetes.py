"""Kubernetes as scaler and reporter: `/scale` of the groups, conditions and Events of the deployment.

What is read: the group (replicas, ready, resource version) and the deployment's status, because instances that drain or
terminate still hold GPUs. What is written: `spec.replicas` through `/scale`, with the version that was read; the two
conditions that the planner owns, by server-side apply under a field manager of its own, both in every call (what an
apply leaves out is taken away); and Events (events.k8s.io) on the deployment.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
from kubernetes.aio import client, config

from disagg_contract.control import Condition, Event
from disagg_contract.labels import PLANNER_FIELD_MANAGER, Role
from disagg_crds import (
    API_VERSION,
    DEPLOYMENT_KIND,
    DEPLOYMENT_PLURAL,
    GROUP,
    GROUP_PLURAL,
    VERSION,
    format_time,
    group_name,
)
from disagg_crds import Role as CrdRole
from disagg_planner.core.fleet import Group
from disagg_planner.errors import ScaleConflict, ScaleRefused, ScalerError, SettingsError
from disagg_planner.shell.scaling import ScaleState

TIMEOUT_SECONDS: Final = 10.0
_NOTE_LIMIT: Final = 1024


async def connect() -> Any:
    """An API client: the pod's own account, else KUBECONFIG. Raises SettingsError where neither is there."""
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            await config.load_kube_config()  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            raise SettingsError(
                f"no --control-url, and Kubernetes cannot be reached either: {error}; "
                "run in a pod, set KUBECONFIG, or give --control-url"
            ) from error
    return client.ApiClient()


class KubernetesRuntime:
    """Groups and status of one DisaggDeployment. Owns `api`, an `ApiClient` of kubernetes.aio."""

    def __init__(self, api: Any, *, namespace: str, deployment: str, instance: str = "disagg-planner") -> None:
        self._api = api
        self._custom = client.CustomObjectsApi(api)
        self._events = client.EventsV1Api(api)
        self._namespace = namespace
        self._deployment = deployment
        self._instance = instance
        self._transitions: dict[str, tuple[str, str]] = {}

    async def close(self) -> None:
        await self._api.close()

    async def read(self, role: Role) -> ScaleState:
        name = group_name(self._deployment, CrdRole(role.value))
        group, deployment = await asyncio.gather(
            self._call(self._custom.get_namespaced_custom_object(**self._group(), name=name), f"group {name}"),
            self._read_deployment(),
        )
        status = group.get("status") or {}
        replicas = int((group.get("spec") or {}).get("replicas", 0))
        counts = ((deployment.get("status") or {}).get("roles") or {}).get(role.value) or {}
        current = status.get("replicas")
        existing = (replicas if current is None else int(current)) + int(counts.get("terminating") or 0)
        ready = status.get("readyReplicas")
        return ScaleState(
            group=Group(replicas=replicas, existing=existing, ready=None if ready is None else int(ready)),
            resource_version=str(group["metadata"]["resourceVersion"]),
        )

    async def write(self, role: Role, replicas: int, resource_version: str) -> None:
        name = group_name(self._deployment, CrdRole(role.value))
        body = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {"name": name, "namespace": self._namespace, "resourceVersion": resource_version},
            "spec": {"replicas": replicas},
        }
        await self._call(
            self._custom.replace_namespaced_custom_object_scale(
                **self._group(), name=name, body=body, field_manager=PLANNER_FIELD_MANAGER
            ),
            f"scale of {name}",
        )

    async def conditions(self, conditions: tuple[Condition, ...]) -> None:
        deployment = await self._read_deployment()
        self._remember(deployment)
        generation = deployment["metadata"].get("generation")
        body = {
            "apiVersion": API_VERSION,
            "kind": DEPLOYMENT_KIND,
            "metadata": {"name": self._deployment, "namespace": self._namespace},
            "status": {"conditions": [self._condition(condition, generation) for condition in conditions]},
        }
        await self._call(
            self._custom.patch_namespaced_custom_object_status(
                **self._deployments(),
                name=self._deployment,
                body=body,
                field_manager=PLANNER_FIELD_MANAGER,
                force=True,
                _content_type="application/apply-patch+yaml",
                _request_timeout=TIMEOUT_SECONDS,
            ),
            f"status of {self._deployment}",
        )

    async def event(self, event: Event) -> None:
        deployment = await self._read_deployment()
        body: Any = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{self._deployment[:40]}.{uuid.uuid4().hex[:16]}", "namespace": self._namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": f"{GROUP}/planner",
            "reportingInstance": self._instance,
            "action": "Scale",
            "reason": event.reason,
            "type": event.type,
            "note": event.message[:_NOTE_LIMIT],
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": DEPLOYMENT_KIND,
                "name": self._deployment,
                "namespace": self._namespace,
                "uid": deployment["metadata"].get("uid"),
            },
        }
        await self._call(
            self._events.create_namespaced_event(self._namespace, body, _request_timeout=TIMEOUT_SECONDS),
            f"event {event.reason}",
        )

    def _condition(self, condition: Condition, generation: int | None) -> dict[str, object]:
        status, since = self._transitions.get(condition.type, ("", ""))
        if status != condition.status:
            since = format_time(datetime.now(UTC))
            self._transitions[condition.type] = (condition.status, since)
        document: dict[str, object] = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": since,
        }
        if generation is not None:
            document["observedGeneration"] = generation
        return document

    def _remember(self, deployment: Mapping[str, Any]) -> None:
        """Transition times of an earlier planner, so that a restart does not renew them."""
        for condition in (deployment.get("status") or {}).get("conditions") or ():
            times = (str(condition["status"]), str(condition["lastTransitionTime"]))
            self._transitions.setdefault(str(condition["type"]), times)

    async def _read_deployment(self) -> Mapping[str, Any]:
        document: Mapping[str, Any] = await self._call(
            self._custom.get_namespaced_custom_object(
                **self._deployments(), name=self._deployment, _request_timeout=TIMEOUT_SECONDS
            ),
            f"deployment {self._deployment}",
        )
        return document

    def _group(self) -> dict[str, Any]:
        return {
            "group": GROUP,
            "version": VERSION,
            "namespace": self._namespace,
            "plural": GROUP_PLURAL,
            "_request_timeout": TIMEOUT_SECONDS,
        }

    def _deployments(self) -> dict[str, Any]:
        return {"group": GROUP, "version": VERSION, "namespace": self._namespace, "plural": DEPLOYMENT_PLURAL}

    async def _call(self, call: Awaitable[Any], what: str) -> Any:
        try:
            return await call
        except client.ApiException as error:
            if error.status == 409:
                raise ScaleConflict(f"{what}: changed in between") from error
            if error.status is not None and error.status < 500 and error.status != 404:
                raise ScaleRefused(f"{what}: refused with {error.status}: {error.reason}") from error
            raise ScalerError(f"{what}: {error.status} {error.reason}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ScalerError(f"{what}: the API server cannot be reached: {error or type(error).__name__}") from error
