"""From the rules of a request to what ties its units: which must share a domain, and which are kept apart.

Ties are made once for a plan, over all nodes, and cut down to the nodes of each domain that is tried. A tie that says
nothing there, because all those nodes lie in one domain of its level, is left out: most gangs are then plain packings.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disagg_operator.core.placement.domains import domain_of
from disagg_operator.core.placement.items import ALONE, Apart, Together
from disagg_operator.core.placement.request import GangRequest, Present
from disagg_operator.core.placement.snapshot import NodeView
from disagg_operator.core.placement.units import Unit


@dataclass(frozen=True, slots=True)
class Bond:
    """Units that share a domain of a level; ``home`` is the number of the domain where others of theirs are."""

    level: str
    units: frozenset[int]
    home: int | None
    what: str


@dataclass(frozen=True, slots=True)
class Distance:
    """At most ``most`` instances of a role in a domain of ``level``; None: as even as can be. ``owners`` by unit."""

    level: str
    role: str
    most: int | None
    owners: Mapping[int, tuple[int, ...]]
    instances: int
    taken: Mapping[int, int]


class Levels:
    """Numbers of the domains of all nodes, level by level, made when first asked for."""

    def __init__(self, nodes: Sequence[NodeView]) -> None:
        self._nodes = nodes
        self._found: dict[str, list[int]] = {}
        self._numbers: dict[str, dict[tuple[str, str], int]] = {}
        self._at = {node.name: index for index, node in enumerate(nodes)}

    def of(self, level: str) -> list[int]:
        """The number of each node's domain."""
        if level not in self._found:
            numbers = self._numbers.setdefault(level, {})
            self._found[level] = [numbers.setdefault(domain_of(node, level), len(numbers)) for node in self._nodes]
        return self._found[level]

    def at(self, level: str, node: str) -> int | None:
        """The number of the domain of a node by name; None for a node that is gone."""
        index = self._at.get(node)
        return None if index is None else self.of(level)[index]


def bonds(request: GangRequest, made: Sequence[Unit], levels: Levels, *, preferred: bool) -> tuple[Bond, ...]:
    """What must share a domain; with the levels that roles prefer if ``preferred``."""
    found: list[Bond] = []
    for role, rule in sorted(request.rules.items()):
        mine = _units_of(request, made, role)
        there = [seen for seen in request.present if seen.role == role]
        for level in dict.fromkeys((rule.required, rule.preferred if preferred else None)):
            if level and mine:
                found.append(_bond(level, mine, there, levels, f"all of {role}"))
        if rule.instance:
            owners = sorted({request.pods[pod].owner for unit in mine for pod in made[unit].pods})
            for owner in owners:
                own = frozenset(
                    unit for unit in mine if any(request.pods[pod].owner == owner for pod in made[unit].pods)
                )
                rest = [seen for seen in there if seen.instance == owner]
                if len(own) > 1 or rest:
                    found.append(_bond(rule.instance, own, rest, levels, f"each instance of {role}"))
    return tuple(found)


def _bond(level: str, mine: frozenset[int], there: Sequence[Present], levels: Levels, what: str) -> Bond:
    homes = Counter(home for seen in there if (home := levels.at(level, seen.node)) is not None)
    home = min(homes, key=lambda number: (-homes[number], number)) if homes else None
    return Bond(level, mine, home, what)


def distances(request: GangRequest, made: Sequence[Unit], levels: Levels, *, even: bool) -> tuple[Distance, ...]:
    """What is kept apart; with the wishes for an even spread if ``even``."""
    found: list[Distance] = []
    for role, rule in sorted(request.rules.items()):
        mine = _units_of(request, made, role)
        if rule.spread is None or not mine or (rule.spread.most is None and not even):
            continue
        pods = Counter(pod.owner for pod in request.pods if pod.role == role)
        number = {owner: index for index, owner in enumerate(pods)}
        owners = {unit: _owners(request, made[unit], role, pods, number) for unit in mine}
        places = {
            (place, seen.instance)
            for seen in request.present
            if seen.role == role and seen.current and seen.instance not in pods
            if (place := levels.at(rule.spread.level, seen.node)) is not None
        }
        taken = Counter(place for place, _ in places)
        found.append(Distance(rule.spread.level, role, rule.spread.most, owners, len(pods), taken))
    return tuple(found)


def _owners(
    request: GangRequest, unit: Unit, role: str, pods: Mapping[str, int], number: Mapping[str, int]
) -> tuple[int, ...]:
    """Numbers of the instances that a unit counts for."""
    mine = sorted({request.pods[pod].owner for pod in unit.pods if request.pods[pod].role == role})
    return tuple(ALONE if pods[owner] == 1 else number[owner] for owner in mine)


def _units_of(request: GangRequest, made: Sequence[Unit], role: str) -> frozenset[int]:
    return frozenset(
        index for index, unit in enumerate(made) if any(request.pods[pod].role == role for pod in unit.pods)
    )


def cut(bond: Bond, members: Sequence[int], levels: Levels) -> Together | None:
    """The bond among some nodes; None where it says nothing."""
    numbers = levels.of(bond.level)
    here = tuple([numbers[node] for node in members])
    return (
        None
        if set(here) <= {bond.home if bond.home is not None else next(iter(here), 0)}
        else Together(here, bond.home)
    )


def apart(distance: Distance, members: Sequence[int], levels: Levels, extra: int) -> Apart:
    """The distance among some nodes. ``extra``: how far an even spread may stay behind the best there could be."""
    numbers = levels.of(distance.level)
    here = tuple([numbers[node] for node in members])
    most = distance.most
    if most is None:
        places = set(here)
        held = sum(number for place, number in distance.taken.items() if place in places)
        most = -(-(held + distance.instances) // max(1, len(places))) + extra
    return Apart(here, most, distance.taken, even=distance.most is None)
