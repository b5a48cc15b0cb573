"""An instance as a Pod.

The pod is born with our scheduling gate and a unique name: a replacement never waits for the name of a pod that a lost
node cannot give up. It restarts in place when the process ends, which is a new engine id on the same pod.
"""

import math
from dataclasses import dataclass, replace

from disagg_contract import labels, ports
from disagg_contract.config import WorkerConfig
from disagg_contract.settings import to_args, variable
from disagg_crds import DisaggDeployment, DisaggGroup, EngineType, PodTemplate, Role, child_name
from disagg_operator.core.target import compatibility, role_revision
from disagg_operator.render import vllm
from disagg_operator.render.configs import Surroundings, worker_config
from disagg_operator.render.metadata import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    TMP_MOUNT,
    TMP_VOLUME,
    Manifest,
    component_labels,
    environment,
    owned_by_group,
    pod_environment,
    probe,
    pull_secrets,
    resources,
    template_fields,
)
from disagg_operator.render.tokens import TOKEN_FILE, TOKEN_MOUNT, token_volume

LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of a node whose kubelet is not heard of."""
STARTUP_BOUND_SECONDS = 3600
"""Longest start-up where the spec leaves it to the model; weights of hundreds of gigabytes take minutes."""
DRAIN_STARTED = f"{labels.GROUP}/drain-started"
"""Annotation: when the instance was marked for draining, seconds since the epoch."""
PLACED_AT = f"{labels.GROUP}/placed-at"
"""Annotation: when the pod was pinned, seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInstance:
    """What is decided about an instance before it exists. ``gang`` is the value of the gang label."""

    name: str
    role: Role
    gang: str


def instance_name(group: str, suffix: str) -> str:
    """Name of an instance and of its pod: the group's name and a suffix that is never used again."""
    return child_name(group, suffix)


def pod(deployment: DisaggDeployment, group: DisaggGroup, new: NewInstance, *, around: Surroundings) -> Manifest:
    """The gated pod of a new instance."""
    section = deployment.spec.roles[new.role]
    engine = deployment.spec.engine
    real = engine.type is EngineType.VLLM
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": new.name,
            "namespace": deployment.namespace,
            "labels": {**section.template.labels, **pod_labels(deployment, group, new, around=around)},
            "annotations": {
                **section.template.annotations,
                labels.GPUS: str(section.gpus_per_instance),
                **(vllm.annotations(deployment, new.role) if real else {}),
            },
            "ownerReferences": owned_by_group(group),
        },
        "spec": {
            **template_fields(section.template),
            **pull_secrets(engine.image_pull_secrets if engine.image else around.image_pull_secrets),
            "tolerations": _tolerations(section.template, deployment.spec.placement.node_loss_seconds),
            "schedulingGates": [{"name": labels.SCHEDULING_GATE}],
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": vllm.pod_security(engine.vllm_settings) if real else POD_SECURITY,
            "containers": [
                vllm.container(deployment, new.role) if real else _container(deployment, new.role, around=around)
            ],
            "volumes": vllm.volumes(engine.vllm_settings) if real else [TMP_VOLUME, token_volume(deployment.name)],
        },
    }


def pod_labels(
    deployment: DisaggDeployment, group: DisaggGroup, new: NewInstance, *, around: Surroundings
) -> dict[str, str]:
    """Labels that discovery, ``/scale``, placement and people select by."""
    return {
        **component_labels(deployment.name, labels.Component(new.role.value), version=around.version),
        labels.GROUP_LABEL: group.name,
        labels.ROLE: new.role.value,
        labels.INSTANCE: new.name,
        labels.LEADER: "true",
        labels.GANG: new.gang,
        labels.REVISION: role_revision(deployment, new.role, image=around.image),
        labels.PAIRING: compatibility(deployment),
    }


def _tolerations(template: PodTemplate, node_loss_seconds: int) -> list[Manifest]:
    """The template's, and for how long the pod stays on a node that is lost where the template leaves that open."""
    given = [toleration.to_dict() for toleration in template.tolerations]
    return given + [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": node_loss_seconds}
        for key in LOST_NODE_TAINTS
        if not any(item.get("key", key) == key and item.get("effect", "NoExecute") == "NoExecute" for item in given)
    ]


def group_selector(deployment: str, group: str) -> str:
    """Selector of one leader pod an instance of a group, as ``/scale`` shows it."""
    return f"{labels.DEPLOYMENT}={deployment},{labels.GROUP_LABEL}={group},{labels.LEADER}=true"


def _container(deployment: DisaggDeployment, role: Role, *, around: Surroundings) -> Manifest:
    spec, section = deployment.spec, deployment.spec.roles[role]
    config = replace(worker_config(deployment, role, around=around), port=ports.HTTP, kv_port=ports.KV_TRANSFER)
    variables = [
        *pod_environment(),
        {"name": variable(WorkerConfig, "kv_host"), "value": "$(POD_IP)"},
        # Not a flag: an image of the spec's choice may be older than this operator, and ignores a variable.
        {"name": variable(WorkerConfig, "token_file"), "value": TOKEN_FILE},
    ]
    devices = {section.gpu.resource_name: str(section.gpus_per_instance)}
    return {
        "name": "worker",
        "image": spec.engine.image or around.image,
        "imagePullPolicy": spec.engine.image_pull_policy if spec.engine.image else around.image_pull_policy,
        "command": ["disagg", "worker"],
        "args": to_args(config),
        "env": environment(section.template, variables),
        "ports": [
            {"name": ports.HTTP_NAME, "containerPort": ports.HTTP, "protocol": "TCP"},
            {"name": ports.KV_TRANSFER_NAME, "containerPort": ports.KV_TRANSFER, "protocol": "TCP"},
        ],
        "resources": resources(section.template, devices=devices),
        "startupProbe": probe(ports.HEALTH_PATH, ports.HTTP_NAME, period=1, failures=_startup_bound(deployment)),
        "readinessProbe": probe(ports.HEALTH_PATH, ports.HTTP_NAME, period=2, failures=2),
        # Liveness asks for a page that is served while the worker loads or drains, and to whom has no token: being
        # unready is no reason to die.
        "livenessProbe": probe(ports.METRICS_PATH, ports.HTTP_NAME, period=10, failures=6, timeout=5),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [TMP_MOUNT, TOKEN_MOUNT],
    }


def _startup_bound(deployment: DisaggDeployment) -> int:
    """Seconds after which a worker that is not ready is restarted: ten minutes beyond what the model says."""
    engine = deployment.spec.engine.simulated
    if engine.startup_seconds is None:
        return STARTUP_BOUND_SECONDS
    return 600 + math.ceil(engine.startup_seconds / engine.time_scale)
