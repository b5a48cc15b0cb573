"""Items, bins, and what ties items to each other.

An item is a pod, or pods that share a node; a bin is a node. Bins are known by their index alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

Vector = tuple[int, ...]
"""Amounts in the order of the plan's dimensions."""

ALONE: Final = -1
"""Owner of an item that is its owner's only one: such items need not be told from each other."""

_UNBOUNDED: Final = 1 << 30
_COUNTED: Final = 512
"""Largest amount of a resource that is worth a table: devices are counted in ones, memory is not."""


@dataclass(frozen=True, slots=True)
class Item:
    """A pod: its amounts, and the indices of the bins (nodes) it may go to.

    ``together``: indices of the :class:`Together` it is bound by. ``apart``: pairs of the index of an :class:`Apart`
    and of the owner (instance) that the item counts for there.
    """

    size: Vector
    bins: tuple[int, ...]
    together: tuple[int, ...] = ()
    apart: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Together:
    """Items that must lie in one domain: ``domains[b]`` is bin b's. ``only``: the domain, where it is settled."""

    domains: tuple[int, ...]
    only: int | None = None


@dataclass(frozen=True, slots=True)
class Apart:
    """No domain may hold items of more than ``most`` owners; ``taken`` counts those that are there already.

    ``even``: the emptiest domain is tried first.
    """

    domains: tuple[int, ...]
    most: int
    taken: Mapping[int, int] = field(default_factory=dict)
    even: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """What ties items to each other."""

    together: tuple[Together, ...] = ()
    apart: tuple[Apart, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.together or self.apart)


def fits(size: Vector, left: Sequence[int]) -> bool:
    """Whether there is room for the item."""
    for need, have in zip(size, left, strict=True):  # noqa: SIM110  a generator costs three times as much here
        if need > have:
            return False
    return True


def capacity(size: Vector, left: Vector) -> int:
    """How many items of that size a bin with ``left`` takes."""
    bounds = [have // need for need, have in zip(size, left, strict=True) if need > 0]
    return min(bounds) if bounds else _UNBOUNDED


class Fillings:
    """How much of a bin can be filled at most, given the sizes of the items: no bin of 8 holds 7 of threes and fives.

    A bound for each resource that is counted in small numbers: what lies beyond it is lost, however items are dealt.
    """

    def __init__(self, sizes: Sequence[Vector], free: Sequence[Vector]) -> None:
        self._tables: list[tuple[int, list[int]]] = []
        for axis in range(len(free[0]) if free else 0):
            most = max(room[axis] for room in free)
            needs = sorted({size[axis] for size in sizes if size[axis] > 0})
            if needs and 1 < most <= _COUNTED and needs[0] > 1:
                self._tables.append((axis, _fillings(needs, most)))

    def enough(self, wanted: Sequence[int], bins: Iterable[tuple[Vector, int]]) -> bool:
        """Whether ``wanted`` amounts may fit into bins, given by what is left in them and how many there are."""
        found = [0] * len(self._tables)
        for room, number in bins if self._tables else ():
            for place, (axis, table) in enumerate(self._tables):
                found[place] += number * table[room[axis]]
        return all(wanted[axis] <= found[place] for place, (axis, _) in enumerate(self._tables))


def _fillings(needs: Sequence[int], most: int) -> list[int]:
    """The largest sum of any number of ``needs`` that does not exceed each amount up to ``most``."""
    reached = [True] + [False] * most
    table = [0] * (most + 1)
    for amount in range(1, most + 1):
        reached[amount] = any(need <= amount and reached[amount - need] for need in needs)
        table[amount] = amount if reached[amount] else table[amount - 1]
    return table
