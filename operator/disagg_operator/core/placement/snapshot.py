"""Nodes, and what is left of them.

Free is allocatable minus the requests of every pod that is not finished: bound ones, terminating ones (they hold their
devices until they are gone), foreign ones, and pods of ours that are pinned but not yet bound, which are reservations.
Amounts are ints as ``core.quantity`` makes them; a pod also uses one of the node's ``pods``. Pods of lower priority
count like any other. Only a gang that may preempt is shown, in a second look, what they would leave behind, because
the scheduler evicts them for a pinned pod of higher priority.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from disagg_contract.labels import HOSTNAME
from disagg_operator.core.placement.selectors import Term, any_holds
from disagg_operator.core.quantity import PODS

Amounts = Mapping[str, int]
"""Amount by resource name."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A node taint. Effect ``PreferNoSchedule`` does not exclude."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A pod's toleration; an empty key with operator ``Exists`` tolerates all, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.operator == "Exists":
            return not self.key or self.key == taint.key
        return self.key == taint.key and self.value == taint.value


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as the scheduler would see it. ``schedulable``: Ready and not cordoned."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Amounts = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    schedulable: bool = True

    @property
    def hostname(self) -> str:
        """Value of ``kubernetes.io/hostname``, which pods are pinned to; on some clouds it is not the node's name."""
        return self.labels.get(HOSTNAME, self.name)


@dataclass(frozen=True, slots=True)
class PodUse:
    """What a pod takes from a node; ``requests`` as pairs to keep thousands of them small.

    A pod that is pinned and not bound yet has no ``node`` but the ``hostname`` label of the one it waits for.
    ``priority`` is the value of its PriorityClass.
    """

    uid: str
    node: str
    requests: tuple[tuple[str, int], ...]
    hostname: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDemand:
    """A gated pod that wants a node.

    ``instance``: the one it is a part of; empty: it is an instance by itself. ``stage``: pipeline stage that it holds.
    ``node_terms``: its required node affinity. ``priority``: value of its PriorityClass; ``preempts``: whether the
    scheduler may evict pods of lower priority for it.
    """

    uid: str
    name: str
    role: str
    requests: Amounts
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Tolerance, ...] = ()
    node_terms: tuple[Term, ...] = ()
    instance: str = ""
    stage: int = 0
    priority: int = 0
    preempts: bool = True

    @property
    def owner(self) -> str:
        """Name of its instance."""
        return self.instance or self.name

    @property
    def kind(self) -> tuple[object, ...]:
        """Pods of one kind accept the same nodes."""
        return tuple(sorted(self.node_selector.items())), self.tolerations, self.node_terms

    def accepts(self, node: NodeView) -> bool:
        """Whether everything but the amounts lets the pod run there."""
        if not node.schedulable:
            return False
        if any(node.labels.get(key) != value for key, value in self.node_selector.items()):
            return False
        if not any_holds(self.node_terms, node.labels, node.name):
            return False
        return all(
            taint.effect == "PreferNoSchedule" or any(tolerance.covers(taint) for tolerance in self.tolerations)
            for taint in node.taints
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Nodes in name order and their free amounts, by node name. Free may be negative on an overcommitted node.

    ``uses`` is what the free amounts were computed from, kept for the question who could be preempted.
    """

    nodes: tuple[NodeView, ...]
    free: Mapping[str, Amounts]
    uses: Sequence[PodUse] = ()

    @staticmethod
    def take(nodes: Iterable[NodeView], uses: Iterable[PodUse]) -> "Snapshot":
        ordered = tuple(sorted(nodes, key=lambda node: node.name))
        free = {node.name: dict(node.allocatable) for node in ordered}
        by_hostname = {node.hostname: node.name for node in ordered}
        seen: set[str] = set()
        kept: list[PodUse] = []
        for use in uses:
            left = free.get(use.node or by_hostname.get(use.hostname, ""))
            if left is None or use.uid in seen:
                continue
            seen.add(use.uid)
            kept.append(use)
            for resource, value in use.requests:
                left[resource] = left.get(resource, 0) - value
            left[PODS] = left.get(PODS, 0) - 1
        return Snapshot(ordered, free, kept)

    def emptied(self) -> "Snapshot":
        """The same nodes with nothing on them."""
        return Snapshot(self.nodes, {node.name: node.allocatable for node in self.nodes})

    def without(self, uids: Set[str]) -> "Snapshot":
        """The same cluster once these pods are gone."""
        return Snapshot.take(self.nodes, (use for use in self.uses if use.uid not in uids))

    def with_more(self, uses: Iterable[PodUse]) -> "Snapshot":
        """The same cluster with further pods on it."""
        return Snapshot.take(self.nodes, [*self.uses, *uses])

    def vector(self, node: str, dimensions: Sequence[str]) -> tuple[int, ...]:
        """Free amounts of a node in the order of ``dimensions``; nothing is less than 0."""
        left = self.free[node]
        return tuple([max(0, left.get(resource, 0)) for resource in dimensions])
