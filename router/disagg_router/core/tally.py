"""What the router counts, as plain numbers that cost next to nothing on the hot path.

A :class:`ModelTally` exists from the moment its model is known, with every label value at 0. Latencies are in engine
seconds. ``started == in_flight + sum(outcomes)`` at any time.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from disagg_contract import metrics
from disagg_contract.metrics import Leg, Outcome, SloMet

UNKNOWN_MODEL: Final = "unknown"
"""Label of requests that name no model served here; their names are the clients' and would be unbounded."""


class Histogram:
    """Counts by upper bound; the last one has none."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds: Final = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """Observations at or below each bound, and all of them at the end."""
        return list(accumulate(self._counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a request is measured against, seconds; 0: not promised."""

    ttft_seconds: float = 0.0
    tpot_seconds: float = 0.0

    def met(self, ttft_seconds: float, tpot_seconds: float | None) -> SloMet:
        """Which of the two were met. An answer of one token has no TPOT and counts as meeting it."""
        ttft = not self.ttft_seconds or ttft_seconds <= self.ttft_seconds
        tpot = not self.tpot_seconds or tpot_seconds is None or tpot_seconds <= self.tpot_seconds
        if ttft:
            return SloMet.BOTH if tpot else SloMet.TTFT
        return SloMet.TPOT if tpot else SloMet.NEITHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request that is over. ``None`` where nobody knows: a request without a first token has no TTFT."""

    outcome: Outcome
    duration_seconds: float
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
    leg_errors: Iterable[Leg] = ()
    retries: Iterable[Leg] = ()


class ModelTally:
    """Counts of one model."""

    def __init__(self, slo: Slo) -> None:
        self._slo = slo
        self.started = 0
        self.in_flight = 0
        self.queued = 0
        self.cached_tokens = 0
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.slo = dict.fromkeys(SloMet, 0)
        self.leg_errors = dict.fromkeys(Leg, 0)
        self.retries = dict.fromkeys(Leg, 0)
        self.ttft = Histogram(metrics.TTFT_BUCKETS)
        self.tpot = Histogram(metrics.TPOT_BUCKETS)
        self.duration = Histogram(metrics.DURATION_BUCKETS)
        self.input_tokens = Histogram(metrics.TOKEN_BUCKETS)
        self.output_tokens = Histogram(metrics.TOKEN_BUCKETS)

    def start(self) -> None:
        self.started += 1
        self.in_flight += 1

    def end(self, ended: Ended) -> None:
        self.in_flight -= 1
        self.outcomes[ended.outcome] += 1
        for leg in ended.leg_errors:
            self.leg_errors[leg] += 1
        for leg in ended.retries:
            self.retries[leg] += 1
        if ended.outcome is not Outcome.COMPLETED:
            return
        self.duration.observe(ended.duration_seconds)
        self.cached_tokens += ended.cached_tokens
        if ended.input_tokens is not None:
            self.input_tokens.observe(ended.input_tokens)
        if ended.output_tokens is not None:
            self.output_tokens.observe(ended.output_tokens)
        if ended.tpot_seconds is not None:
            self.tpot.observe(ended.tpot_seconds)
        if ended.ttft_seconds is not None:
            self.ttft.observe(ended.ttft_seconds)
            if self._slo.ttft_seconds or self._slo.tpot_seconds:
                self.slo[self._slo.met(ended.ttft_seconds, ended.tpot_seconds)] += 1


class Tally:
    """Counts of all models, and those that have no model."""

    def __init__(self, *, slo: Slo, model: str = "") -> None:
        self._slo = slo
        self.models: dict[str, ModelTally] = {}
        self.choice = Histogram(metrics.LAG_BUCKETS)
        self.refused = dict.fromkeys(metrics.REFUSAL_REASONS, 0)
        self.model(model or UNKNOWN_MODEL)
        self.model(UNKNOWN_MODEL)

    def model(self, name: str) -> ModelTally:
        """Counts of one model; they exist, at 0, from the first call on."""
        tally = self.models.get(name)
        if tally is None:
            tally = self.models[name] = ModelTally(self._slo)
        return tally
