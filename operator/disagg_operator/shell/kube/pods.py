"""Actions on instances, as writes to pods."""

import logging
import secrets
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from disagg_crds import DisaggDeployment, DisaggGroup, Reason, Role
from disagg_operator.core.actions import Action, CancelDrain, Create, Delete, Drain
from disagg_operator.core.conditions import Failure
from disagg_operator.core.gangs import base_name
from disagg_operator.core.status import Note
from disagg_operator.errors import ApiError, Conflict, Forbidden, NotFound
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.instances import NewInstance, instance_name, pod
from disagg_operator.render.metadata import owned_by_group
from disagg_operator.render.patches import mark_draining, unmark_draining
from disagg_operator.shell.kube.api import Api, Object
from disagg_operator.shell.kube.drains import Drains
from disagg_operator.shell.kube.resources import PODS

log = logging.getLogger(__name__)

_ALPHABET = string.ascii_lowercase + string.digits
_SUFFIX_LENGTH = 5
UNPROCESSABLE = 422


@dataclass(slots=True)
class Applied:
    """What came of the actions: events to post, and what stopped instances from being created."""

    notes: list[Note] = field(default_factory=list)
    failure: Failure | None = None
    changed: bool = False


class Pods:
    """Writes pods of one deployment at a time."""

    def __init__(self, api: Api, drains: Drains, *, around: Surroundings) -> None:
        self._api = api
        self._drains = drains
        self._around = around

    async def apply(
        self,
        actions: Iterable[Action],
        *,
        deployment: DisaggDeployment,
        groups: Mapping[Role, DisaggGroup],
        pods: Mapping[str, Object],
        now: float,
    ) -> Applied:
        """Do what the core decided. A pod that is gone, or that another pass made, is no error."""
        done = Applied()
        created: dict[Role, int] = {}
        for action in actions:
            if isinstance(action, Create):
                if done.failure is None:
                    await self._create(action, deployment, groups[action.role], done)
                    created[action.role] = created.get(action.role, 0) + (done.failure is None)
            else:
                await self._change(action, deployment.namespace, pods, now, done)
        done.notes += [
            Note("Normal", "InstancesCreated", f"created {number} {role.value} instance{'s' if number > 1 else ''}")
            for role, number in created.items()
            if number
        ]
        return done

    async def adopt(self, pod: Object, group: DisaggGroup) -> None:
        """Take in a pod of ours that lost its owner, as it is after ``kubectl delete dg --cascade=orphan``."""
        metadata = pod["metadata"]
        owners = [*(metadata.get("ownerReferences") or []), *owned_by_group(group)]
        # With the version that was read: somebody else may adopt it at the same time.
        body = {"metadata": {"ownerReferences": owners, "resourceVersion": metadata["resourceVersion"]}}
        await self._api.patch(PODS, metadata["name"], body, namespace=metadata["namespace"])
        log.info("%s/%s: adopted by %s", metadata["namespace"], metadata["name"], group.name)

    async def _create(self, action: Create, deployment: DisaggDeployment, group: DisaggGroup, done: Applied) -> None:
        suffix = "".join(secrets.choice(_ALPHABET) for _ in range(_SUFFIX_LENGTH))
        name = instance_name(group.name, suffix)
        gang = base_name(deployment.name) if action.base else name
        new = NewInstance(name=name, role=action.role, gang=gang)
        try:
            await self._api.create(
                PODS, pod(deployment, group, new, around=self._around), namespace=deployment.namespace
            )
            done.changed = True
        except Forbidden as error:
            reason = Reason.QUOTA_EXCEEDED if is_quota(error) else Reason.FORBIDDEN
            done.failure = Failure(reason, _refusal(action.role, name, group.name, error))
        except Conflict:
            # The name is taken, which the next pass answers with another one.
            done.changed = True
        except ApiError as error:
            if error.code != UNPROCESSABLE:
                raise
            done.failure = Failure(Reason.RECONCILE_FAILED, _refusal(action.role, name, group.name, error))

    async def _change(
        self,
        action: Drain | CancelDrain | Delete,
        namespace: str,
        pods: Mapping[str, Object],
        now: float,
        done: Applied,
    ) -> None:
        name = action.instance.name
        try:
            if isinstance(action, Drain):
                await self._api.patch(PODS, name, mark_draining(since=now), namespace=namespace)
                done.notes.append(Note("Normal", "InstanceDraining", f"{name}: {action.reason}"))
            elif isinstance(action, CancelDrain):
                await self._drains.cancel(pods[name])
                await self._api.patch(PODS, name, unmark_draining(), namespace=namespace)
                done.notes.append(Note("Normal", "DrainCancelled", f"{name} is wanted again"))
            else:
                await self._api.delete(PODS, name, namespace=namespace, uid=action.instance.uid)
                done.notes.append(Note("Normal", "InstanceDeleted", f"{name}: {action.reason}"))
        except (NotFound, Conflict):
            log.info("%s/%s changed before it could be written; looking again", namespace, name)
        done.changed = True


_QUOTA_WORDS = ("exceeded quota", "failed quota", "usage per Container", "usage per Pod", "limit to request ratio per")
"""What the admission plugins ResourceQuota and LimitRanger say; they share code and reason with a missing right."""


def is_quota(error: ApiError) -> bool:
    """Whether a ResourceQuota or a LimitRange refused, rather than a missing right."""
    return any(words in str(error) for words in _QUOTA_WORDS)


def _refusal(role: Role, pod_name: str, group_name: str, error: ApiError) -> str:
    """What the API server said of a pod, blaming the role's section.

    Each attempt has a name of its own: left in, it would make a new status, and so a new Event, of the same refusal.
    """
    return f"spec.{role.value}: {str(error).replace(pod_name, group_name)}"
