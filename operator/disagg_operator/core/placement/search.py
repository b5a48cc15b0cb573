"""The exact search for a packing: depth first, over shapes of bins instead of bins.

Two bins with the same room, open to the same items and in the same domains are interchangeable, so the state is how
many bins there are of each *shape*, and a branch puts the next item into some bin of a shape. That makes a thousand
equal nodes one choice. A state that led nowhere is remembered with its depth: twins that change places, or instances
that swap nodes, lead to the same state and are looked at once.

A branch is cut as soon as some kind of item that is still to come has fewer places left than items. Until the first
dead end that test is only made where a group settles in a domain, because a search that never turns back needs no more.

Items bound together come in a row, so that a domain is settled by its first item; it is tried fullest first, like bins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from disagg_operator.core.placement.items import ALONE, Bounds, Fillings, Item, Vector, capacity, fits

Shape = tuple[int, Vector]
"""Number of the bin's class, and what is left of it."""
_WORK = 16
"""Shapes looked at for the price of one step."""


@dataclass(frozen=True, slots=True)
class Found:
    """``bins`` by item, or None. ``bound_hit``: the search was stopped before it was sure."""

    bins: tuple[int, ...] | None
    bound_hit: bool
    steps: int


def search(items: Sequence[Item], free: Sequence[Vector], bounds: Bounds, step_limit: int) -> Found:
    """Find a packing or prove that there is none, within ``step_limit`` steps."""
    state = _State(items, free, bounds)
    options: list[Iterator[tuple[Shape, tuple[int, ...]]]] = []
    depth = 0
    if not state.promising(0):
        return Found(None, False, state.steps)
    while depth < len(items):
        if state.steps > step_limit:
            return Found(None, True, state.steps)
        if len(options) == depth:
            options.append(iter(()) if state.is_dead(depth) else state.options(depth))
        chosen = next(options[depth], None)
        if chosen is not None:
            state.put(depth, *chosen)
            if state.promising(depth + 1, settled=bool(chosen[1])):
                depth += 1
            else:
                state.take_back(depth)
            continue
        options.pop()
        state.bury(depth)
        if depth == 0:
            return Found(None, False, state.steps)
        depth -= 1
        state.take_back(depth)
    return Found(state.result(), False, state.steps)


class _State:
    """Bins by shape, settled domains and the path to here."""

    def __init__(self, items: Sequence[Item], free: Sequence[Vector], bounds: Bounds) -> None:
        self.order = _order(items, bounds)
        self.items = [items[index] for index in self.order]
        self.bounds = bounds
        self.steps = 0
        self.careful = False
        numbers: dict[Item, int] = {}
        self.kind = [numbers.setdefault(item, len(numbers)) for item in self.items]
        self.kinds = list(numbers)
        self.remaining = [self.kind.count(number) for number in range(len(self.kinds))]
        self.classes: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        self.pools: dict[Shape, list[int]] = {}
        self._fill(free)
        self.fillings = Fillings([kind.size for kind in self.kinds], free)
        self.wanted = [sum(axis) for axis in zip(*[item.size for item in self.items], strict=True)]
        self.settled: list[int | None] = [group.only for group in bounds.together]
        self.owners: list[dict[int, dict[int, int]]] = [{} for _ in bounds.apart]
        self.path: list[tuple[Shape, Shape, int, tuple[int, ...]]] = []
        self.dead: set[tuple[object, ...]] = set()
        self.last_of_group = [-1] * len(bounds.together)
        self.last_of_owner: dict[int, int] = {}
        for position, item in enumerate(self.items):
            for group in item.together:
                self.last_of_group[group] = position
            for _, owner in item.apart:
                self.last_of_owner[owner] = position
        self.families = self._families()

    def _fill(self, free: Sequence[Vector]) -> None:
        users = [0] * len(free)
        for number, kind in enumerate(self.kinds):
            for bin_ in kind.bins:
                users[bin_] |= 1 << number
        seen: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
        for bin_, room in enumerate(free):
            if not users[bin_]:
                continue
            key = (
                users[bin_],
                tuple([group.domains[bin_] for group in self.bounds.together]),
                tuple([rule.domains[bin_] for rule in self.bounds.apart]),
            )
            number = seen.setdefault(key, len(seen))
            self.pools.setdefault((number, tuple(room)), []).append(bin_)
        self.classes = list(seen)
        for bins in self.pools.values():
            bins.reverse()

    def _families(self) -> list[list[tuple[int, int, int]]]:
        """Groups that are alike: each of one kind of item, as many, under the same rules and free to choose a domain.

        Given by group, kind and number of items. Whole groups fit into domains or not at all, so that counting their
        items alone would find room where there is none.
        """
        members: dict[int, list[int]] = {}
        for kind, item in enumerate(self.kinds):
            for group in item.together:
                members.setdefault(group, []).append(kind)
        found: dict[tuple[object, ...], list[tuple[int, int, int]]] = {}
        seen: set[int] = set()
        for group, kinds in members.items():
            item, tie = self.kinds[kinds[0]], self.bounds.together[group]
            # Items may be in two groups that come to the same, such as the only instance of a role.
            if len(kinds) == 1 and kinds[0] not in seen and tie.only is None:
                seen.add(kinds[0])
                number = self.remaining[kinds[0]]
                others = tuple(other for other in item.together if other != group)
                rules = tuple(rule for rule, _ in item.apart)
                alike = (item.size, item.bins, tie.domains, number, others, rules)
                found.setdefault(alike, []).append((group, kinds[0], number))
        return [family for family in found.values() if len(family) > 1]

    def _open(self, number: int, kind: int) -> bool:
        """Whether bins of a class may take a kind of item as things are settled."""
        users, homes, places = self.classes[number]
        if not users >> kind & 1:
            return False
        item = self.kinds[kind]
        for group in item.together:
            if self.settled[group] is not None and self.settled[group] != homes[group]:
                return False
        fresh: dict[int, int] = {}
        for rule, owner in item.apart:
            there = self.owners[rule].get(places[rule], {})
            # Items of ALONE count each, any other owner counts once.
            if owner == ALONE or owner not in there:
                fresh[rule] = fresh.get(rule, 0) + 1
                if fresh[rule] > self._vacancies(rule, places[rule]):
                    return False
        return True

    def options(self, depth: int) -> Iterator[tuple[Shape, tuple[int, ...]]]:
        """Shapes worth trying, the fullest first, and the groups that settle by each choice.

        A bin that took the twin before is the fullest still, so it comes before the others are even looked at; unless
        the item wants an even spread, which goes before fullness.
        """
        kind = self.kind[depth]
        item = self.kinds[kind]
        unsettled = tuple(group for group in item.together if self.settled[group] is None)
        first: Shape | None = None
        even = [rule for rule, _ in item.apart if self.bounds.apart[rule].even]
        if not even and depth and self.kind[depth - 1] == kind and not unsettled:
            first = self.path[depth - 1][1]
            if self._open(first[0], kind) and fits(item.size, first[1]):
                yield first, ()
            else:
                first = None
        self.steps += len(self.pools) // _WORK
        usable = [
            shape
            for shape, bins in self.pools.items()
            if bins and shape != first and fits(item.size, shape[1]) and self._open(shape[0], kind)
        ]
        room: dict[int, tuple[int, ...]] = {}
        if unsettled:
            room = self._room(unsettled[0], kind, usable)
            usable = [shape for shape in usable if self._home(shape, unsettled[0]) in room]
        usable.sort(
            key=lambda shape: (
                self._held(even, shape) if even else 0,
                room[self._home(shape, unsettled[0])] if unsettled else (),
                shape[1],
                self.pools[shape][-1],
            )
        )
        for shape in usable:
            yield shape, unsettled

    def _home(self, shape: Shape, group: int) -> int:
        """The domain that a group settles in by a bin of that shape."""
        return self.classes[shape[0]][1][group]

    def _held(self, rules: Sequence[int], shape: Shape) -> int:
        """Owners in the domains of a shape of bins, over some rules."""
        places = self.classes[shape[0]][2]
        there = sum(_count(self.owners[rule].get(places[rule], {})) for rule in rules)
        return there + sum(self.bounds.apart[rule].taken.get(places[rule], 0) for rule in rules)

    def _room(self, group: int, kind: int, usable: Sequence[Shape]) -> dict[int, tuple[int, ...]]:
        """Sum of what is left in each domain of a group that takes all items of the kind that are to come."""
        size = self.kinds[kind].size
        room: dict[int, tuple[int, ...]] = {}
        places: dict[int, int] = {}
        for shape in usable:
            domain, number = self._home(shape, group), len(self.pools[shape])
            before = room.get(domain, (0,) * len(size))
            room[domain] = tuple([have + number * more for have, more in zip(before, shape[1], strict=True)])
            places[domain] = places.get(domain, 0) + number * capacity(size, shape[1])
        return {domain: left for domain, left in room.items() if places[domain] >= self.remaining[kind]}

    def put(self, depth: int, shape: Shape, settles: tuple[int, ...]) -> None:
        """Place the item of this depth."""
        self.steps += 1
        item = self.items[depth]
        bin_ = self.pools[shape].pop()
        after = (shape[0], tuple([have - need for need, have in zip(item.size, shape[1], strict=True)]))
        self.pools.setdefault(after, []).append(bin_)
        _, homes, places = self.classes[shape[0]]
        for group in settles:
            self.settled[group] = homes[group]
        for rule, owner in item.apart:
            there = self.owners[rule].setdefault(places[rule], {})
            there[owner] = there.get(owner, 0) + 1
        self.remaining[self.kind[depth]] -= 1
        self.wanted = [have - need for need, have in zip(item.size, self.wanted, strict=True)]
        self.path.append((shape, after, bin_, settles))

    def take_back(self, depth: int) -> None:
        """Undo the placing of the item of this depth."""
        self.careful = True
        item = self.items[depth]
        shape, after, bin_, settles = self.path.pop()
        self.pools[after].pop()
        self.pools[shape].append(bin_)
        places = self.classes[shape[0]][2]
        for group in settles:
            self.settled[group] = None
        for rule, owner in item.apart:
            there = self.owners[rule][places[rule]]
            there[owner] -= 1
            if not there[owner]:
                del there[owner]
        self.remaining[self.kind[depth]] += 1
        self.wanted = [have + need for need, have in zip(item.size, self.wanted, strict=True)]

    def promising(self, depth: int, *, settled: bool = True) -> bool:
        """Whether what is still to come may fit: all of it by how far bins can be filled, and each kind by itself."""
        if depth == len(self.items) or not (self.careful or settled):
            return True
        # As many looks as there are shapes, for the fillings and for each kind and family to come.
        self.steps += len(self.pools) * (1 + sum(map(bool, self.remaining)) + len(self.families)) // _WORK
        rooms = ((shape[1], len(bins)) for shape, bins in self.pools.items() if bins)
        if not self.fillings.enough(self.wanted, rooms):
            return False
        if not all(self._places(kind, wanted) >= wanted for kind, wanted in enumerate(self.remaining) if wanted):
            return False
        return all(self._whole(family) for family in self.families)

    def _whole(self, family: Sequence[tuple[int, int, int]]) -> bool:
        """Whether the groups of a family that have no domain yet find one each, whole."""
        waiting = [member for member in family if self.settled[member[0]] is None]
        if not waiting:
            return True
        group, kind, number = waiting[0]
        room: dict[int, int] = {}
        for shape, bins in self.pools.items():
            if bins and fits(self.kinds[kind].size, shape[1]) and self._open(shape[0], kind):
                home = self.classes[shape[0]][1][group]
                room[home] = room.get(home, 0) + len(bins) * capacity(self.kinds[kind].size, shape[1])
        return sum(places // number for places in room.values()) >= len(waiting)

    def _places(self, kind: int, wanted: int) -> int:
        """Places for a kind of item, were it alone; counting stops at ``wanted``."""
        item = self.kinds[kind]
        rule = next((rule for rule, owner in item.apart if owner == ALONE), None)
        by_domain: dict[int, int] = {}
        places = 0
        for shape, bins in self.pools.items():
            if not bins or not fits(item.size, shape[1]) or not self._open(shape[0], kind):
                continue
            more = len(bins) * capacity(item.size, shape[1])
            if rule is not None:
                # A domain takes no more of them than the rule lets in.
                domain = self.classes[shape[0]][2][rule]
                before = by_domain.get(domain, 0)
                by_domain[domain] = min(before + more, self._vacancies(rule, domain))
                more = by_domain[domain] - before
            places += more
            if places >= wanted:
                break
        return places

    def _vacancies(self, rule: int, domain: int) -> int:
        """Owners that a domain may still take."""
        bound = self.bounds.apart[rule]
        return bound.most - _count(self.owners[rule].get(domain, {})) - bound.taken.get(domain, 0)

    def is_dead(self, depth: int) -> bool:
        """Whether this state was searched before."""
        return self.careful and self._state(depth) in self.dead

    def bury(self, depth: int) -> None:
        """Nothing can come of this state."""
        self.dead.add(self._state(depth))

    def _state(self, depth: int) -> tuple[object, ...]:
        """What the rest of the search depends on: where a group or an owner is counts while more of it is to come."""
        shapes = frozenset((shape, len(bins)) for shape, bins in self.pools.items() if bins)
        settled = tuple([home for group, home in enumerate(self.settled) if self.last_of_group[group] >= depth])
        owners = tuple([frozenset(self._owners(there, depth) for there in rule.items()) for rule in self.owners])
        return depth, shapes, settled, owners

    def _owners(self, there: tuple[int, dict[int, int]], depth: int) -> tuple[int, int, frozenset[int]]:
        place, held = there
        coming = frozenset(owner for owner in held if owner != ALONE and self.last_of_owner[owner] >= depth)
        return place, _count(held), coming

    def result(self) -> tuple[int, ...]:
        bins = [0] * len(self.order)
        for position, index in enumerate(self.order):
            bins[index] = self.path[position][2]
        return tuple(bins)


def _count(held: dict[int, int]) -> int:
    """Owners among those that are in a place."""
    return len(held) - (ALONE in held) + held.get(ALONE, 0)


def _order(items: Sequence[Item], bounds: Bounds) -> list[int]:
    """Large groups first and each in a row, then large items first; twins next to each other."""
    totals: list[list[int]] = [[] for _ in bounds.together]
    for item in items:
        for group in item.together:
            totals[group] = [a + b for a, b in zip(totals[group] or [0] * len(item.size), item.size, strict=True)]
    first: dict[Item, int] = {}
    for index, item in enumerate(items):
        first.setdefault(item, index)

    def key(index: int) -> tuple[object, ...]:
        item = items[index]
        groups = sorted(([-amount for amount in totals[group]], group) for group in item.together)
        return groups or [([], -1)], [-need for need in item.size], first[item], index

    return sorted(range(len(items)), key=key)
