"""The goodput search against backends whose knee is known."""

from math import exp, inf
from random import Random

import pytest

from disagg_load.report import Attainment
from disagg_simulator.errors import OptionError
from disagg_simulator.goodput import LOWEST_RATE, Evaluate, Goodput, Search, Trial, find_goodput
from disagg_simulator.statistics import wilson

KNEES = (0.01, 1.0, 1000.0)


def attained(rate: float, requests: int, both: float, *, stable: bool = True) -> Trial:
    low, high = wilson(both, requests)
    return Trial(
        rate=rate,
        requests=requests,
        attainment=Attainment(ttft=both, tpot=both, both=both),
        low=low,
        high=high,
        stable=stable,
    )


def waiting(knee: float, target: float = 0.9) -> Evaluate:
    """Like M/D/1: the load at which the mean wait is `slo` is the knee; attainment falls as the wait grows."""

    def evaluate(rate: float, requests: int) -> Trial:
        load = 0.8 * rate / knee
        if load >= 1:
            return attained(rate, requests, 0.0, stable=False)
        wait = load / (1 - load) / 4.0
        return attained(rate, requests, 1 - (1 - target) * wait**2 if wait < 3 else 0.0)

    return evaluate


def within(found: Goodput, knee: float, tolerance: float) -> bool:
    return abs(found.requests_per_second / knee - 1) <= tolerance


@pytest.mark.parametrize("knee", KNEES)
@pytest.mark.parametrize("start", [0.01, 1.0, 300.0])
def test_sm11_knee_is_found_wherever_it_is(knee: float, start: float) -> None:
    found = find_goodput(waiting(knee), Search(start=start))
    assert within(found, knee, 0.006)
    assert found.best is not None
    assert found.best.attainment.both >= 0.9
    assert found.evaluations <= 40
    assert found.low <= knee <= found.high


@pytest.mark.parametrize("knee", KNEES)
def test_sm11_a_finer_tolerance_is_kept(knee: float) -> None:
    assert within(find_goodput(waiting(knee), Search(tolerance=1e-4)), knee, 1.1e-4)


def test_sm11_lower_bound_failing_is_0() -> None:
    found = find_goodput(lambda rate, requests: attained(rate, requests, 0.2))
    assert found.infeasible
    assert found.requests_per_second == 0
    assert found.low == 0


def test_sm11_upper_bound_passing_expands() -> None:
    found = find_goodput(waiting(5000.0), Search(start=1e-3))
    assert within(found, 5000.0, 0.006)


def test_sm11_what_never_fails_ends() -> None:
    found = find_goodput(lambda rate, requests: attained(rate, requests, 1.0))
    assert found.requests_per_second >= 1e6
    assert found.high == inf


@pytest.mark.parametrize("knee", KNEES)
@pytest.mark.parametrize("seed", range(8))
def test_sm11_noisy_non_monotone_points_do_not_end_the_search_early(knee: float, seed: int) -> None:
    """One trial in fifty says the opposite of the truth."""
    rng = Random(seed)
    true = waiting(knee)

    def noisy(rate: float, requests: int) -> Trial:
        trial = true(rate, requests)
        if rate > LOWEST_RATE and rng.random() < 0.02:
            return attained(rate, requests, 0.2 if trial.passes(0.9) else 0.99)
        return trial

    assert within(find_goodput(noisy), knee, 0.1)


@pytest.mark.parametrize("which", range(1, 18))
@pytest.mark.parametrize("knee", KNEES)
def test_sm11_one_trial_that_lies_is_outvoted(knee: float, which: int) -> None:
    """Whichever trial says the opposite of the truth (the lowest bound apart: who fails there fails everywhere)."""
    true = waiting(knee)
    made = 0

    def lying(rate: float, requests: int) -> Trial:
        nonlocal made
        made += 1
        trial = true(rate, requests)
        if made == which and rate > LOWEST_RATE:
            return attained(rate, requests, 0.2 if trial.passes(0.9) else 0.99)
        return trial

    assert within(find_goodput(lying), knee, 0.06)


def test_near_the_knee_more_requests_are_simulated() -> None:
    asked: dict[float, int] = {}
    true = waiting(7.0)

    def evaluate(rate: float, requests: int) -> Trial:
        asked[rate] = requests
        return true(rate, requests)

    found = find_goodput(evaluate, Search(requests=3000, growth=4))
    assert asked[1.0] == 3000
    assert asked[found.requests_per_second] == 12000
    assert set(asked.values()) == {3000, 12000}


def test_without_growth_every_trial_has_the_same_requests() -> None:
    found = find_goodput(waiting(7.0), Search(requests=500, growth=1))
    assert {trial.requests for trial in found.trials} == {500}


def test_an_unstable_rate_fails_however_good_it_looks() -> None:
    """A loose objective and a short run: everybody meets it, but the queue grows."""
    found = find_goodput(lambda rate, requests: attained(rate, requests, 1.0, stable=rate <= 3.0))
    assert within(found, 3.0, 0.006)


def test_sm5_the_nearest_miss_of_an_infeasible_search_is_the_best_trial() -> None:
    found = find_goodput(lambda rate, requests: attained(rate, requests, 0.7 * exp(-rate)))
    assert found.best is None
    assert found.nearest.attainment.both == max(trial.attainment.both for trial in found.trials)


def test_sm5_the_best_rate_meets_the_target_when_tried_again() -> None:
    evaluate = waiting(3.3)
    best = find_goodput(evaluate).best
    assert best is not None
    assert evaluate(best.rate, best.requests).passes(0.9)


@pytest.mark.parametrize("target", [0.5, 0.99])
def test_other_targets(target: float) -> None:
    assert within(find_goodput(waiting(2.0, target), Search(target=target)), 2.0, 0.006)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target", 0.0),
        ("target", 1.5),
        ("target", float("nan")),
        ("tolerance", 0.0),
        ("tolerance", 1.0),
        ("start", 0.0),
        ("start", inf),
        ("start", float("nan")),
        ("requests", 0),
        ("growth", 0),
    ],
)
def test_bad_searches_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(OptionError, match=field):
        Search(**{field: value})


def test_the_answer_is_no_short_run_that_passed_by_being_short() -> None:
    """At 9.9 requests/s, near capacity, 3,000 requests are over before the queue has grown; 12,000 are not."""
    true = waiting(9.0)

    def evaluate(rate: float, requests: int) -> Trial:
        if requests < 12_000 and rate < 9.9:
            return attained(rate, requests, 1.0)
        return true(rate, requests)

    found = find_goodput(evaluate, Search(start=1.2))
    assert found.best is not None
    assert found.best.requests == 12_000
    assert within(found, 9.0, 0.006)
