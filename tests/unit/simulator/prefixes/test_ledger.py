"""Runs against names one by one, and the ledger of runs against the pods' ledger of blocks."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_engine.kv import BlockLedger
from disagg_simulator.prefixes.ledger import HELD, SPARE_RUNS, RunLedger
from disagg_simulator.prefixes.runs import find_runs

BLOCK = 4


def chained(rng: Random, depth: int) -> list[int]:
    """Names that grow like chains do: the same number means the same prefix."""
    names: list[int] = []
    for _ in range(rng.randint(0, 8)):
        names.append((names[-1] if names else 1) * 4 + rng.randint(0, depth) * (rng.random() < 0.6))
    return names


@given(seed=st.integers(0, 10**6), depth=st.integers(1, 3), count=st.integers(1, 30))
def test_runs_are_what_all_or_none_of_the_prompts_have(seed, depth, count):
    rng = Random(seed)
    names = [chained(rng, depth) for _ in range(count)]
    filled = [bool(prompt) and rng.random() < 0.3 for prompt in names]
    runs, lengths = find_runs(names, filled)
    blocks: dict[int, list[int]] = {}
    for prompt, here, full in zip(names, runs, filled, strict=True):
        assert sum(lengths[run] for run in here) == len(prompt)
        start = 0
        for run in here:
            assert blocks.setdefault(run, prompt[start : start + lengths[run]]) == prompt[start : start + lengths[run]]
            start += lengths[run]
        assert not full or lengths[here[-1]] == 1
    everything = [name for content in blocks.values() for name in content]
    assert len(everything) == len(set(everything)), "a name is on one run"
    # No two neighbours could be one: something begins or ends between them.
    ends = names + [prompt[:-1] for prompt, full in zip(names, filled, strict=True) if full]
    for prompt, here in zip(names, runs, strict=True):
        start = 0
        for run in here[:-1]:
            start += lengths[run]
            with_one = sum(prompt[start - 1] in other for other in ends)
            with_both = sum(prompt[start] in other for other in ends)
            assert with_both < with_one


@pytest.mark.parametrize(
    "names",
    [
        [[1, 3], [2, 3]],
        [[1, 2, 3], [1, 3]],
        [[1, 2, 3], [1, 3, 2]],
        [[5, 5]],
        [[1, 2, 1]],
        [[1, 2], [2]],
        [[2], [1, 2]],
    ],
)
def test_names_that_are_not_chained_stay_single(names):
    runs, lengths = find_runs(names, [False] * len(names))
    assert set(lengths) == {1}
    assert list(map(len, runs)) == list(map(len, names))
    known: dict[int, int] = {}
    for prompt, here in zip(names, runs, strict=True):
        assert [known.setdefault(run, name) for name, run in zip(prompt, here, strict=True)] == prompt


def test_conversations_of_thousands_of_turns():
    names = [list(range(turn + 1)) for turn in range(3000)]
    runs, lengths = find_runs(names, [False] * len(names))
    assert lengths == [1] * 3000
    assert len(runs[-1]) == 3000


class Both:
    """Does the same to both ledgers and compares after each step."""

    def __init__(self, blocks: int, prompts: list[tuple[list[int], int]]) -> None:
        self.prompts = prompts
        names = [prompt for prompt, _ in prompts]
        self.filled = [bool(prompt) and len(prompt) * BLOCK == tokens for prompt, tokens in prompts]
        self.runs, self.lengths = find_runs(names, self.filled)
        self.ours = RunLedger(blocks=blocks, block_tokens=BLOCK, lengths=self.lengths)
        self.blocks = BlockLedger(capacity_tokens=blocks * BLOCK, block_tokens=BLOCK)
        self.opened: dict[int, tuple] = {}
        self.computed: dict[int, tuple] = {}
        self.names_of: dict[int, list[int]] = {}
        for prompt, here in zip(names, self.runs, strict=True):
            start = 0
            for run in here:
                self.names_of[run] = prompt[start : start + self.lengths[run]]
                start += self.lengths[run]

    def open(self, number: int, room: int) -> None:
        names, tokens = self.prompts[number]
        runs = self.runs[number][:-1] if self.filled[number] else self.runs[number]
        match = self.ours.match(runs)
        assert match[1] * BLOCK == self.blocks.match(names, tokens)
        fresh = self.ours.open(match, tokens + room)
        cached = self.blocks.open(str(number), tokens=tokens, room_tokens=tokens + room, keys=names)
        assert cached == (None if fresh is None else match[1] * BLOCK)
        if fresh is not None:
            self.opened[number] = match, fresh

    def compute(self, number: int) -> None:
        self.computed[number] = self.ours.publish(self.runs[number], *self.opened.pop(number))
        self.blocks.commit(str(number), self.prompts[number][1])

    def close(self, number: int) -> None:
        self.ours.close(self.computed.pop(number))
        self.blocks.close(str(number))

    def names(self, run: int) -> list[int]:
        """Names of a run, or of a part of one."""
        for whole, (there, rest) in self.ours._splits.items():
            if run in (there, rest):
                names, length = self.names(whole), self.ours._parts[-1 - there]
                return names[:length] if run == there else names[length:]
        return self.names_of[run]

    def compare(self) -> None:
        ours, pool = self.ours, self.blocks.snapshot()
        found = {run: self.names(run) for run in ours._stamps}
        if ours._torn is not None:
            found[ours._torn] = found[ours._torn][: ours._torn_blocks]
        assert sorted(name for names in found.values() for name in names) == sorted(pool.keys)
        assert (ours._free, ours._cached) == (len(pool.free), len(pool.cached))
        name_of = {block: name for name, block in pool.keys.items()}
        order = [
            name
            for stamp, sheet in ours._sheets
            for run in reversed(sheet)
            if ours._stamps.get(run) == stamp
            for name in reversed(found[run])
        ]
        assert order == [name_of[block] for block in pool.cached], "the same are evicted next"
        held = {
            name: 1 + ours._more.get(run, 0)
            for run, stamp in ours._stamps.items()
            if stamp == HELD
            for name in found[run]
        }
        assert held == {name_of[block]: count for block, count in pool.references.items() if block in name_of}


@given(seed=st.integers(0, 10**6), blocks=st.integers(4, 24), depth=st.integers(0, 3), steps=st.integers(1, 80))
def test_it_decides_as_the_ledger_of_blocks(seed, blocks, depth, steps):
    rng = Random(seed)
    prompts = []
    for _ in range(steps):
        names = chained(rng, depth)
        prompts.append((names, max(1, len(names) * BLOCK + rng.choice((0, 0, 1, 3)))))
    both = Both(blocks, prompts)
    for step in range(steps):
        what = rng.random()
        if what < 0.45:
            both.open(step, rng.randint(1, 9))
        elif what < 0.7 and both.opened:
            both.compute(rng.choice(list(both.opened)))
        elif both.computed:
            both.close(rng.choice(list(both.computed)))
        both.compare()


def test_a_run_that_is_found_again_and_again_does_not_pile_up():
    ledger = RunLedger(blocks=64, block_tokens=BLOCK, lengths=[8])
    for _ in range(3000):
        match = ledger.match([0])
        ledger.close(ledger.publish([0], match, ledger.open(match, 36)))
    assert ledger._listed <= SPARE_RUNS + 3
    assert ledger.match([0]) == ([0], 8)
