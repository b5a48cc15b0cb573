"""PodDisruptionBudgets: a node drain takes no role below its minAvailable, and routers one by one.

They bound evictions only; what the operator itself takes away it counts on its own. A role with minAvailable 0 has
none, nor has a single router, which it could only hold in place. Instances that are not ready may always be evicted: a
broken one must not hold up a node drain.
"""

from disagg_contract import labels
from disagg_crds import DisaggDeployment, group_name, router_name
from disagg_operator.render.metadata import Manifest, component_labels, owned_by_deployment, selector_labels


def disruption_budgets(deployment: DisaggDeployment, *, version: str = "") -> list[Manifest]:
    """One budget for each role that must keep instances, and one for routers where there are several."""
    found = [
        _budget(
            deployment,
            name=group_name(deployment.name, role),
            component=labels.Component(role.value),
            bound={"minAvailable": section.base_instances},
            chosen={labels.DEPLOYMENT: deployment.name, labels.ROLE: role.value, labels.LEADER: "true"},
            version=version,
        )
        for role, section in deployment.spec.roles.items()
        if section.base_instances
    ]
    if deployment.spec.router.replicas > 1:
        found.append(
            _budget(
                deployment,
                name=router_name(deployment.name),
                component=labels.Component.ROUTER,
                bound={"maxUnavailable": 1},
                chosen=selector_labels(deployment.name, labels.Component.ROUTER),
                version=version,
            )
        )
    return found


def _budget(
    deployment: DisaggDeployment,
    *,
    name: str,
    component: labels.Component,
    bound: dict[str, int],
    chosen: dict[str, str],
    version: str,
) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": name,
            "namespace": deployment.namespace,
            "labels": component_labels(deployment.name, component, version=version),
            "ownerReferences": owned_by_deployment(deployment),
        },
        "spec": {
            **bound,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": chosen},
        },
    }
