"""PodDisruptionBudgets: a node drain takes no role below its minAvailable.

They bound evictions only; what the operator itself takes away it counts on its own. A role with minAvailable 0 has
none. Instances that are not ready may always be evicted: a broken one must not hold up a node drain.
"""

from disagg_contract import labels
from disagg_crds import DisaggDeployment, Role, group_name
from disagg_operator.render.metadata import Manifest, component_labels, owned_by_deployment


def disruption_budgets(deployment: DisaggDeployment, *, version: str = "") -> list[Manifest]:
    """One budget for each role that must keep instances."""
    roles = deployment.spec.roles.items()
    return [
        _budget(deployment, role, section.base_instances, version) for role, section in roles if section.base_instances
    ]


def _budget(deployment: DisaggDeployment, role: Role, least: int, version: str) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": group_name(deployment.name, role),
            "namespace": deployment.namespace,
            "labels": component_labels(deployment.name, labels.Component(role.value), version=version),
            "ownerReferences": owned_by_deployment(deployment),
        },
        "spec": {
            "minAvailable": least,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {
                "matchLabels": {
                    labels.DEPLOYMENT: deployment.name,
                    labels.ROLE: role.value,
                    labels.LEADER: "true",
                }
            },
        },
    }
