"""Items, bins, and what ties items to each other.

An item is a pod, or pods that share a node; a bin is a node. Bins are known by their index alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

Vector = tuple[int, ...]
"""Amounts in the order of the plan's dimensions."""

ALONE: Final = -1
"""Owner of an item that is its owner's only one: such items need not be told from each other."""

_UNBOUNDED: Final = 1 << 30


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
