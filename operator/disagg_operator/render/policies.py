"""NetworkPolicies: who may reach the pods of a deployment.

Routers are the front, and open at their one port. Workers listen to the routers of their own deployment, to each other
(every port: NIXL's transports choose theirs), and to the namespaces that the operator was told to trust, for metrics
and drains. So tenants cannot reach each other's KV, nor go round the router. What goes out is not restricted. A policy
binds only where the cluster's network enforces policies.
"""

from typing import Any

from disagg_contract import labels, ports
from disagg_crds import DisaggDeployment, child_name, planner_name, router_name
from disagg_operator.render.configs import Surroundings, needs_planner
from disagg_operator.render.metadata import Manifest, component_labels, owned_by_deployment, selector_labels

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Label that the API server gives to every namespace."""


def network_policies(deployment: DisaggDeployment, *, around: Surroundings) -> list[Manifest]:
    """The policies of a deployment; none where the operator was not asked for any."""
    if not around.network_policies:
        return []
    trusted = _namespaces(around.trusted_namespaces)
    workers = {
        "matchLabels": {labels.DEPLOYMENT: deployment.name},
        "matchExpressions": [{"key": labels.ROLE, "operator": "Exists"}],
    }
    router = {"matchLabels": selector_labels(deployment.name, labels.Component.ROUTER)}
    found = [
        _policy(deployment, router_name(deployment.name), router, [{"ports": [_port(ports.HTTP_NAME)]}], around),
        _policy(
            deployment,
            child_name(deployment.name, "workers"),
            workers,
            [
                {"from": [{"podSelector": workers}]},
                {"from": [{"podSelector": router}, *trusted], "ports": [_port(ports.HTTP_NAME)]},
            ],
            around,
        ),
    ]
    if needs_planner(deployment):
        planner = {"matchLabels": selector_labels(deployment.name, labels.Component.PLANNER)}
        let_in = [{"from": trusted, "ports": [_port(ports.METRICS_NAME)]}] if trusted else []
        found.append(_policy(deployment, planner_name(deployment.name), planner, let_in, around))
    return found


def _namespaces(names: tuple[str, ...]) -> list[Manifest]:
    if not names:
        return []
    wanted = {"key": NAMESPACE_NAME, "operator": "In", "values": list(names)}
    return [{"namespaceSelector": {"matchExpressions": [wanted]}}]


def _port(name: str) -> Manifest:
    return {"port": name, "protocol": "TCP"}


def _policy(
    deployment: DisaggDeployment, name: str, selector: Manifest, ingress: list[Any], around: Surroundings
) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": name,
            "namespace": deployment.namespace,
            "labels": {
                **component_labels(deployment.name, labels.Component.OPERATOR, version=around.version),
                labels.COMPONENT: "network",
            },
            "ownerReferences": owned_by_deployment(deployment),
        },
        "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress},
    }
