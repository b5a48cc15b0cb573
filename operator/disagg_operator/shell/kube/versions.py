"""Whether the CRDs are of the operator's own version.

An API server drops fields that its CRD does not name, and the symptom shows elsewhere: a setting without effect, a
status that never comes. So it is said once, at the start, when the two differ.
"""

import logging
from collections.abc import Iterable
from typing import Final

from disagg_contract import labels
from disagg_crds import GROUP
from disagg_operator.errors import ApiError
from disagg_operator.shell.kube.api import Api, Object
from disagg_operator.shell.kube.resources import Resource

log = logging.getLogger(__name__)

DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)


async def compare_versions(api: Api, *, own: str) -> None:
    """Warn of CRDs of another version. Without the right to read them (a namespaced install) nothing is said."""
    try:
        items = await api.objects(DEFINITIONS, selector=f"{labels.PART_OF}={labels.APP}")
    except ApiError as error:
        log.debug("the CRDs' version is not known: %s", error)
        return
    for name, version in mismatches(items, own=own):
        log.warning(
            "CRD %s is of version %s, this operator of %s: fields that it does not name are dropped without a word; "
            "apply the CRDs of this version (helm upgrade does with crds.install=true, or: disagg crds | kubectl apply "
            "--server-side -f -)",
            name,
            version or "unknown",
            own,
        )


def mismatches(definitions: Iterable[Object], *, own: str) -> list[tuple[str, str]]:
    """Name and version of each of our CRDs that is not of version ``own``."""
    found = []
    for item in definitions:
        version = (item["metadata"].get("labels") or {}).get(labels.VERSION_LABEL, "")
        if item["spec"]["group"] == GROUP and version != own:
            found.append((item["metadata"]["name"], version))
    return sorted(found)
