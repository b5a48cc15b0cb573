"""Scenes of the decision: load, corrections, and what an Event will say."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from disagg_contract.labels import Role
from disagg_planner.core.arima import arima_predictor
from disagg_planner.core.capacity import Demand
from disagg_planner.core.decision import Decision, Reason
from disagg_planner.core.explain import explain
from disagg_planner.core.forecast import Forecast, LastValue, Source
from disagg_planner.core.observation import Observation
from disagg_planner.core.settings import RoleSettings
from disagg_planner.core.state import expected_rate

Build = Callable[..., Any]
P, D = Role.PREFILL, Role.DECODE
BOTH = (P, D)


def targets(decision: Decision) -> tuple[int, int]:
    return decision.targets[P], decision.targets[D]


@pytest.mark.parametrize("predictor", [LastValue(), arima_predictor()])
def test_chat_13b_goes_to_2p2d_by_the_second_decision_and_back(planner: Build, predictor: object) -> None:
    """chat-13b from 1P1D at 3, then 12 req/s: 2P2D by the second decision after the change, less when the load goes."""
    scene = planner(predictor=predictor, ready_after=10.0)
    steady = scene.run(lambda at: 3.0, ticks=12)
    assert {targets(one) for one in steady} == {(1, 1)}
    change = scene.now + 15.0
    first, second = scene.run(lambda at: 7.5 if at < change + 30 else 12.0, ticks=2)
    assert targets(second) == (2, 2)
    assert first.roles[P].reason is Reason.LOAD_FORECAST
    busy = scene.run(lambda at: 12.0, ticks=10)
    assert {targets(one) for one in busy} == {(2, 2)}
    scene.run(lambda at: 0.0, ticks=4)
    assert scene.replicas() == {P: 1, D: 1}


def test_constant_load_on_slow_decodes_scales_decode_for_tpot(planner: Build) -> None:
    scene = planner(slo_tpot_seconds=0.035)
    steady = scene.run(lambda at: 3.0, ticks=6, slo_tpot=0.035)
    assert {targets(one) for one in steady} == {(1, 1)}
    slow = scene.run(lambda at: 3.0, ticks=1, slow=1.5, ttft=0.2, slo_tpot=0.035)[0]
    one = slow.roles[D]
    assert (one.target, one.reason) == (2, Reason.TPOT_ABOVE_SLO)
    text = explain(slow, D, scene.settings)
    assert text.startswith("decode 1 -> 2: TPOT is 0.04")
    assert "1.50 times the profile's time" in text


def test_constant_load_on_slow_prefills_scales_prefill_for_ttft(planner: Build) -> None:
    scene = planner()
    assert {targets(one) for one in scene.run(lambda at: 3.0, ticks=6)} == {(1, 1)}
    slow = scene.run(lambda at: 3.0, ticks=1, slow=1.5, ttft=0.31)[0]
    assert targets(slow) == (2, 1)
    assert slow.roles[P].reason is Reason.TTFT_ABOVE_SLO
    assert "TTFT is 0.31 s against an SLO of 0.25 s, 20 % of requests within it" in explain(slow, P, scene.settings)
    after = scene.run(lambda at: 3.0, ticks=6, slow=1.5, ttft=0.2)
    assert {targets(one) for one in after} == {(2, 1)}, "no flapping while the instances stay slow"


def test_slow_instances_that_keep_the_slo_are_watched_only(planner: Build) -> None:
    scene = planner()
    scene.run(lambda at: 3.0, ticks=2)
    slow = scene.run(lambda at: 3.0, ticks=2, slow=1.5, ttft=0.2)[-1]
    assert (slow.roles[P].target, slow.roles[P].reason) == (1, Reason.SLOWER_THAN_PROFILE)
    assert "needs 2, but the SLO is still met" in explain(slow, P, scene.settings)
    missed = scene.run(lambda at: 3.0, ticks=1, slow=1.5, ttft=0.3)[0]
    assert (missed.roles[P].target, missed.roles[P].reason) == (2, Reason.TTFT_ABOVE_SLO)


def test_more_load_on_instances_known_to_be_slow_is_load(planner: Build) -> None:
    scene = planner(prefill=2)
    scene.run(lambda at: 3.0, ticks=4, slow=1.5, ttft=0.2)
    assert scene.replicas()[P] == 2
    grown = scene.run(lambda at: 9.0, ticks=1, slow=1.5, ttft=0.2)[0]
    assert (grown.roles[P].target, grown.roles[P].reason) == (3, Reason.LOAD_FORECAST)


def test_a_quiet_window_does_not_turn_slowness_into_load(planner: Build) -> None:
    """Slow decodes are enough in a quiet window and not in the next: the SLO that is missed is still the reason."""
    scene = planner(slo_tpot_seconds=0.035)
    scene.run(lambda at: 3.0, ticks=4, slo_tpot=0.035)
    scene.run(lambda at: 1.9, ticks=2, slow=1.5, ttft=0.2, slo_tpot=0.035)
    assert scene.replicas()[D] == 1
    again = scene.run(lambda at: 3.0, ticks=1, slow=1.5, ttft=0.2, slo_tpot=0.035)[0]
    assert (again.roles[D].target, again.roles[D].reason) == (2, Reason.TPOT_ABOVE_SLO)


def test_load_is_named_when_load_alone_asks(planner: Build) -> None:
    scene = planner()
    decision = scene.run(lambda at: 12.0, ticks=1, slow=1.5, ttft=9.0, tpot=0.2)[0]
    assert {decision.roles[role].reason for role in BOTH} == {Reason.LOAD_FORECAST}
    assert "12 req/s of 755+200 tokens expected (last-value; 12 observed)" in explain(decision, P, scene.settings)


def test_an_overloaded_queue_asks_by_arrivals_not_by_completions(planner: Build, load: Build) -> None:
    """One prefill completes 9.6 of 12 req/s and its TTFT explodes: the need is that of 12, and k stays 1."""
    decision = planner().tick(load(30.0, 12.0, ttft=20.0))
    assert targets(decision) == (2, 2)
    assert decision.prefill_k == pytest.approx(1.0, rel=0.01)


def test_scale_up_is_capped_at_the_maximum_and_says_so(planner: Build) -> None:
    scene = planner()
    decision = scene.run(lambda at: 100.0, ticks=1)[0]
    assert targets(decision) == (4, 4)
    assert "its maximum is 4" in explain(decision, D, scene.settings)


def test_the_gpu_budget_shrinks_both(planner: Build) -> None:
    scene = planner(gpu_budget=4)
    decision = scene.run(lambda at: 100.0, ticks=1)[0]
    assert targets(decision) == (2, 2)
    assert "the GPU budget is 4" in explain(decision, D, scene.settings)


def test_a_group_of_somebody_else_is_left_alone(planner: Build) -> None:
    roles = {P: RoleSettings(scaled=False, minimum=3, maximum=3), D: RoleSettings(minimum=1, maximum=4)}
    decision = planner(roles=roles, gpu_budget=4).run(lambda at: 100.0, ticks=1)[0]
    assert targets(decision) == (1, 3)
    assert decision.roles[P].reason is Reason.NOT_SCALED


def test_pl14_lengths_and_rates_are_clipped_one_by_one() -> None:
    """Two negative forecasts must not multiply into a load."""
    demand = Demand(requests_per_second=0.0, input_tokens=-500.0, output_tokens=1.0)
    assert demand.requests_per_second * demand.prefill_tokens == 0.0


def test_noise_does_not_override_the_forecast_but_a_jump_does() -> None:
    def rate(forecast: float, count: float, points: int = 0) -> float:
        seen = Observation(at_seconds=0, window_seconds=30.0, started=count)
        return expected_rate(Forecast(value=forecast, source=Source.MODEL, points=points), seen)

    assert rate(12.0, 400.0) == 12.0
    assert rate(12.0, 100.0) == 12.0
    assert rate(12.0, 441.0) == pytest.approx((441 - 21) / 30), "a jump, less its standard error"
    assert rate(0.0, 36.0) == pytest.approx(1.0)
    assert rate(12.0, 360.0, points=1) == pytest.approx((360 - 360**0.5) / 30)
    assert rate(12.0, 360.0, points=4) == pytest.approx((360 - 90**0.5) / 30)
    assert rate(0.01, 0.3, points=1) == 0.01


def test_windows_of_twelve_requests_a_second_do_not_ask_for_a_third_prefill(planner: Build) -> None:
    """Poisson counts of 15 s windows after the step from 3 to 12 req/s; two instances take 13."""
    too_many = 0
    for seed in range(12):
        draw = random.Random(seed)
        scene = planner(predictor=arima_predictor(), interval_seconds=15.0)

        def noisy(at: float, draw: random.Random = draw) -> float:
            mean = 3.0 if at <= 150.0 else 12.0
            return draw.gauss(mean * 15.0, (mean * 15.0) ** 0.5) / 15.0

        scene.run(noisy, ticks=14, seconds=15.0)
        assert scene.replicas()[D] == 2
        assert scene.replicas()[P] >= 2
        too_many += scene.replicas()[P] > 2
    assert too_many <= 2


def test_a_congested_transfer_is_no_property_of_the_link(planner: Build, load: Build) -> None:
    scene = planner()
    scene.run(lambda at: 3.0, ticks=2)
    scene.tick(replace(load(90.0, 3.0), transfer_seconds=0.6))
    assert scene.state.transfer_seconds == pytest.approx(0.003)
    assert scene.tick(load(120.0, 3.0)).infeasible == ()


def test_pl8_an_infeasible_slo_is_said_not_chased(planner: Build, load: Build) -> None:
    scene = planner(slo_ttft_seconds=0.05, predictor=arima_predictor())
    decisions = [scene.tick(load(30.0 * tick, 0.1, ttft=0.104, slo_ttft=0.05)) for tick in range(1, 21)]
    assert {targets(one) for one in decisions} == {(1, 1)}
    assert decisions[-1].infeasible == (P,)


def test_every_decision_is_explained(planner: Build, outage: Build) -> None:
    scene = planner()
    decisions = [scene.tick(outage(30.0)), *scene.run(lambda at: 3.0, ticks=1), *scene.run(lambda at: 12.0, ticks=1)]
    decisions += scene.run(lambda at: 0.0, ticks=4)
    for decision in decisions:
        for role in BOTH:
            assert len(explain(decision, role, scene.settings)) > len("decode stays 1: ")


def test_the_same_windows_give_the_same_decisions(planner: Build) -> None:
    def run() -> list[tuple[int, int]]:
        scene = planner(predictor=arima_predictor())
        return [targets(one) for one in scene.run(lambda at: 3.0 + (at % 7) * 1.5, ticks=15)]

    assert run() == run()
