"""What a router and its workers count, as the planner would read it: increases over one interval."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from disagg_contract.labels import Role
from disagg_engine.batching import Completed
from disagg_planner.core import signals
from disagg_planner.core.signals import Buckets, Reading, Signal


class Histogram:
    """Sum, count and buckets of one latency."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.reset()

    def reset(self) -> None:
        """Begin an interval."""
        self.total = 0.0
        self.count = 0
        self._buckets = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self.total += value
        self.count += 1
        self._buckets[bisect_left(self.bounds, value)] += 1

    def buckets(self) -> Buckets:
        """Cumulative, as they are exported."""
        below, pairs = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self._buckets, strict=True):
            below += count
            pairs.append((bound, float(below)))
        return tuple(pairs)


class Meter:
    """Counters of one interval; `read` gives them out and begins the next."""

    def __init__(self) -> None:
        self._ttft = Histogram(signals.TTFT_SUM.metric.buckets)
        self._tpot = Histogram(signals.TPOT_SUM.metric.buckets)
        self._begin(0.0)

    def _begin(self, now: float) -> None:
        self._since = now
        self._ttft.reset()
        self._tpot.reset()
        self._counts: dict[str, float] = {}
        for signal in signals.SCALARS:
            self._counts[signal.key] = 0.0

    def _add(self, signal: Signal, value: float) -> None:
        self._counts[signal.key] += value

    def arrived(self) -> None:
        """A request arrived."""
        self._add(signals.STARTED, 1)

    def first(self, ttft_seconds: float, *, prefill_seconds: float) -> None:
        """A client got its first token; the prompt took so long to compute, without queueing."""
        self._ttft.observe(ttft_seconds)
        self._add(signals.PREFILL_SUM, prefill_seconds)
        self._add(signals.PREFILL_COUNT, 1)

    def ended(self, input_tokens: int, output_tokens: int, answer_seconds: float) -> None:
        """A request was completed, so long after its first token."""
        self._add(signals.INPUT_SUM, input_tokens)
        self._add(signals.INPUT_COUNT, 1)
        self._add(signals.OUTPUT_SUM, output_tokens)
        self._add(signals.OUTPUT_COUNT, 1)
        if output_tokens > 1:
            self._tpot.observe(answer_seconds / (output_tokens - 1))

    def transferred(self, seconds: float) -> None:
        """KV crossed the link."""
        self._add(signals.TRANSFER_SUM, seconds)
        self._add(signals.TRANSFER_COUNT, 1)

    def iterated(self, role: Role, done: Completed) -> None:
        """An instance finished an iteration, or a window of them."""
        iteration = done.iteration
        busy = iteration.free_seconds - iteration.start_seconds
        if role is Role.PREFILL:
            self._add(signals.PREFILL_BUSY, busy)
            self._add(signals.PREFILL_ITERATIONS, iteration.steps)
            self._add(signals.PREFILL_TOKENS, iteration.prefill_tokens)
        else:
            self._add(signals.DECODE_BUSY, busy)
            self._add(signals.DECODE_ITERATIONS, iteration.steps)
            self._add(signals.DECODE_PROMPT_TOKENS, iteration.prefill_tokens)
            self._add(signals.DECODE_TOKENS, done.tokens)

    def read(self, now: float) -> Reading:
        """The interval that ends now."""
        for histogram, total, count in (
            (self._ttft, signals.TTFT_SUM, signals.TTFT_COUNT),
            (self._tpot, signals.TPOT_SUM, signals.TPOT_COUNT),
        ):
            self._counts[total.key] = histogram.total
            self._counts[count.key] = float(histogram.count)
        reading = Reading(
            at_seconds=now,
            window_seconds=now - self._since,
            increases=dict(self._counts),
            buckets={
                signals.TTFT_BUCKET.key: self._ttft.buckets(),
                signals.TPOT_BUCKET.key: self._tpot.buckets(),
            },
        )
        self._begin(now)
        return reading
