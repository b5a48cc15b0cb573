"""Names of what the operator derives from a deployment.

Kubernetes bounds Service names, label values and pod host names at 63 characters. A derived name is `<owner>-<suffix>`
where that fits. Where it does not, the owner's part is cut and eight hex digits of a hash over the *whole* owner take
the place of what was cut off, so that two owners which share a long beginning keep apart and a restart finds the same
names again.
"""

from __future__ import annotations

import hashlib
from typing import Final

from .errors import NameTooLong
from .roles import Role

NAME_LIMIT: Final = 63
_HASH_DIGITS: Final = 8


def child_name(owner: str, suffix: str, *, limit: int = NAME_LIMIT) -> str:
    """`<owner>-<suffix>`, at most `limit` characters, distinct for distinct owners, the same at every call.

    Raises `NameTooLong` when the suffix leaves no room for at least one character of the owner and its hash.
    """
    name = f"{owner}-{suffix}"
    if len(name) <= limit:
        return name
    room = limit - len(suffix) - _HASH_DIGITS - 2
    if room < 1:
        raise NameTooLong(
            f"suffix {suffix!r} has {len(suffix)} characters; at most {limit - _HASH_DIGITS - 3} fit into {limit}"
        )
    digest = hashlib.sha256(owner.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{owner[:room].rstrip('-.')}-{digest}-{suffix}"


def group_name(deployment: str, role: Role) -> str:
    """Name of the `DisaggGroup` of a role."""
    return child_name(deployment, role.value)


def router_name(deployment: str) -> str:
    """Name of the router's Deployment, Service, ServiceAccount, Role and RoleBinding."""
    return child_name(deployment, "router")


def planner_name(deployment: str) -> str:
    """Name of the planner's Deployment, ServiceAccount, Role and RoleBinding."""
    return child_name(deployment, "planner")
