"""Counting."""

import pytest

from disagg_contract.metrics import Leg, Outcome, SloMet
from disagg_router.core.tally import UNKNOWN_MODEL, Ended, Histogram, Slo, Tally


def test_buckets_hold_their_upper_bound():
    histogram = Histogram((0.1, 0.25, 1.0))
    for value in (0.05, 0.1, 0.25, 0.3, 5.0):
        histogram.observe(value)
    assert histogram.cumulative() == [2, 3, 4, 5]
    assert histogram.sum == pytest.approx(5.7)


@pytest.mark.parametrize(
    ("ttft", "tpot", "met"),
    [
        (0.25, 0.1, SloMet.BOTH),
        (0.2, None, SloMet.BOTH),
        (0.2, 0.11, SloMet.TTFT),
        (0.26, 0.1, SloMet.TPOT),
        (0.26, 0.11, SloMet.NEITHER),
    ],
)
def test_which_slo_was_met(ttft, tpot, met):
    assert Slo(ttft_seconds=0.25, tpot_seconds=0.1).met(ttft, tpot) is met


def test_pm9_outcomes_and_in_flight_add_up():
    tally = Tally(slo=Slo(ttft_seconds=0.25), model="m")
    model = tally.model("m")
    for outcome in Outcome:
        model.start()
        model.end(Ended(outcome=outcome, duration_seconds=1.0, leg_errors=[Leg.DECODE], retries=[Leg.DECODE]))
    model.start()
    assert model.started == model.in_flight + sum(model.outcomes.values())
    assert model.in_flight == 1
    assert model.leg_errors == {Leg.PREFILL: 0, Leg.DECODE: 5}
    assert model.duration.cumulative()[-1] == 1, "only completed requests have a duration"


def test_a_request_without_latency_meets_no_slo_and_misses_none():
    tally = Tally(slo=Slo(ttft_seconds=0.25), model="m")
    tally.model("m").start()
    tally.model("m").end(Ended(outcome=Outcome.COMPLETED, duration_seconds=1.0))
    assert sum(tally.model("m").slo.values()) == 0


def test_pm6_the_models_label_exists_before_the_first_worker():
    assert set(Tally(slo=Slo(), model="m").models) == {"m", UNKNOWN_MODEL}
    assert set(Tally(slo=Slo()).models) == {UNKNOWN_MODEL}
