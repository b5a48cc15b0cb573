"""The few changes that pods see after birth."""

from typing import Any

from disagg_contract import labels
from disagg_operator.render.instances import DRAIN_STARTED, PLACED_AT

_LABEL_LENGTH = 63


def pin(*, hostname: str, gang: str, domain_key: str, domain: str, placed_at: float) -> dict[str, Any]:
    """Strategic merge patch that sends a gated pod to one node and removes our gate, in one write.

    ``hostname`` is the node's ``kubernetes.io/hostname`` label, which differs from its name on some clouds. Gates of
    others stay.
    """
    annotations = {PLACED_AT: f"{placed_at:.3f}"}
    if domain_key:
        annotations[labels.DOMAIN_KEY] = domain_key
    return {
        "metadata": {
            "labels": {labels.GANG: gang, labels.NVLINK_DOMAIN: domain_label(domain)},
            "annotations": annotations,
        },
        "spec": {
            "nodeSelector": {labels.HOSTNAME: hostname},
            "schedulingGates": [{"$patch": "delete", "name": labels.SCHEDULING_GATE}],
        },
    }


def domain_label(domain: str) -> str:
    """A domain as a label value. Values of node labels fit already; node names may be longer than label values."""
    return domain if len(domain) <= _LABEL_LENGTH else domain[:_LABEL_LENGTH].rstrip("-._")


def mark_draining(*, since: float) -> dict[str, Any]:
    """Merge patch: routers stop choosing the pod."""
    return {
        "metadata": {
            "labels": {labels.DRAINING: "true"},
            "annotations": {DRAIN_STARTED: f"{since:.3f}"},
        }
    }


def unmark_draining() -> dict[str, Any]:
    """Merge patch that takes the mark away."""
    return {"metadata": {"labels": {labels.DRAINING: None}, "annotations": {DRAIN_STARTED: None}}}
