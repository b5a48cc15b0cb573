"""From manifests, as the API server returns them, to the values that core and placement work with.

The inverse of the builders beside it. Requests are read from the live pod rather than from the spec, because admission
(LimitRange, RuntimeClass overhead) may have changed them.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from disagg_contract import labels
from disagg_crds import Role
from disagg_operator.core.fleet import Instance, RouterView
from disagg_operator.core.placement import NodeView, PodDemand, PodUse, Requirement, Taint, Tolerance
from disagg_operator.core.quantity import amount
from disagg_operator.render.instances import DRAIN_STARTED, PLACED_AT

Manifest = Mapping[str, Any]

FINISHED = ("Succeeded", "Failed")


def epoch(text: str | None) -> float:
    """Seconds since the epoch of an RFC 3339 time; 0 where there is none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def instance(pod: Manifest, *, drained: bool = False, lost: bool = False) -> Instance:
    """An instance from its leader pod. ``lost``: its node is gone or not heard of."""
    metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    own = metadata.get("labels") or {}
    notes = metadata.get("annotations") or {}
    placed_at = _seconds(notes.get(PLACED_AT))
    selector = spec.get("nodeSelector") or {}
    return Instance(
        name=metadata["name"],
        uid=metadata["uid"],
        role=Role(own[labels.ROLE]),
        gpus=int(notes.get(labels.GPUS, "0")),
        created_at=epoch(metadata.get("creationTimestamp")),
        revision=own.get(labels.REVISION, ""),
        gang=own.get(labels.GANG, ""),
        gated=gated(pod),
        pinned_node=selector.get(labels.HOSTNAME, "") if placed_at is not None else "",
        placed_at=placed_at,
        node=spec.get("nodeName", ""),
        domain=own.get(labels.NVLINK_DOMAIN, ""),
        ready=is_ready(pod),
        draining_since=_draining_since(own, notes),
        drained=drained,
        terminating=bool(metadata.get("deletionTimestamp")),
        failed=status.get("phase") in FINISHED,
        trouble=trouble(pod),
        pairing=own.get(labels.PAIRING, ""),
        lost=lost,
    )


def gated(pod: Manifest) -> bool:
    """Whether our gate still holds the pod."""
    gates = pod.get("spec", {}).get("schedulingGates") or []
    return any(gate.get("name") == labels.SCHEDULING_GATE for gate in gates)


def is_ready(pod: Manifest) -> bool:
    """The pod's Ready condition."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def trouble(pod: Manifest) -> str:
    """What keeps the pod's containers from starting, or nothing.

    The kubelet's reasons alternate between attempt and back-off; these words do not, so they cause no status writes.
    """
    for container in pod.get("status", {}).get("containerStatuses") or []:
        state = container.get("state") or {}
        reason = (state.get("waiting") or {}).get("reason", "")
        if reason in _IMAGE_REASONS:
            return f"image {container.get('image', '')} cannot be pulled"
        if reason in _CREATE_REASONS:
            return f"its container cannot be created: {reason}"
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
        if ended.get("reason") == "OOMKilled":
            return "it was killed for using more memory than its limit"
        if ended.get("exitCode"):
            return f"its process ended with exit status {ended['exitCode']}, see kubectl logs --previous"
    return ""


_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError")
_CREATE_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


def _draining_since(own: Mapping[str, str], notes: Mapping[str, str]) -> float | None:
    if own.get(labels.DRAINING) != "true":
        return None
    return _seconds(notes.get(DRAIN_STARTED)) or 0.0


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def demand(pod: Manifest) -> PodDemand:
    """What a gated pod wants of a node."""
    spec = pod.get("spec", {})
    own = pod["metadata"].get("labels") or {}
    return PodDemand(
        uid=pod["metadata"]["uid"],
        name=pod["metadata"]["name"],
        role=own.get(labels.ROLE, ""),
        instance=own.get(labels.INSTANCE, ""),
        requests=requests(pod),
        node_terms=node_terms(pod),
        priority=int(spec.get("priority") or 0),
        preempts=spec.get("preemptionPolicy") != "Never",
        node_selector=spec.get("nodeSelector") or {},
        tolerations=tuple(
            Tolerance(
                item.get("key", ""),
                item.get("operator") or "Equal",
                item.get("value", ""),
                item.get("effect", ""),
            )
            for item in spec.get("tolerations") or []
        ),
    )


def node_terms(pod: Manifest) -> tuple[tuple[Requirement, ...], ...]:
    """Terms of the pod's required node affinity."""
    affinity = (pod.get("spec", {}).get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return tuple(
        tuple(
            Requirement(item["key"], item["operator"], tuple(item.get("values") or ()), field)
            for field, part in ((False, "matchExpressions"), (True, "matchFields"))
            for item in term.get(part) or []
        )
        for term in required.get("nodeSelectorTerms") or []
    )


def requests(pod: Manifest) -> dict[str, int]:
    """Effective requests of a pod, as the scheduler counts them.

    Sum over containers and sidecars, or the largest init container where that is more, plus the overhead.
    """
    spec = pod.get("spec", {})
    total: dict[str, int] = {}
    for container in spec.get("containers") or []:
        _add(total, _container_requests(container))
    sidecars: dict[str, int] = {}
    for container in spec.get("initContainers") or []:
        own = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, own)
            _add(total, own)
            continue
        for resource, value in own.items():
            total[resource] = max(total.get(resource, 0), value + sidecars.get(resource, 0))
    _add(total, _amounts(spec.get("overhead") or {}))
    return total


def _container_requests(container: Manifest) -> dict[str, int]:
    given = container.get("resources") or {}
    return _amounts({**(given.get("limits") or {}), **(given.get("requests") or {})})


def _amounts(quantities: Mapping[str, Any]) -> dict[str, int]:
    return {resource: amount(resource, text) for resource, text in quantities.items()}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for resource, value in more.items():
        total[resource] = total.get(resource, 0) + value


def use(pod: Manifest) -> PodUse | None:
    """What a pod takes, or None while it takes nothing: finished, gated, or not ours to foresee.

    A pod of ours that is pinned and not bound yet counts on the node that it is pinned to.
    """
    if pod.get("status", {}).get("phase") in FINISHED:
        return None
    metadata, spec = pod["metadata"], pod.get("spec", {})
    node = spec.get("nodeName") or ""
    hostname = ""
    if not node:
        if gated(pod) or PLACED_AT not in (metadata.get("annotations") or {}):
            return None
        hostname = (spec.get("nodeSelector") or {}).get(labels.HOSTNAME, "")
    taken = tuple(sorted(requests(pod).items()))
    return PodUse(metadata["uid"], node, taken, hostname, int(spec.get("priority") or 0))


def node_is_ready(node: Manifest) -> bool:
    """Whether the node's kubelet is heard of and well."""
    conditions = node.get("status", {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def node_view(node: Manifest) -> NodeView:
    """A node as the scheduler would see it."""
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    return NodeView(
        name=metadata["name"],
        labels=metadata.get("labels") or {},
        allocatable=_amounts(status.get("allocatable") or {}),
        taints=tuple(Taint(item["key"], item.get("value", ""), item["effect"]) for item in spec.get("taints") or []),
        schedulable=node_is_ready(node)
        and not spec.get("unschedulable", False)
        and not metadata.get("deletionTimestamp"),
    )


def router_view(deployment: Manifest | None, *, desired: int) -> RouterView:
    """The router from its Deployment; None: it does not exist yet."""
    if deployment is None:
        return RouterView(desired=desired, up_to_date=False)
    status = deployment.get("status", {})
    observed = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return RouterView(
        desired=desired,
        current=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        up_to_date=observed,
    )
