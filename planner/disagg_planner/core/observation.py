"""From a window of raw numbers to what decisions are made from.

Here the rules live that keep bad numbers out: a series that is absent, NaN, infinite or old is *missing*, and missing
is never zero; a count that is present and zero is zero; an average over nothing is None. Everything behind this module
is finite.

Seconds in an observation are the engine's. Rates are measured against the wall, so the window is multiplied by the time
scale; latencies are exported in engine seconds already. Token and request counts have no clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from disagg_planner.core import histogram, signals
from disagg_planner.core.histogram import Quantile
from disagg_planner.core.signals import Buckets, Problem, ProblemKind, Reading, Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One latency as clients of the router saw it, engine seconds; `share` of requests met the SLO."""

    mean_seconds: float
    share: float | None
    quantile: Quantile | None

    def misses(self, *, slo_seconds: float, attainment: float) -> bool:
        """Whether the promise was broken: mean above the SLO, or fewer requests within it than promised."""
        return self.mean_seconds > slo_seconds or (self.share is not None and self.share < attainment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the instances of a role computed: iterations, engine seconds in them, tokens of prompts and of answers."""

    iterations: float
    busy_seconds: float
    prompt_tokens: float = 0.0
    answer_tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One window. `at_seconds` is the planner's clock, `window_seconds` engine time; None is unknown.

    `started` requests arrived. Lengths are means of completed requests, in tokens; `hit_rate` is the share of prompt
    tokens that a prefix cache supplied. `prefill_seconds` is a worker's mean time for a prompt without queueing.
    """

    at_seconds: float
    window_seconds: float
    started: float = 0.0
    input_tokens: float | None = None
    output_tokens: float | None = None
    hit_rate: float = 0.0
    ttft: Latency | None = None
    tpot: Latency | None = None
    prefill_work: Work | None = None
    decode_work: Work | None = None
    prefill_seconds: float | None = None
    transfer_seconds: float | None = None
    silent: tuple[str, ...] = ()
    problem: Problem | None = None

    @property
    def rate(self) -> float:
        """Arrivals per engine second."""
        return self.started / self.window_seconds

    @property
    def idle(self) -> bool:
        """True when the count of arrivals is there and zero."""
        return self.problem is None and self.started == 0


def observe(
    reading: Reading,
    *,
    time_scale: float,
    slo_ttft_seconds: float,
    slo_tpot_seconds: float,
    attainment: float,
    stale_seconds: float,
) -> Observation:
    """Check a reading and turn it into an observation; `stale_seconds` is wall time."""
    window_seconds = reading.window_seconds * time_scale
    problem = reading.problem or _problem(reading, stale_seconds)
    if problem is not None:
        return Observation(
            at_seconds=reading.at_seconds, window_seconds=window_seconds, silent=reading.silent, problem=problem
        )

    def value(signal: Signal) -> float | None:
        return finite(reading.increases.get(signal.key))

    def mean(total: Signal, count: Signal) -> float | None:
        return ratio(value(total), value(count))

    def latency(total: Signal, count: Signal, bucket: Signal, slo_seconds: float) -> Latency | None:
        average = mean(total, count)
        if average is None:
            return None
        counts: Buckets = reading.buckets.get(bucket.key, ())
        return Latency(
            mean_seconds=average,
            share=histogram.share_within(counts, slo_seconds),
            quantile=histogram.quantile(counts, attainment),
        )

    return Observation(
        at_seconds=reading.at_seconds,
        window_seconds=window_seconds,
        started=value(signals.STARTED) or 0.0,
        input_tokens=mean(signals.INPUT_SUM, signals.INPUT_COUNT),
        output_tokens=mean(signals.OUTPUT_SUM, signals.OUTPUT_COUNT),
        hit_rate=min(max(ratio(value(signals.CACHED), value(signals.INPUT_SUM)) or 0.0, 0.0), 0.99),
        ttft=latency(signals.TTFT_SUM, signals.TTFT_COUNT, signals.TTFT_BUCKET, slo_ttft_seconds),
        tpot=latency(signals.TPOT_SUM, signals.TPOT_COUNT, signals.TPOT_BUCKET, slo_tpot_seconds),
        prefill_work=_work(
            value(signals.PREFILL_ITERATIONS), value(signals.PREFILL_BUSY), value(signals.PREFILL_TOKENS), 0.0
        ),
        decode_work=_work(
            value(signals.DECODE_ITERATIONS),
            value(signals.DECODE_BUSY),
            value(signals.DECODE_PROMPT_TOKENS) or 0.0,
            value(signals.DECODE_TOKENS),
        ),
        prefill_seconds=mean(signals.PREFILL_SUM, signals.PREFILL_COUNT),
        transfer_seconds=mean(signals.TRANSFER_SUM, signals.TRANSFER_COUNT),
        silent=reading.silent,
    )


def finite(value: float | None) -> float | None:
    """`value` when it is a number, else None."""
    return value if value is not None and math.isfinite(value) else None


def ratio(total: float | None, count: float | None) -> float | None:
    """total / count, or None when either is unknown or nothing was counted."""
    if total is None or count is None or count <= 0:
        return None
    return finite(total / count)


def _problem(reading: Reading, stale_seconds: float) -> Problem | None:
    name = signals.STARTED.series
    started = reading.increases.get(signals.STARTED.key)
    if started is None:
        return Problem(ProblemKind.MISSING, f"no samples of {name} in the last {reading.window_seconds:g} s")
    if not math.isfinite(started) or started < 0:
        return Problem(ProblemKind.NOT_FINITE, f"{name} increased by {started}, which is no count")
    if reading.age_seconds is None or reading.age_seconds <= stale_seconds:
        return None
    if math.isfinite(reading.age_seconds):
        age = f"the newest sample of {name} is {reading.age_seconds:.0f} s old, more than {stale_seconds:g} s"
    else:
        age = f"{name} has no current sample: no router answers scrapes"
    return Problem(ProblemKind.STALE, age)


def _work(
    iterations: float | None, busy: float | None, prompt_tokens: float | None, answer_tokens: float | None
) -> Work | None:
    if iterations is None or busy is None or prompt_tokens is None or answer_tokens is None:
        return None
    return Work(iterations=iterations, busy_seconds=busy, prompt_tokens=prompt_tokens, answer_tokens=answer_tokens)
