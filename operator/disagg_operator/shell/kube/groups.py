"""Reconcile of a DisaggGroup: its status, which is what ``/scale``, an HPA and ``kubectl get dg`` read.

How many instances there should be is the parent's business; here they are only counted.
"""

from disagg_crds import SpecError, group_name, read_deployment, read_group
from disagg_operator.core.fleet import RoleTarget, count
from disagg_operator.core.status import group_status
from disagg_operator.core.target import role_revision
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.instances import group_selector
from disagg_operator.render.reading import instance
from disagg_operator.shell.kube import children
from disagg_operator.shell.kube.api import Api
from disagg_operator.shell.kube.resources import DEPLOYMENTS, GROUPS, PODS


class GroupReconciler:
    """Call it with namespace and name."""

    def __init__(self, api: Api, *, around: Surroundings) -> None:
        self._api = api
        self._around = around

    async def __call__(self, namespace: str, name: str) -> float | None:
        document = await self._api.find(GROUPS, name, namespace=namespace)
        if document is None or document["metadata"].get("deletionTimestamp"):
            return None
        try:
            group = read_group(document)
            parent = await self._api.find(DEPLOYMENTS, group.spec.deployment, namespace=namespace)
            if parent is None or parent["metadata"].get("deletionTimestamp"):
                return None
            deployment = read_deployment(parent)
        except SpecError:
            # The deployment's own status says what is wrong.
            return None
        section = deployment.spec.roles.get(group.spec.role)
        if section is None or group_name(deployment.name, group.spec.role) != name:
            return None
        selector = group_selector(deployment.name, name)
        found = await self._api.objects(PODS, namespace=namespace, selector=selector)
        instances = [instance(pod) for pod in found if children.is_owned(pod, group.metadata.uid)]
        target = RoleTarget(
            role=group.spec.role,
            replicas=group.spec.replicas,
            base=section.base_instances,
            gpus=section.gpus_per_instance,
            revision=role_revision(deployment, group.spec.role, image=self._around.image),
        )
        status = group_status(
            count(target, instances), selector=selector, generation=group.metadata.generation
        ).to_dict()
        if status != group.status.model_copy(update={"conditions": ()}).to_dict():
            body = {
                "apiVersion": GROUPS.api_version,
                "kind": GROUPS.kind,
                "metadata": {"name": name, "namespace": namespace, "uid": group.metadata.uid},
                "status": status,
            }
            await self._api.apply(GROUPS, body, namespace=namespace, subresource="status")
        return None
