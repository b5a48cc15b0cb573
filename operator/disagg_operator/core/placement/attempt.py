"""One domain tried: the items of a gang, the bins of its nodes, and what came of packing them.

What does not depend on the domain (room by node, which pods a node accepts, the ties) is worked out once a plan in a
:class:`Ground`; a domain then costs no more than its own nodes do.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from disagg_operator.core.placement.domains import Domain
from disagg_operator.core.placement.items import Bounds, Item, Vector
from disagg_operator.core.placement.packing import Packing, pack
from disagg_operator.core.placement.request import GangRequest, Pairing
from disagg_operator.core.placement.snapshot import NodeView, PodDemand, Snapshot
from disagg_operator.core.placement.ties import Bond, Distance, Levels, apart, bonds, cut, distances
from disagg_operator.core.placement.units import Unit, units
from disagg_operator.core.quantity import CPU, MEMORY, PODS

EVEN_STEPS = (0, 1, 2, 4, 8, 16)
"""How far behind the evenest spread there could be an even one may stay, before it is given up."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Which of the preferred demands are made: ``given_up`` names the others."""

    pairing: bool
    levels: bool
    even: bool
    given_up: tuple[str, ...] = ()


def wishes(request: GangRequest) -> tuple[Wishes, ...]:
    """From all wishes to none, the least valuable given up first."""
    pairing = request.pairing is not Pairing.NONE
    levels = any(rule.preferred for rule in request.rules.values())
    even = any(rule.spread is not None and rule.spread.most is None for rule in request.rules.values())
    found = [Wishes(pairing, levels, even)]
    if even:
        found.append(Wishes(pairing, levels, False, ("an even spread",)))
    if levels:
        found.append(Wishes(pairing, False, False, (*found[-1].given_up, "the levels that roles prefer")))
    if request.pairing is Pairing.PREFERRED:
        found.append(Wishes(False, False, False, (*found[-1].given_up, "the pairing of stages")))
    return tuple(found)


@dataclass(slots=True)
class Budget:
    """Steps that the searches of one plan may still take. None of several gets more than half of what is left."""

    left: int
    hit: bool = False
    alone: bool = False

    def share(self) -> int:
        """Steps for the next search; 0 once all are spent."""
        return max(0, self.left if self.alone else self.left // 2)

    def spend(self, packing: Packing) -> None:
        self.left -= packing.steps
        self.hit |= packing.bound_hit


class Ground:
    """A request on a snapshot."""

    def __init__(self, request: GangRequest, snapshot: Snapshot) -> None:
        self.request = request
        self.nodes = snapshot.nodes
        self.dimensions = dimensions(request.pods)
        self.levels = Levels(self.nodes)
        kinds: dict[tuple[object, ...], int] = {}
        self._kind = [kinds.setdefault(pod.kind, len(kinds)) for pod in request.pods]
        samples = [request.pods[self._kind.index(number)] for number in range(len(kinds))]
        self._accepts = [[sample.accepts(node) for node in self.nodes] for sample in samples]
        self.usable = [any(column) for column in zip(*self._accepts, strict=True)] if samples else []
        self.room = [
            snapshot.vector(node.name, self.dimensions) if usable else ()
            for node, usable in zip(self.nodes, self.usable, strict=True)
        ]
        self.sizes = [size(pod, self.dimensions) for pod in request.pods]
        self.needed = tuple([sum(axis) for axis in zip(*self.sizes, strict=True)])
        self.at = {node.name: index for index, node in enumerate(self.nodes)}

    def asked(self, request: GangRequest) -> "Ground":
        """The same ground for the same pods under other rules."""
        other = copy(self)
        other.request = request
        return other

    def members(self, domain: Domain) -> tuple[int, ...]:
        """Places of the domain's usable nodes."""
        return tuple([index for node in domain.nodes if self.usable[index := self.at[node.name]]])

    def totals(self, members: Sequence[int]) -> tuple[int, ...]:
        """What is free on some nodes together; empty where there are none."""
        return tuple([sum(axis) for axis in zip(*[self.room[index] for index in members], strict=True)])

    def takes(self, unit: Unit, index: int) -> bool:
        """Whether a node accepts every pod of a unit, amounts aside."""
        if unit.only is not None and self.nodes[index].name not in unit.only:
            return False
        return all(self._accepts[self._kind[pod]][index] for pod in unit.pods)

    def kind(self, unit: Unit) -> tuple[object, ...]:
        """Units of one kind may go to the same nodes."""
        return frozenset(self._kind[pod] for pod in unit.pods), unit.only

    def size(self, unit: Unit) -> Vector:
        if len(unit.pods) == 1:
            return self.sizes[unit.pods[0]]
        return tuple([sum(axis) for axis in zip(*[self.sizes[pod] for pod in unit.pods], strict=True)])


class Plan:
    """A ground with the wishes that are made: units and ties, ready to be tried on domains."""

    def __init__(self, ground: Ground, made: Wishes) -> None:
        self.ground = ground
        self.wishes = made
        self.units = units(ground.request, paired=made.pairing)
        self.bonds: tuple[Bond, ...] = bonds(ground.request, self.units, ground.levels, preferred=made.levels)
        self.distances: tuple[Distance, ...] = distances(ground.request, self.units, ground.levels, even=made.even)
        self.sizes = [ground.size(unit) for unit in self.units]
        self._elastic = any(distance.most is None for distance in self.distances)

    def items(self, members: Sequence[int], *, extra: int = 0) -> tuple[list[Item], Bounds]:
        """Items and ties on some nodes."""
        ground = self.ground
        found = [(number, cut(bond, members, ground.levels)) for number, bond in enumerate(self.bonds)]
        ties = [(number, tie) for number, tie in found if tie is not None]
        rules = tuple(apart(distance, members, ground.levels, extra) for distance in self.distances)
        eligible: dict[tuple[object, ...], tuple[int, ...]] = {}
        items: dict[tuple[object, ...], Item] = {}
        made: list[Item] = []
        for number, unit in enumerate(self.units):
            kind = ground.kind(unit)
            if kind not in eligible:
                eligible[kind] = tuple([bin_ for bin_, node in enumerate(members) if ground.takes(unit, node)])
            together = tuple([place for place, (bond, _) in enumerate(ties) if number in self.bonds[bond].units])
            owners = tuple(
                [(place, own) for place, rule in enumerate(self.distances) for own in rule.owners.get(number, ())]
            )
            key = (self.sizes[number], kind, together, owners)
            if key not in items:
                items[key] = Item(self.sizes[number], eligible[kind], together, owners)
            made.append(items[key])
        return made, Bounds(tuple(tie for _, tie in ties), rules)

    def pack(self, members: Sequence[int], budget: Budget) -> Packing:
        """Try the gang on some nodes."""
        room = [self.ground.room[index] for index in members]
        for extra in EVEN_STEPS if self._elastic else (0,):
            items, bounds = self.items(members, extra=extra)
            packing = pack(items, room, bounds=bounds, step_limit=budget.share())
            budget.spend(packing)
            if packing.bins is not None or packing.left_over:
                break
        return packing

    def names(self) -> tuple[str, ...]:
        """What each unit is called."""
        return tuple(" with ".join(self.ground.request.pods[pod].name for pod in unit.pods) for unit in self.units)

    def nodes(self, members: Sequence[int], bins: Sequence[int]) -> dict[str, NodeView]:
        """The packing as nodes by pod UID, in the order of the request's pods."""
        found = {pod: members[bin_] for unit, bin_ in zip(self.units, bins, strict=True) for pod in unit.pods}
        return {pod.uid: self.ground.nodes[found[index]] for index, pod in enumerate(self.ground.request.pods)}


def dimensions(pods: Sequence[PodDemand]) -> tuple[str, ...]:
    """Resources that matter, scarcest kind first: devices, then CPU, memory, and the number of pods."""
    named = {resource for pod in pods for resource, value in pod.requests.items() if value > 0} - {PODS}
    devices = sorted(named - {CPU, MEMORY})
    return (*devices, *(resource for resource in (CPU, MEMORY) if resource in named), PODS)


def size(pod: PodDemand, axes: Sequence[str]) -> Vector:
    """What a pod asks for, in the order of ``axes``."""
    return tuple([1 if resource == PODS else pod.requests.get(resource, 0) for resource in axes])
