"""The closed form against the loop, and the recorded run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from disagg_engine.catalogue import default
from disagg_engine.timemodel.calibrated import Calibrated, CalibratedConstants
from disagg_simulator.validation.deviation import Comparison, errors_of, percentile
from disagg_simulator.validation.loops import closed_loop
from disagg_simulator.validation.run_fit import calibrate_run, simulate_run, training
from disagg_simulator.validation.silicon import Measurement
from disagg_simulator.validation.steady import (
    Load,
    Mixing,
    instance_of,
    load_of,
    peak_share,
    shares,
    steady_tpot_seconds,
)


def made(row: Measurement, constants: CalibratedConstants) -> tuple[Calibrated, Load]:
    load = load_of(row, default())
    return Calibrated(load.instance, constants), load


@pytest.mark.parametrize("concurrency", [1, 8, 64])
@pytest.mark.parametrize("output_tokens", [128, 1024])
def test_the_closed_form_agrees_with_the_batching_loop(
    measurement: Callable[..., Measurement], run_truth: CalibratedConstants, concurrency: int, output_tokens: int
) -> None:
    row = measurement(concurrency=concurrency, output_tokens=output_tokens)
    model, load = made(row, run_truth)
    times = closed_loop(model, load, backend="vllm", concurrency=concurrency)
    assert times is not None
    # In the loop eight prompts fit into one iteration and stay together, so nobody's decode waits for them.
    assert sum(times.tpot) / len(times.tpot) == pytest.approx(steady_tpot_seconds(model, load), rel=0.12)


def test_decodes_alone_are_the_same_in_both(
    measurement: Callable[..., Measurement], run_truth: CalibratedConstants
) -> None:
    row = measurement(concurrency=1, input_tokens=1, output_tokens=2000)
    model, load = made(row, run_truth)
    times = closed_loop(model, load, backend="vllm", concurrency=1)
    assert times is not None
    assert sum(times.tpot) / len(times.tpot) == pytest.approx(steady_tpot_seconds(model, load), rel=1e-3)


def test_the_prompts_of_all_others_are_counted_once(measurement: Callable[..., Measurement]) -> None:
    for concurrency, output_tokens in ((4, 512), (64, 100), (1001, 2), (901, 5)):
        load = load_of(measurement(concurrency=concurrency, output_tokens=output_tokens, tensor=8), default())
        found = list(shares(load))
        assert sum(share.weight for share in found) == pytest.approx(1.0, abs=1e-6)
        prompts = sum(share.weight * share.prompts for share in found)
        assert prompts == pytest.approx((load.sequences - 1) / output_tokens, rel=1e-5)


def test_a_prefill_first_program_makes_a_running_request_wait_for_half_a_burst(
    measurement: Callable[..., Measurement],
) -> None:
    row = measurement(engine=replace(measurement().engine, backend="sglang"))
    load = load_of(row, default())
    assert load.mixing is Mixing.PREFILL_FIRST
    prompts = sum(share.weight * share.prompts for share in shares(load))
    assert prompts == pytest.approx(0.5 * (row.concurrency - 1) / row.output_tokens)


def test_concurrency_is_cut_to_the_room_and_what_never_fits_is_not_run(
    measurement: Callable[..., Measurement], run_truth: CalibratedConstants
) -> None:
    full = load_of(measurement(concurrency=10_000, tensor=2), default())
    assert full.sequences < 10_000
    model, load = made(measurement(tensor=1, input_tokens=90_000), run_truth)
    assert load.sequences == 1
    assert closed_loop(model, load, backend="vllm", concurrency=2) is None


def test_a_row_that_needs_more_than_the_peak_is_told_from_one_that_does_not(
    measurement: Callable[..., Measurement],
) -> None:
    plain = measurement(concurrency=64)
    share = peak_share(plain, default())
    # 64 requests in 0.1 + 255 · 0.01 s, 2 · 70.6e9 FLOP for each of 1280 tokens and some attention, on 4 GPUs
    assert share == pytest.approx(64 / 2.65 * 2 * 70.6e9 * 1280 / (4 * 1979e12), rel=0.1)
    assert peak_share(replace(plain, tpot_seconds=0.001), default()) > 2 * share


def test_a_run_without_error_comes_out_as_recorded(made_run: Any, run_truth: CalibratedConstants) -> None:
    run = made_run.read()
    instance = instance_of(run.settings.engine, tensor=1, catalogue=default())
    times = simulate_run(run, Calibrated(instance, run_truth))
    assert times.ttft == pytest.approx([request.ttft_seconds for request in run.requests], abs=2e-6)
    assert times.end_to_end == pytest.approx([request.end_to_end_seconds for request in run.requests], abs=2e-6)


def test_with_prefix_caching_a_preempted_request_finds_its_prompt_again(
    made_run: Any, run_truth: CalibratedConstants
) -> None:
    plain = made_run.read()
    caching = replace(plain, settings=replace(plain.settings, prefix_caching=True))
    model = Calibrated(instance_of(plain.settings.engine, tensor=1, catalogue=default()), run_truth)
    without, with_cache = simulate_run(plain, model), simulate_run(caching, model)
    assert without.preemptions > 0
    assert sum(with_cache.end_to_end) < sum(without.end_to_end)


def test_the_constants_behind_a_run_are_found_from_half_of_it(made_run: Any, run_truth: CalibratedConstants) -> None:
    run = made_run.read()
    fitted = calibrate_run(run, default())
    assert fitted.fit.rows == training(run) == 20
    instance = instance_of(run.settings.engine, tensor=1, catalogue=default())
    times = simulate_run(run, Calibrated(instance, fitted.constants))
    unseen = run.requests[20:]
    errors = errors_of(times.end_to_end[20:], [request.end_to_end_seconds for request in unseen])
    assert errors is not None
    assert errors.mape < 0.03
    assert fitted.constants.memory_efficiency == pytest.approx(run_truth.memory_efficiency, rel=0.15)


def test_the_second_half_of_a_run_never_leaks_into_its_fit(made_run: Any) -> None:
    spoilt = made_run
    for line in range(21, 41):
        request = made_run.read().requests[line - 1]
        assert request.request_id == f"made-{line - 1}"
        spoilt = spoilt.with_field(line=line, field="last_token_ts", value=9e9)
    assert calibrate_run(spoilt.read(), default()) == calibrate_run(made_run.read(), default())


def test_errors_are_shares_of_what_was_measured() -> None:
    errors = errors_of([1.1, 0.9, 2.0], [1.0, 1.0, 1.0])
    assert errors is not None
    assert errors.mape == pytest.approx(0.4)
    assert errors.median == pytest.approx(0.1)
    assert errors.bias == pytest.approx(1.0 / 3)
    assert errors_of([], []) is None


def test_a_comparison_holds_both_distributions() -> None:
    comparison = Comparison.of([2.0, 4.0], [1.0, 2.0])
    assert comparison.to_json()["ratio"] == {"mean": 2.0, "p50": 2.0, "p90": 2.0, "p99": 2.0}
    assert comparison.requests.bias == pytest.approx(1.0)
    assert percentile([1.0, 2.0, 3.0], 0.25) == 1.5
