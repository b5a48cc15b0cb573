"""Labels, annotations and names on Kubernetes objects.

The operator writes them; the router discovers workers by them, the chart's Prometheus relabels by them, the planner's
queries select by the metric labels they become. Label values that users choose never enter here unchecked: names are
made by ``disagg_crds.names``.
"""

from enum import StrEnum
from typing import Final

GROUP: Final = "disagg.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"


class Role(StrEnum):
    """What an instance does. ``WORKER`` runs both phases on one instance (colocated)."""

    PREFILL = "prefill"
    DECODE = "decode"
    WORKER = "worker"


class Component(StrEnum):
    """Value of ``app.kubernetes.io/component``: the serving roles and the parts around them."""

    PREFILL = "prefill"
    DECODE = "decode"
    WORKER = "worker"
    ROUTER = "router"
    PLANNER = "planner"
    OPERATOR = "operator"


# Labels on pods and on the objects that own them.
DEPLOYMENT: Final = f"{GROUP}/deployment"
"""Name of the DisaggDeployment, or its shortened form where the name is longer than a label value may be."""
GROUP_LABEL: Final = f"{GROUP}/group"
"""Name of the DisaggGroup."""
ROLE: Final = f"{GROUP}/role"
"""One of :class:`Role`."""
INSTANCE: Final = f"{GROUP}/instance"
"""Name of the instance; all pods of one instance carry the same value."""
LEADER: Final = f"{GROUP}/leader"
"""``"true"`` on the one pod of an instance that serves HTTP. ``/scale`` selects by it, so it counts instances."""
GANG: Final = f"{GROUP}/gang"
"""Name of the gang a pod is placed with."""
REVISION: Final = f"{GROUP}/revision"
"""Hash of everything that changes the pods of a role, replicas excluded."""
PAIRING: Final = f"{GROUP}/pairing"
"""Hash of what prefill and decode must agree on to exchange KV; a change that leaves it equal needs no new partner."""
DRAINING: Final = f"{GROUP}/draining"
"""``"true"`` while an instance is being emptied: routers stop choosing it. Taking the label away cancels the drain."""
NVLINK_DOMAIN: Final = f"{GROUP}/nvlink-domain"
"""Domain the pod was placed in: the value of the placement level's node label, or its digest if that is too long."""

# Annotations.
DOMAIN_KEY: Final = f"{GROUP}/domain-key"
"""Node label key whose value ``NVLINK_DOMAIN`` repeats."""
GPUS: Final = f"{GROUP}/gpus"
"""GPUs of the pod, for people and dashboards."""
WORKER_INFO: Final = f"{GROUP}/worker-info"
"""What routers need to know of a worker that has no ``/disagg/info``, a real engine: a ``WorkerInfo`` as JSON, without
engine id."""
RESTARTED_AT: Final = f"{GROUP}/restartedAt"
"""Set on a DisaggDeployment to restart its pods; the value enters the revision."""
ROTATE_TOKEN: Final = f"{GROUP}/rotate-token"
"""Set on a DisaggDeployment, to any other value than before, to have its token replaced."""
SPEC_HASH: Final = f"{GROUP}/spec-hash"
"""Digest of the rendered manifest on objects that the operator applies."""

# Recommended labels of Kubernetes.
NAME: Final = "app.kubernetes.io/name"
INSTANCE_OF: Final = "app.kubernetes.io/instance"
COMPONENT: Final = "app.kubernetes.io/component"
PART_OF: Final = "app.kubernetes.io/part-of"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
VERSION_LABEL: Final = "app.kubernetes.io/version"

APP: Final = "disagg"
MANAGER: Final = "disagg-operator"

SCHEDULING_GATE: Final = f"{GROUP}/gang"
"""Scheduling gate that every GPU pod is born with; only the operator removes it, and only this one."""

# Field managers of server-side apply, one a writer.
OPERATOR_FIELD_MANAGER: Final = "disagg-operator"
PLANNER_FIELD_MANAGER: Final = "disagg-planner"

# Node labels and resources the defaults speak of.
GPU_CLIQUE: Final = "nvidia.com/gpu.clique"
GPU_PRODUCT: Final = "nvidia.com/gpu.product"
HOSTNAME: Final = "kubernetes.io/hostname"
GPU_RESOURCE: Final = "nvidia.com/gpu"


def worker_selector(deployment: str) -> str:
    """Label selector of every serving pod of a deployment, draining ones included."""
    roles = ",".join(role.value for role in Role)
    return f"{DEPLOYMENT}={deployment},{LEADER}=true,{ROLE} in ({roles})"
