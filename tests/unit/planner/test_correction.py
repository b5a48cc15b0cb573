"""Observed against predicted latency."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from disagg_contract.profile import Profile
from disagg_planner.core.correction import decode_factor, factor, prefill_factor
from disagg_planner.core.interpolation import ProfileTable
from disagg_planner.core.observation import Latency, Observation, Work

Load = Callable[..., Observation]


def k_ttft(table: ProfileTable, seen: Observation, previous: float = 1.0) -> float:
    return prefill_factor(table, seen, input_tokens=755.0, previous=previous)


def k_tpot(table: ProfileTable, seen: Observation, *, instances: int = 1, previous: float = 1.0) -> float:
    return decode_factor(table, seen, context_tokens=855.0, output_tokens=200.0, instances=instances, previous=previous)


@pytest.mark.parametrize("slow", [0.8, 1.0, 1.5])
def test_the_factor_is_how_slow_the_instances_are(table: ProfileTable, load: Load, slow: float) -> None:
    assert k_ttft(table, load(0, 3.0, slow=slow)) == pytest.approx(slow, rel=0.01)
    assert k_tpot(table, load(0, 3.0, slow=slow)) == pytest.approx(slow, rel=0.01)


def test_prompts_that_share_an_iteration_are_not_taken_for_slowness(table: ProfileTable) -> None:
    pairs = Observation(
        at_seconds=0,
        window_seconds=30,
        started=360,
        prefill_work=Work(iterations=180, busy_seconds=180 * table.ttft_seconds(1510), prompt_tokens=360 * 755),
    )
    assert k_ttft(table, pairs) == pytest.approx(1.0, abs=1e-6)


def test_a_full_batch_is_not_taken_for_slowness(table: ProfileTable, load: Load) -> None:
    assert k_tpot(table, load(0, 12.0)) == pytest.approx(1.0, rel=0.01)


def test_recomputed_prompts_are_not_taken_for_slowness(table: ProfileTable, load: Load) -> None:
    seen = load(0, 6.0)
    work = seen.decode_work
    assert work is not None
    recomputed = 10 * 855.0
    slower = replace(
        work,
        busy_seconds=work.busy_seconds + recomputed / table.prefill_tokens_per_second(855),
        prompt_tokens=recomputed,
    )
    assert k_tpot(table, replace(seen, decode_work=slower)) == pytest.approx(1.0, rel=0.01)


def test_pl10_seconds_against_seconds(flat: Callable[..., ProfileTable]) -> None:
    """A profile of 250 ms and 20 ms against metrics of 0.25 s and 0.02 s: both factors are 1."""
    table = flat(ttft=0.25, tpot=0.02)
    seen = Observation(
        at_seconds=0,
        window_seconds=60,
        started=60,
        prefill_seconds=0.25,
        tpot=Latency(mean_seconds=0.02, share=1.0, quantile=None),
    )
    assert k_ttft(table, seen) == pytest.approx(1.0, abs=1e-6)
    assert k_tpot(table, seen) == pytest.approx(1.0, abs=1e-6)


def test_pl11_nothing_to_divide_by_keeps_the_previous_factor(flat: Callable[..., ProfileTable], load: Load) -> None:
    assert factor(1.0, 0.0, 1.3) == 1.3
    assert factor(0.0, 1.0, 1.3) == 1.3
    assert factor(math.inf, 1.0, 1.3) == 1.3
    assert factor(None, 1.0, 1.3) == 1.3
    table = flat()
    by_requests = replace(load(0, 3.0), decode_work=None)
    assert k_tpot(table, by_requests, instances=0, previous=1.3) == 1.3
    assert k_ttft(table, Observation(at_seconds=0, window_seconds=30), previous=1.3) == 1.3


def test_pl11_lengths_outside_of_the_profile_give_a_finite_factor(table: ProfileTable, load: Load) -> None:
    for isl in (1.0, 1e6):
        assert 0.5 <= k_ttft(table, load(0, 0.5, isl=isl)) <= 2.0


@pytest.mark.parametrize(("ratio", "k"), [(0.1, 0.5), (10.0, 2.0)])
def test_the_factor_is_bounded(ratio: float, k: float) -> None:
    assert factor(ratio, 1.0, 1.0) == k


def test_too_few_iterations_say_nothing(table: ProfileTable) -> None:
    seen = Observation(
        at_seconds=0, window_seconds=30, started=2, prefill_work=Work(iterations=2, busy_seconds=9.0, prompt_tokens=99)
    )
    assert k_ttft(table, seen, previous=1.1) == 1.1


def test_pipeline_stages_keep_an_instance_busy_for_their_share_only(profile: Profile) -> None:
    plain, piped = ProfileTable(profile), ProfileTable(replace(profile, prefill_pipeline=2, decode_pipeline=2))
    seen = Observation(
        at_seconds=0,
        window_seconds=30,
        started=90,
        prefill_work=Work(iterations=90, busy_seconds=90 * plain.ttft_seconds(755) / 2, prompt_tokens=90 * 755),
        decode_work=Work(iterations=1000, busy_seconds=500 * plain.tpot_seconds(855, 16), answer_tokens=8000),
    )
    assert k_ttft(piped, seen) == pytest.approx(1.0)
    assert k_tpot(piped, seen) == pytest.approx(1.0)
