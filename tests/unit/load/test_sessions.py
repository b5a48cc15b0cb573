"""Conversations: what their prompts share, how long they last, and when their turns come."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from disagg_load.columns import Columns
from disagg_load.workloads.arrivals import PoissonArrivals
from disagg_load.workloads.builtin import builtin_columns
from disagg_load.workloads.lengths import FixedLengths, LognormalLengths
from disagg_load.workloads.sessions import Sessions, draw_sessions


def turns(load: Columns) -> dict[int, list[int]]:
    """The places of each session's turns."""
    assert load.sessions is not None
    found = defaultdict(list)
    for place, session in enumerate(load.sessions):
        found[session].append(place)
    return found


def shared(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Blocks that two prompts begin with."""
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


@pytest.mark.parametrize("block", [16, 64, 512])
def test_a_turn_repeats_all_that_came_before_it(block: int) -> None:
    load = builtin_columns(f"sessions?apps=3&system=1000&sessions=20&requests=800&block={block}", seed=4)
    assert load.block_tokens == block
    assert load.hash_ids is not None
    for places in turns(load).values():
        assert load.input_tokens[places[0]] > 1000
        for earlier, later in pairwise(places):
            before = load.input_tokens[earlier]
            assert load.input_tokens[later] > before + load.output_tokens[earlier]
            assert shared(load.hash_ids[earlier], load.hash_ids[later]) == before // block  # type: ignore[arg-type]
    for tokens, ids in zip(load.input_tokens, load.hash_ids, strict=True):
        assert len(ids) == -(-tokens // block)
        assert len(set(ids)) == len(ids)


def test_sessions_of_an_app_share_its_system_prompt_and_nothing_else_is_shared() -> None:
    load = builtin_columns("sessions?apps=3&system=1000&sessions=20&requests=500&block=64", seed=4)
    assert load.hash_ids is not None
    first = {session: load.hash_ids[places[0]] for session, places in turns(load).items()}
    found = {shared(left, right) for left in first.values() for right in first.values() if left is not right}  # type: ignore[arg-type]
    assert found == {0, 1000 // 64}
    assert len({ids[0] for ids in first.values()}) == 3


def test_a_block_that_is_not_full_is_never_found_again() -> None:
    load = builtin_columns("sessions?requests=2000", seed=4)
    assert load.hash_ids is not None
    uses: dict[int, int] = defaultdict(int)
    for ids in load.hash_ids:
        for block in ids:
            uses[block] += 1
    for tokens, ids in zip(load.input_tokens, load.hash_ids, strict=True):
        if tokens % 64:
            assert uses[ids[-1]] == 1


def test_sessions_have_their_number_of_turns_and_begin_as_poisson_does() -> None:
    load = draw_sessions(
        PoissonArrivals(20),
        Sessions(sessions=100, turns=5, longest_tokens=10**9),
        FixedLengths(10),
        FixedLengths(10),
        requests=60_000,
        seed=6,
    )
    found = turns(load)
    lengths = np.array([len(places) for places in found.values()])
    assert lengths.mean() == pytest.approx(5, rel=0.03)
    assert lengths.std() == pytest.approx(np.sqrt(20), rel=0.05)
    starts = np.diff(sorted(load.arrival_seconds[places[0]] for places in found.values()))
    assert 1 / starts[200:].mean() == pytest.approx(20 / 5, rel=0.05)
    assert starts[200:].std() / starts[200:].mean() == pytest.approx(1, rel=0.05)
    think = np.concatenate([np.diff([load.arrival_seconds[place] for place in places]) for places in found.values()])
    assert think.mean() == pytest.approx(100 / 20, rel=0.03)
    assert think.std() == pytest.approx(100 / 20, rel=0.05)


def test_row_23_sessions_that_never_end() -> None:
    """600 sessions, 6 apps with system prompts of 2,048 tokens, 120 requests/s."""
    load = builtin_columns(
        "sessions?apps=6&system=2048&sessions=600&rate=120&requests=12000&turns=1e9&longest=100000", seed=1
    )
    assert load.sessions is not None
    assert load.hash_ids is not None
    assert len(set(load.sessions)) == 600
    assert 12_000 / load.span_seconds == pytest.approx(120, rel=0.03)
    assert len({ids[:32] for ids in load.hash_ids}) == 6  # type: ignore[index]


def test_think_time_instead_of_a_number_of_sessions() -> None:
    by_time = builtin_columns("sessions?rate=4&think=5&requests=300", seed=1)
    by_number = builtin_columns("sessions?rate=4&sessions=20&requests=300", seed=1)
    assert by_time.hash_ids == by_number.hash_ids


def test_no_prompt_is_longer_than_the_longest() -> None:
    load = draw_sessions(
        PoissonArrivals(20),
        Sessions(sessions=10, turns=50, system_tokens=0, longest_tokens=1000),
        LognormalLengths(300, 1),
        LognormalLengths(100, 0.4),
        requests=3000,
        seed=6,
    )
    assert max(load.input_tokens) == 1000
    assert np.mean([len(places) for places in turns(load).values()]) < 4
