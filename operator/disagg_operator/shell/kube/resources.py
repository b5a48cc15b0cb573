"""Kinds that the operator talks about, and their paths."""

from dataclasses import dataclass
from typing import Final

from disagg_crds import API_VERSION, DEPLOYMENT_KIND, DEPLOYMENT_PLURAL, GROUP_KIND, GROUP_PLURAL


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object. ``namespaced`` False: it belongs to the whole cluster."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of a collection, an object or a subresource; without namespace: of all namespaces."""
        root = "/apis/" if self.group else "/api/"
        parts = [root + self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


DEPLOYMENTS: Final = Resource(API_VERSION, DEPLOYMENT_KIND, DEPLOYMENT_PLURAL)
GROUPS: Final = Resource(API_VERSION, GROUP_KIND, GROUP_PLURAL)
PODS: Final = Resource("v1", "Pod", "pods")
NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
SERVICES: Final = Resource("v1", "Service", "services")
SERVICE_ACCOUNTS: Final = Resource("v1", "ServiceAccount", "serviceaccounts")
APP_DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments")
ROLES: Final = Resource("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
BUDGETS: Final = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICIES: Final = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
SECRETS: Final = Resource("v1", "Secret", "secrets")
EVENTS: Final = Resource("events.k8s.io/v1", "Event", "events")
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")

CHILDREN: Final = (SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, SERVICES, APP_DEPLOYMENTS, BUDGETS, NETWORK_POLICIES)
"""Kinds that are applied around the instances, in the order of creation."""
BY_KIND: Final = {resource.kind: resource for resource in CHILDREN}
"""The same by kind; our own Deployment kind has another name."""
