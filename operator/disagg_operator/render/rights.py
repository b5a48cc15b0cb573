"""ServiceAccounts with least privilege, and the rights that the operator itself needs.

Kubernetes lets nobody grant a right that he does not hold: everything in ``ROUTER_RULES`` and ``PLANNER_RULES`` must
be among the operator's own. ``OPERATOR_RULES`` is what the chart renders; the integration tests record every call and
compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from disagg_contract import labels
from disagg_crds import GROUP, DisaggDeployment
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.metadata import Manifest, component_labels, owned_by_deployment


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on resources of one API group. ``scope``: namespaced, cluster (no namespace), or lease (own namespace)."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    scope: str = "namespaced"

    def to_manifest(self) -> Manifest:
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


ROUTER_RULES = (Rule("", ("pods",), ("list", "watch")),)
PLANNER_RULES = (
    Rule(GROUP, ("disaggdeployments",), ("get",)),
    Rule(GROUP, ("disaggdeployments/status",), ("patch",)),
    Rule(GROUP, ("disagggroups",), ("get",)),
    Rule(GROUP, ("disagggroups/scale",), ("get", "update")),
    Rule("events.k8s.io", ("events",), ("create",)),
)

OPERATOR_RULES = (
    Rule(GROUP, ("disaggdeployments",), ("get", "list", "watch")),
    Rule(GROUP, ("disaggdeployments/status",), ("get", "patch")),
    Rule(GROUP, ("disagggroups",), ("get", "list", "watch", "create", "patch", "delete")),
    Rule(GROUP, ("disagggroups/status",), ("get", "patch")),
    Rule(GROUP, ("disagggroups/scale",), ("get", "patch", "update")),
    # Children block their owner's deletion; where OwnerReferencesPermissionEnforcement is on, saying so needs this.
    Rule(GROUP, ("disaggdeployments/finalizers", "disagggroups/finalizers"), ("update",)),
    Rule("", ("pods",), ("get", "list", "watch", "create", "patch", "delete")),
    Rule("", ("services", "serviceaccounts"), ("get", "list", "create", "patch", "delete")),
    # By name alone: the one with the deployment's token.
    Rule("", ("secrets",), ("get", "create", "patch")),
    Rule("apps", ("deployments",), ("get", "list", "watch", "create", "patch", "delete")),
    Rule("rbac.authorization.k8s.io", ("roles", "rolebindings"), ("get", "list", "create", "patch", "delete")),
    Rule("policy", ("poddisruptionbudgets",), ("get", "list", "create", "patch", "delete")),
    Rule("networking.k8s.io", ("networkpolicies",), ("get", "list", "create", "patch", "delete")),
    Rule("events.k8s.io", ("events",), ("create",)),
    Rule("", ("nodes",), ("get", "list", "watch"), scope="cluster"),
    Rule("", ("namespaces",), ("list", "watch"), scope="cluster"),
    Rule("apiextensions.k8s.io", ("customresourcedefinitions",), ("list", "watch"), scope="cluster"),
    Rule("coordination.k8s.io", ("leases",), ("get", "create", "update"), scope="lease"),
)


def access(
    deployment: DisaggDeployment,
    name: str,
    component: labels.Component,
    rules: Sequence[Rule],
    *,
    around: Surroundings,
) -> list[Manifest]:
    """ServiceAccount, Role and RoleBinding of one name."""
    metadata = {
        "name": name,
        "namespace": deployment.namespace,
        "labels": component_labels(deployment.name, component, version=around.version),
        "ownerReferences": owned_by_deployment(deployment),
    }
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [rule.to_manifest() for rule in rules],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": deployment.namespace}],
        },
    ]
