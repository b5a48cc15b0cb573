"""What is asked of a plan, and what it answers.

A level is a node label key; its domains are the nodes that share a value. Demands come in two strengths. A *required*
one holds or nothing is placed. A *preferred* one is tried first and given up where it keeps the gang from being placed,
the least valuable first: an even spread, then the levels preferred by roles, then the pairing of stages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from disagg_crds import Reason
from disagg_operator.core.placement.domains import Domain
from disagg_operator.core.placement.packing import STEP_LIMIT
from disagg_operator.core.placement.snapshot import NodeView, PodDemand


class Pairing(StrEnum):
    """Whether the same pipeline stage of prefill and decode shares a node (DistServe's low-affinity placement)."""

    NONE = "none"
    PREFERRED = "preferred"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Spread:
    """At most ``most`` instances of a role in one domain of ``level``; without ``most`` as evenly as can be."""

    level: str
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRule:
    """What one role asks beyond the whole gang.

    ``required`` and ``preferred``: levels whose domains all of its instances share. ``instance``: level whose domains
    no single instance may cross. ``spread``: how its instances are kept apart.
    """

    required: str | None = None
    preferred: str | None = None
    instance: str | None = None
    spread: Spread | None = None


@dataclass(frozen=True, slots=True)
class Present:
    """A pod of the deployment that has a node already. Only those of the current revision count for a spread."""

    role: str
    instance: str
    node: str
    stage: int = 0
    current: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """Pods that are placed together or not at all.

    ``required``: node label key whose domains the gang must not cross; None: any nodes. ``preferred``: level to stay
    within when possible. ``within``: value of the required level's domain that the deployment lives in already, which
    then is the only one. ``prefer``: a domain value to try first. ``excluded``: domain values left out for now.
    ``later``: pods of further gangs that will have to lie in the same domain: one that takes them too is preferred.
    ``rules`` by role. ``present``: pods of the deployment that are placed. ``preemption``: pods of lower priority may
    be evicted for the gang where it does not fit otherwise. ``step_limit`` bounds the searches of one plan together.
    """

    pods: tuple[PodDemand, ...]
    required: str | None = None
    preferred: str | None = None
    within: str | None = None
    prefer: str | None = None
    excluded: frozenset[str] = field(default_factory=frozenset)
    later: tuple[PodDemand, ...] = ()
    rules: Mapping[str, RoleRule] = field(default_factory=dict)
    pairing: Pairing = Pairing.NONE
    present: tuple[Present, ...] = ()
    preemption: bool = False
    step_limit: int = STEP_LIMIT


@dataclass(frozen=True, slots=True)
class Placed:
    """Every pod has a node: ``nodes`` by pod UID.

    ``victims`` are the UIDs of the pods that the scheduler will evict for it. ``given_up``: wishes that kept it from
    being placed. ``message`` says where it is and why there. ``bound_hit``: some domain's search was cut short before.
    """

    domain: Domain
    nodes: dict[str, NodeView]
    bound_hit: bool = False
    victims: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Nothing is placed. ``missing`` is what the best domain lacks; ``message`` says it in a sentence."""

    reason: Reason
    message: str
    best_domain: str | None = None
    missing: dict[str, int] = field(default_factory=dict)
    bound_hit: bool = False
