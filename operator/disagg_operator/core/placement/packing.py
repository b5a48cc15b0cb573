"""Vector bin packing: first-fit decreasing, then branch and bound with a bound on its steps.

First-fit decreasing finds nearly every packing at once and is exact where all items are alike. It works on kinds of
items rather than on items: the bins that take a kind are sorted once, fullest first, and walked. The search behind it
(``search``) is exact for mixed items and for items that are bound together or kept apart; it gives up after
``step_limit`` steps, which the answer then says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from disagg_operator.core.placement.items import Apart, Bounds, Fillings, Item, Together, Vector, capacity, fits
from disagg_operator.core.placement.search import search

__all__ = ["STEP_LIMIT", "Apart", "Bounds", "Item", "Packing", "Together", "Vector", "pack"]

STEP_LIMIT: Final = 12_000


@dataclass(frozen=True, slots=True)
class Packing:
    """``bins[i]`` is where item i goes, or None when not all fit. ``packed`` items went in greedily.

    ``left_over`` are the items that a greedy pass, which looks at amounts alone, could not place. ``steps`` is what the
    search took; ``bound_hit``: it was stopped.
    """

    bins: tuple[int, ...] | None
    packed: int
    bound_hit: bool = False
    left_over: tuple[int, ...] = ()
    steps: int = 0


def pack(
    items: Sequence[Item], free: Sequence[Vector], *, bounds: Bounds | None = None, step_limit: int = STEP_LIMIT
) -> Packing:
    """Put every item into a bin, or say how many a greedy pass could place. Deterministic."""
    kinds = _kinds(items)
    greedy = _first_fit(kinds, free)
    left_over = tuple(index for _, members in kinds for index in members if index not in greedy)
    if not left_over and not bounds:
        return Packing(tuple(greedy[index] for index in range(len(items))), len(items))
    if left_over and _hopeless(kinds, free):
        return Packing(None, len(greedy), left_over=left_over)
    found = search(items, free, bounds or Bounds(), step_limit)
    if found.bins is None:
        return Packing(None, len(greedy), found.bound_hit, left_over, found.steps)
    return Packing(found.bins, len(items), found.bound_hit, (), found.steps)


def _kinds(items: Sequence[Item]) -> list[tuple[Item, list[int]]]:
    """Items of one size with the same bins, the largest first; within a kind in the order given."""
    members: dict[tuple[Vector, tuple[int, ...]], list[int]] = {}
    for index, item in enumerate(items):
        members.setdefault((item.size, item.bins), []).append(index)
    return sorted(
        ((items[indices[0]], indices) for indices in members.values()),
        key=lambda kind: ([-need for need in kind[0].size], kind[1][0]),
    )


def _first_fit(kinds: Sequence[tuple[Item, list[int]]], free: Sequence[Vector]) -> dict[int, int]:
    """Largest items first, each into the fullest bin that takes it.

    A bin that took an item is the fullest one for its twin as well, so a kind walks the sorted bins once.
    """
    left = list(free)
    placed: dict[int, int] = {}
    for item, members in kinds:
        waiting = iter(members)
        remaining = len(members)
        for bin_ in sorted(
            (bin_ for bin_ in item.bins if fits(item.size, left[bin_])), key=lambda bin_: (left[bin_], bin_)
        ):
            take = min(remaining, capacity(item.size, left[bin_]))
            left[bin_] = tuple([have - need * take for need, have in zip(item.size, left[bin_], strict=True)])
            for _ in range(take):
                placed[next(waiting)] = bin_
            remaining -= take
            if not remaining:
                break
    return placed


def _hopeless(kinds: Sequence[tuple[Item, list[int]]], free: Sequence[Vector]) -> bool:
    """Cheap proofs that no packing exists: sums, how far bins can be filled, places for each kind by itself."""
    if not free:
        return True
    reachable = {bin_ for item, _ in kinds for bin_ in item.bins}
    wanted = [sum(item.size[axis] * len(members) for item, members in kinds) for axis in range(len(free[0]))]
    if any(need > sum(free[bin_][axis] for bin_ in reachable) for axis, need in enumerate(wanted)):
        return True
    rooms = [free[bin_] for bin_ in reachable]
    if rooms and not Fillings([item.size for item, _ in kinds], rooms).enough(wanted, ((room, 1) for room in rooms)):
        return True
    return any(sum(capacity(item.size, free[bin_]) for bin_ in item.bins) < len(members) for item, members in kinds)
