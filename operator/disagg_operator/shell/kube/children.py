"""Objects that are applied: router, planner, their rights, and the groups.

An object is written only when its rendered manifest changed (a digest is kept in an annotation) or when somebody
changed what we had said; in the steady state nothing is written. What the spec no longer asks for is deleted, but only
if it is ours by owner reference.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from disagg_contract import labels
from disagg_crds import DEPLOYMENT_KIND, DisaggDeployment
from disagg_operator.errors import ApiError, Conflict
from disagg_operator.shell.kube.api import Api, Object
from disagg_operator.shell.kube.resources import BY_KIND, CHILDREN, Resource

Live = dict[tuple[str, str], Object]
"""Objects by kind and name."""

_NORMALISED = frozenset({"resources"})
"""Fields whose values the API server rewrites (1000m becomes 1): comparing them would find a change for ever."""


def selector(deployment: str) -> str:
    """Everything that carries the deployment's label."""
    return f"{labels.DEPLOYMENT}={deployment}"


async def observe(api: Api, deployment: DisaggDeployment) -> Live:
    """The children that live now."""
    found: Live = {}
    for resource in CHILDREN:
        for item in await api.objects(resource, namespace=deployment.namespace, selector=selector(deployment.name)):
            # Items of a list carry neither kind nor version.
            found[resource.kind, item["metadata"]["name"]] = item | {
                "kind": resource.kind,
                "apiVersion": resource.api_version,
            }
    return found


async def converge(api: Api, deployment: DisaggDeployment, wanted: Iterable[Object], live: Live) -> Live:
    """Apply what differs and delete what is not wanted. Returns the children as they are afterwards."""
    result: Live = {}
    for manifest in wanted:
        key = (manifest["kind"], manifest["metadata"]["name"])
        signed = sign(manifest)
        found = live.get(key)
        if found is not None:
            must_be_free(found, deployment)
        if found is None or differs(found, signed):
            found = await api.apply(BY_KIND[manifest["kind"]], signed, namespace=deployment.namespace)
        result[key] = found
    for key, item in live.items():
        if key not in result and is_owned(item, deployment.metadata.uid):
            await delete(api, BY_KIND[key[0]], item)
    return result


async def delete(api: Api, resource: Resource, item: Object) -> None:
    """Delete this very object, unless it is on its way out."""
    metadata = item["metadata"]
    if not metadata.get("deletionTimestamp"):
        await api.delete(resource, metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"])


def is_owned(item: Object, uid: str | None) -> bool:
    """Whether the object's controller is the object with this UID."""
    owners = item["metadata"].get("ownerReferences") or []
    return any(owner.get("controller") and owner.get("uid") == uid for owner in owners)


def is_free(item: Object) -> bool:
    """Whether nothing controls the object and it is not on its way out, so that it may be adopted."""
    metadata = item["metadata"]
    owned = any(owner.get("controller") for owner in metadata.get("ownerReferences") or [])
    return not owned and not metadata.get("deletionTimestamp")


def must_be_free(item: Object, deployment: DisaggDeployment) -> None:
    """Make sure that no other controller owns the object.

    Raises Conflict where it belongs to a deployment of our name that was deleted, since Kubernetes is about to delete
    it, and ApiError where it belongs to somebody else.
    """
    metadata = item["metadata"]
    for owner in metadata.get("ownerReferences") or []:
        if not owner.get("controller") or owner.get("uid") == deployment.metadata.uid:
            continue
        what = f"{item.get('kind', 'object')} {metadata['name']}"
        if (owner["kind"], owner["name"]) == (DEPLOYMENT_KIND, deployment.name):
            raise Conflict(f"{what} still belongs to an earlier {deployment.name} and is about to go")
        raise ApiError(f"{what} belongs to {owner['kind']} {owner['name']}; rename that or this deployment")


def sign(manifest: Object) -> Object:
    """The manifest with the digest of itself in an annotation."""
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]
    metadata = manifest["metadata"]
    annotations = {**(metadata.get("annotations") or {}), labels.SPEC_HASH: digest}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def differs(live: Object, wanted: Object) -> bool:
    """Whether applying would change something: another digest, or a value of ours that somebody changed."""
    return not covers(live, wanted)


def covers(live: Any, wanted: Any) -> bool:
    """Whether ``live`` has every value of ``wanted``; it may have more (defaults, other writers' fields)."""
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(
            key in _NORMALISED or (key in live and covers(live[key], value)) or value in ({}, [], None)
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(map(covers, live, wanted))
    return bool(live == wanted)
