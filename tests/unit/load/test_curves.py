"""Rates that follow curves: the curves themselves, and the arrivals that they make."""

from itertools import islice

import numpy as np
import pytest

from disagg_load.errors import WorkloadError
from disagg_load.workloads.builtin import builtin_columns, parse_load
from disagg_load.workloads.curves import (
    Curve,
    CurveArrivals,
    Cycle,
    Line,
    Noise,
    Product,
    Sum,
    burst,
    ramp,
    steps,
)
from disagg_load.workloads.drawing import draw
from disagg_load.workloads.lengths import FixedLengths
from disagg_load.workloads.streams import Streams

ONE = FixedLengths(1)


def values(curve: Curve, *times: float, seed: int = 1) -> list[float]:
    return curve.path(Streams(seed)).values(np.array(times, dtype=np.float64)).tolist()


def counts(arrivals: CurveArrivals, *, seconds: float, width: float, seed: int = 3) -> np.ndarray:
    times = draw(arrivals, ONE, ONE, seconds=seconds, seed=seed).arrival_seconds
    return np.histogram(np.array(times)[1:], np.arange(0, seconds + width / 2, width))[0]


def test_the_shapes() -> None:
    assert values(Cycle(0.5, 100), 0, 25, 50, 100) == pytest.approx([0.5, 1, 1.5, 0.5])
    assert values(burst(3, 10, 20, 2), 0, 10, 11, 12, 15, 18, 19, 20, 99) == [1, 1, 2, 3, 3, 3, 2, 1, 1]
    assert values(burst(3, 10, 20), 9.9, 10, 19.9, 20) == [1, 3, 3, 1]
    assert values(ramp(3, 10, 20), 0, 10, 15, 20, 99) == [1, 1, 2, 3, 3]
    assert values(steps(((10, 2), (20, 0.5))), 0, 9.9, 10, 19.9, 20, 99) == [1, 1, 2, 2, 0.5, 0.5]
    assert values(Product((steps(((0, 2),)), steps(((5, 3),)))), 1, 6) == [2, 6]
    assert values(Sum((steps(((0, 2),)), steps(((5, 3),)))), 1, 6) == [3, 5]


def test_noise_is_stationary_and_autoregressive() -> None:
    noise = Noise(0.04)
    path = np.array(values(noise, *(60.0 * np.arange(50_000)))) - 1
    assert path.mean() == pytest.approx(0, abs=0.003)
    assert path.std() == pytest.approx(0.04, rel=0.03)
    assert np.corrcoef(path[1:], path[:-1])[0, 1] == pytest.approx(0.9, abs=0.01)
    first = np.array([values(noise, 0, seed=seed)[0] for seed in range(400)])
    assert first.std() == pytest.approx(0.04, rel=0.1)
    assert values(noise, 0, 59.9) == values(noise, 0) * 2
    assert values(noise, 3e6) == values(noise, 0, 3e6)[1:]
    assert min(values(Noise(1), *(60.0 * np.arange(500)))) == 0


@pytest.mark.parametrize(
    "curve",
    [
        Cycle(1, 300),
        burst(5, 100, 200, 20),
        steps(((100, 0), (200, 4), (300, 1))),
        Product((Cycle(0.8, 300), Noise(0.3), ramp(3, 200, 700))),
        Sum((Noise(0.2), Noise(0.2, name="other"))),
    ],
)
def test_arrivals_follow_their_curve(curve: Curve) -> None:
    """Counts of each 10 s minus what the curve promises are Poisson's: mean 0, variance 1 when divided by the root."""
    arrivals = CurveArrivals(50.0, curve)
    found = counts(arrivals, seconds=1000, width=10)
    fine = arrivals.curve.path(Streams(3)).values(np.arange(0.05, 1000, 0.1))
    expected = 50 * fine.reshape(100, 100).mean(axis=1) * 10
    assert (found[expected < 1e-9] == 0).all()
    scores = (found - expected)[expected > 5] / np.sqrt(expected[expected > 5])
    assert scores.mean() == pytest.approx(0, abs=0.4)
    assert scores.std() == pytest.approx(1, abs=0.3)


def test_a_path_is_never_above_its_bound() -> None:
    curve = Product((Cycle(0.8, 300), Noise(0.3), burst(3, 200, 700, 100), Sum((ramp(2, 0, 9), steps(((400, 5),))))))
    path = curve.path(Streams(5))
    for start in range(0, 1000, 70):
        times = np.linspace(start, start + 70, 500)
        assert path.values(times).max() <= path.most(start, start + 70)


def test_a_rate_that_stays_at_0_ends_a_load_of_seconds_and_is_named_otherwise() -> None:
    arrivals = CurveArrivals(50.0, steps(((10, 0),)))
    load = draw(arrivals, ONE, ONE, seconds=1e6, seed=1)
    assert load.span_seconds < 10
    assert len(load) == pytest.approx(500, abs=100)
    with pytest.raises(WorkloadError, match=r"no more requests come before .* bound the load by seconds"):
        draw(arrivals, ONE, ONE, requests=1000, seed=1)


def test_curves_as_options() -> None:
    base = parse_load("chat?rate=50")
    shaped = parse_load("chat?rate=50&cycle=0.5:100s&burst=2:10:20:1&ramp=3:0.5m:1m&steps=1m30s:0.25&noise=0.1")
    assert isinstance(shaped.arrivals, CurveArrivals)
    assert shaped.input_lengths == base.input_lengths
    assert shaped.arrivals.curve == Product(
        (
            Product(
                (Cycle(0.5, 100), burst(2, 10, 20, 1), ramp(3, 30, 60), steps(((90, 0.25),)), Noise(0.1)),
            ),
        )
    )
    with pytest.raises(WorkloadError, match="a curve through the times"):
        Line(())


def test_six_hours_has_the_rate_that_is_written_down() -> None:
    """REFERENCE, the six hours: 45 - 35 cos(2 pi t / 3 h), AR(1) noise of 4 %, twice as much from 4:20 to 4:50."""
    hour = 3600.0
    load = parse_load("six-hours")
    assert isinstance(load.arrivals, CurveArrivals)
    assert load.seconds == 6 * hour
    times = np.arange(30.0, 6 * hour, 60)
    smooth = 45 - 35 * np.cos(2 * np.pi * times / (3 * hour))
    rise, fall = (times - 4 * hour - 20 * 60) / (8 * 60), (4 * hour + 50 * 60 - times) / (8 * 60)
    smooth *= 1 + np.clip(np.minimum(rise, fall), 0, 1)
    paths = [45 * load.arrivals.curve.path(Streams(seed)).values(times) / smooth for seed in range(40)]
    noise = np.array(paths) - 1
    assert noise.mean() == pytest.approx(0, abs=0.005)
    assert noise.std() == pytest.approx(0.04, rel=0.08)
    assert noise[:, 0].std() == pytest.approx(0.04, rel=0.4)
    assert np.corrcoef(noise[:, 1:].ravel(), noise[:, :-1].ravel())[0, 1] == pytest.approx(0.9, abs=0.02)


def test_six_hours_has_the_requests_that_are_written_down() -> None:
    hour, seed = 3600.0, 2
    load = builtin_columns("six-hours", seed=seed)
    arrivals = parse_load("six-hours").arrivals
    assert isinstance(arrivals, CurveArrivals)
    times, inputs, outputs = (
        np.array(column) for column in (load.arrival_seconds, load.input_tokens, load.output_tokens)
    )
    assert times[-1] < 6 * hour
    fine = 45 * arrivals.curve.path(Streams(seed)).values(np.arange(0.5, 6 * hour, 1))
    expected = fine.reshape(360, 60).sum(axis=1)
    found = np.histogram(times, np.arange(0, 6 * hour + 1, 60))[0]
    scores = (found - expected) / np.sqrt(expected)
    assert scores.mean() == pytest.approx(0, abs=0.2)
    assert scores.std() == pytest.approx(1, abs=0.12)
    assert abs(scores).max() < 5
    long = (times >= 2.5 * hour) & (times < 3.5 * hour)
    for chosen, mean in ((inputs[long], 2000), (inputs[~long], 1000), (outputs, 200)):
        assert chosen.mean() == pytest.approx(mean, rel=0.005)
        assert np.log(chosen).std() == pytest.approx(0.4, rel=0.01)
    assert outputs.min() >= 2


def test_half_the_six_hours_is_a_rate_and_not_a_length() -> None:
    half = builtin_columns("six-hours?rate=22.5&lengths=fixed", seed=2)
    assert half.span_seconds == pytest.approx(6 * 3600, abs=10)
    assert len(half) == pytest.approx(534_000, rel=0.03)
    assert sorted(set(half.input_tokens)) == [1000, 2000]


def test_first_blocks_come_without_the_rest() -> None:
    blocks = CurveArrivals(1.0, Cycle(1, 100)).blocks(Streams(1))
    assert [len(block) > 0 for block in islice(blocks, 3)] == [True] * 3
