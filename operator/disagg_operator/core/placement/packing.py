"""Vector bin packing: first-fit decreasing, then branch and bound with a bound on its steps.

First-fit decreasing finds nearly every packing at once and is exact where all items are alike. The search behind it is
exact for mixed items: it tries bins in order, skips bins and items that are interchangeable, and gives up after
``step_limit`` steps, which the answer then says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Vector = tuple[int, ...]

STEP_LIMIT: Final = 20_000


@dataclass(frozen=True, slots=True)
class Item:
    """A pod: its amounts, and the indices of the bins (nodes) it may go to."""

    size: Vector
    bins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """``bins[i]`` is where item i goes, or None when not all fit. ``packed`` items went in greedily."""

    bins: tuple[int, ...] | None
    packed: int
    bound_hit: bool = False
    left_over: tuple[int, ...] = ()


def pack(items: Sequence[Item], free: Sequence[Vector], *, step_limit: int = STEP_LIMIT) -> Packing:
    """Put every item into a bin, or say how many a greedy pass could place. Deterministic."""
    order = sorted(range(len(items)), key=lambda index: (*(-size for size in items[index].size), index))
    greedy = _first_fit(items, free, order)
    left_over = tuple(index for index in order if index not in greedy)
    if not left_over:
        return Packing(tuple(greedy[index] for index in range(len(items))), len(items))
    if _hopeless(items, free):
        return Packing(None, len(greedy), left_over=left_over)
    found, bound_hit = _search(items, free, order, step_limit)
    return Packing(found, len(items) if found else len(greedy), bound_hit, () if found else left_over)


def _fits(size: Vector, left: Sequence[int]) -> bool:
    return all(need <= have for need, have in zip(size, left, strict=True))


def _take(size: Vector, left: list[int]) -> None:
    for axis, need in enumerate(size):
        left[axis] -= need


def _give(size: Vector, left: list[int]) -> None:
    for axis, need in enumerate(size):
        left[axis] += need


def _first_fit(items: Sequence[Item], free: Sequence[Vector], order: Sequence[int]) -> dict[int, int]:
    """Largest items first, each into the fullest bin that takes it."""
    left = [list(vector) for vector in free]
    placed: dict[int, int] = {}
    for index in order:
        item = items[index]
        fitting = [bin_ for bin_ in item.bins if _fits(item.size, left[bin_])]
        if fitting:
            best = min(fitting, key=lambda bin_: (left[bin_], bin_))
            _take(item.size, left[best])
            placed[index] = best
    return placed


def _hopeless(items: Sequence[Item], free: Sequence[Vector]) -> bool:
    """Cheap proofs that no packing exists: the sums, and for each kind of item the number of places it has at all."""
    reachable = {bin_ for item in items for bin_ in item.bins}
    for axis in range(len(free[0]) if free else 0):
        if sum(item.size[axis] for item in items) > sum(free[bin_][axis] for bin_ in reachable):
            return True
    kinds: dict[Item, int] = {}
    for item in items:
        kinds[item] = kinds.get(item, 0) + 1
    for kind, wanted in kinds.items():
        if sum(_capacity(kind.size, free[bin_]) for bin_ in kind.bins) < wanted:
            return True
    return not free


def _capacity(size: Vector, left: Vector) -> int:
    bounds = [have // need for need, have in zip(size, left, strict=True) if need > 0]
    return min(bounds) if bounds else 1 << 30


def _search(
    items: Sequence[Item], free: Sequence[Vector], order: Sequence[int], step_limit: int
) -> tuple[tuple[int, ...] | None, bool]:
    """Depth-first with backtracking, without recursion: a gang may have more pods than Python has stack."""
    search = _Search(items, free, order)
    depth = steps = 0
    while depth < len(order):
        steps += 1
        if steps > step_limit:
            return None, True
        if search.descend(depth):
            depth += 1
        elif depth == 0:
            return None, False
        else:
            depth -= 1
            search.undo(depth)
    return search.result(), False


class _Search:
    """State of the search. ``cursor[d]`` is the next bin to try for the item at depth d, ``chosen[d]`` its bin now."""

    def __init__(self, items: Sequence[Item], free: Sequence[Vector], order: Sequence[int]) -> None:
        self.items = [items[index] for index in order]
        self.order = order
        self.left = [list(vector) for vector in free]
        self.cursor = [0] * len(order)
        self.chosen = [-1] * len(order)
        self.classes = self._classes(len(free))

    def _classes(self, bins: int) -> list[int]:
        """Bins are interchangeable only if the same items may use them."""
        users: list[list[int]] = [[] for _ in range(bins)]
        for position, item in enumerate(self.items):
            for bin_ in item.bins:
                users[bin_].append(position)
        numbers: dict[tuple[int, ...], int] = {}
        return [numbers.setdefault(tuple(group), len(numbers)) for group in users]

    def descend(self, depth: int) -> bool:
        """Put the item of this depth into the next bin worth trying; False when there is none left."""
        item = self.items[depth]
        tried = {self._shape(bin_) for bin_ in item.bins[: self.cursor[depth]]}
        while self.cursor[depth] < len(item.bins):
            bin_ = item.bins[self.cursor[depth]]
            self.cursor[depth] += 1
            shape = self._shape(bin_)
            if shape in tried:
                continue
            tried.add(shape)
            if _fits(item.size, self.left[bin_]):
                _take(item.size, self.left[bin_])
                self.chosen[depth] = bin_
                self._start(depth + 1)
                return True
        return False

    def undo(self, depth: int) -> None:
        _give(self.items[depth].size, self.left[self.chosen[depth]])

    def result(self) -> tuple[int, ...]:
        bins = [0] * len(self.order)
        for position, index in enumerate(self.order):
            bins[index] = self.chosen[position]
        return tuple(bins)

    def _start(self, depth: int) -> None:
        """Equal items go to bins in rising order, so an item starts where its twin before it went."""
        if depth < len(self.items):
            twin = self.items[depth] == self.items[depth - 1]
            self.cursor[depth] = self.cursor[depth - 1] - 1 if twin else 0

    def _shape(self, bin_: int) -> tuple[int, ...]:
        return (self.classes[bin_], *self.left[bin_])
