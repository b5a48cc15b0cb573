"""Labels, owners and the parts of a manifest that every object of ours shares."""

from collections.abc import Sequence
from typing import Any

from disagg_contract import labels
from disagg_crds import API_VERSION, DEPLOYMENT_KIND, GROUP_KIND, DisaggDeployment, DisaggGroup, PodTemplate

Manifest = dict[str, Any]
"""A Kubernetes object as JSON values."""


def component_labels(deployment: str, component: labels.Component, *, version: str = "") -> dict[str, str]:
    """Recommended labels plus the one that ties an object to its deployment."""
    found = {
        labels.NAME: labels.APP,
        labels.INSTANCE_OF: deployment,
        labels.COMPONENT: component.value,
        labels.PART_OF: deployment,
        labels.MANAGED_BY: labels.MANAGER,
        labels.DEPLOYMENT: deployment,
    }
    return {**found, labels.VERSION_LABEL: version} if version else found


def selector_labels(deployment: str, component: labels.Component) -> dict[str, str]:
    """Labels a selector may use: those that never change."""
    return {labels.DEPLOYMENT: deployment, labels.COMPONENT: component.value}


def owned_by_deployment(deployment: DisaggDeployment) -> list[Manifest]:
    """ownerReferences to the deployment: Kubernetes deletes the child with it, whether the operator runs or not."""
    return [_owner(DEPLOYMENT_KIND, deployment.name, deployment.metadata.uid)]


def owned_by_group(group: DisaggGroup) -> list[Manifest]:
    """ownerReferences to the group of a role."""
    return [_owner(GROUP_KIND, group.name, group.metadata.uid)]


def _owner(kind: str, name: str, uid: str | None) -> Manifest:
    if not uid:
        raise ValueError(f"{kind} {name} has no uid: only an object read from the API server can own another")
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


POD_SECURITY: Manifest = {
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""What the restricted Pod Security standard asks for, and a read-only root."""

TMP_VOLUME: Manifest = {"name": "tmp", "emptyDir": {}}
TMP_MOUNT: Manifest = {"name": "tmp", "mountPath": "/tmp"}

DEFAULT_REQUESTS = {"cpu": "50m", "memory": "192Mi"}
"""Of our own programs where the spec says nothing; a simulated worker computes little."""


def pod_environment() -> list[Manifest]:
    """The pod's own name, namespace and address."""
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]


def template_fields(template: PodTemplate) -> Manifest:
    """Pod spec fields that a template sets; absent ones are left out."""
    found: Manifest = {"terminationGracePeriodSeconds": template.termination_grace_period_seconds}
    if template.node_selector:
        found["nodeSelector"] = dict(template.node_selector)
    if template.affinity is not None:
        found["affinity"] = template.affinity.to_dict()
    if template.tolerations:
        found["tolerations"] = [toleration.to_dict() for toleration in template.tolerations]
    if template.priority_class_name:
        found["priorityClassName"] = template.priority_class_name
    if template.runtime_class_name:
        found["runtimeClassName"] = template.runtime_class_name
    return found


def pull_secrets(names: Sequence[str]) -> Manifest:
    """The pod's field that names Secrets to pull its image with; empty without any."""
    return {"imagePullSecrets": [{"name": name} for name in names]} if names else {}


def resources(template: PodTemplate, *, devices: dict[str, str] | None = None) -> Manifest:
    """Container resources: the template's, our defaults for what it leaves open, and devices as request and limit."""
    requests = {**DEFAULT_REQUESTS, **template.resources.requests, **(devices or {})}
    limits = {**template.resources.limits, **(devices or {})}
    for resource, limit in template.resources.limits.items():
        if resource not in template.resources.requests:
            requests[resource] = limit
    return {"requests": requests, **({"limits": limits} if limits else {})}


def environment(template: PodTemplate, own: list[Manifest]) -> list[Manifest]:
    """Our variables and the template's; the template wins on equal names."""
    given = {variable.name: {"name": variable.name, "value": variable.value} for variable in template.env}
    return [item for item in own if item["name"] not in given] + list(given.values())


def probe(path: str, port: str, *, period: int, failures: int, timeout: int = 3) -> Manifest:
    """An HTTP probe; seconds."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }
