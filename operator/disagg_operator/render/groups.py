"""The DisaggGroup of a role, as applied at creation and, in mode ``replicas``, to put a hand-made scale back."""

from disagg_contract import labels
from disagg_crds import API_VERSION, GROUP_KIND, DisaggDeployment, Role, group_name
from disagg_operator.render.metadata import Manifest, component_labels, owned_by_deployment


def group(deployment: DisaggDeployment, role: Role, replicas: int, *, version: str = "") -> Manifest:
    """The whole group; ``replicas`` is only ever sent when the operator is its writer or the group is new."""
    return {
        "apiVersion": API_VERSION,
        "kind": GROUP_KIND,
        "metadata": {
            "name": group_name(deployment.name, role),
            "namespace": deployment.namespace,
            "labels": {
                **component_labels(deployment.name, labels.Component(role.value), version=version),
                labels.ROLE: role.value,
            },
            "ownerReferences": owned_by_deployment(deployment),
        },
        "spec": {"deployment": deployment.name, "role": role.value, "replicas": replicas},
    }
