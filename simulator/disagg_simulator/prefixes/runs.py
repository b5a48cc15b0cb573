"""Runs: successive blocks of prompts that no prompt of the workload has without each other.

A name stands for everything up to the end of its block, so the prompts of a workload form a tree. Between branchings
and ends of prompts every prompt has all of the names or none, and whatever happens to one happens to all. So a ledger
can handle them as one thing with a length: for real conversations two or three a prompt instead of some twenty.

The tree is built prompt by prompt: an edge is a run, and it is cut in two where a later prompt leaves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

ROOT = -1

Runs = list[list[int]]
"""For each request the runs of its prompt, by number."""


class Forest:
    """Edges by number: the names on it, the edge before it (ROOT: none), and the edge that begins with a name."""

    def __init__(self) -> None:
        self.names: list[Sequence[int]] = []
        self.before: list[int] = []
        self._first: dict[int, int] = {}

    def add(self, prompt: Sequence[int]) -> int | None:
        """Walk along the prompt, making edges end where it leaves them; the last edge on its way.

        None if a name follows others than it did before: then names do not stand for prefixes.
        """
        names, before, first = self.names, self.before, self._first
        edge, place, end = ROOT, 0, len(prompt)
        while place < end:
            name = prompt[place]
            following = first.get(name)
            if following is None:
                first[name] = len(names)
                names.append(prompt[place:] if place else prompt)
                before.append(edge)
                return len(names) - 1
            if before[following] != edge:
                return None
            known = names[following]
            length = len(known)
            if prompt[place : place + length] != known:
                length = _common(known, prompt, place)
                following = self._cut(following, length)
            edge = following
            place += length
        return edge

    def _cut(self, edge: int, length: int) -> int:
        """Cut an edge after so many names; the part before, which is new."""
        known = self.names[edge]
        part = len(self.names)
        self.names.append(known[:length])
        self.before.append(self.before[edge])
        self._first[known[0]] = part
        self.names[edge] = known[length:]
        self.before[edge] = part
        self._first[known[length]] = edge
        return part


def find_runs(names: Sequence[Sequence[int]], filled: Sequence[bool]) -> tuple[Runs, list[int]]:
    """Runs of each prompt, and the number of blocks of each run.

    names: of the full blocks of each prompt. filled: whether a prompt ends with its last full block; a match leaves its
    last token out, so that block is a run of its own. Names that are not chained are runs of one block each.
    """
    forest = Forest()
    ends = []
    for prompt, full in zip(names, filled, strict=True):
        if full:
            forest.add(prompt[:-1])
        end = forest.add(prompt)
        if end is None:
            return _single(names)
        ends.append(end)
    lengths = list(map(len, forest.names))
    if sum(lengths) != len(set(chain.from_iterable(forest.names))):
        return _single(names)
    ways: dict[int, list[int]] = {ROOT: []}
    return [_way(end, forest.before, ways) for end in ends], lengths


def _way(end: int, before: Sequence[int], ways: dict[int, list[int]]) -> list[int]:
    """The edges from the root to `end`."""
    known = ways.get(end)
    if known is None:
        climbed = [end]
        while (edge := before[climbed[-1]]) not in ways:
            climbed.append(edge)
        known = ways[end] = [*ways[edge], *reversed(climbed)]
    return known


def _common(known: Sequence[int], prompt: Sequence[int], place: int) -> int:
    """How many names `known` and the prompt from `place` on have in common; not all of `known`."""
    length = 0
    for name, other in zip(known, prompt[place:], strict=False):
        if name != other:
            break
        length += 1
    return length


def _single(names: Sequence[Sequence[int]]) -> tuple[Runs, list[int]]:
    numbers: dict[int, int] = {}
    runs = [[numbers.setdefault(name, len(numbers)) for name in prompt] for prompt in names]
    return runs, [1] * len(numbers)
