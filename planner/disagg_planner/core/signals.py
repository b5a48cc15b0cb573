"""What is read in every window, once for both sources.

A signal is the increase of one counter (or of a histogram's sum, count or buckets) over the window, summed over the
pods of a role. The Prometheus source turns each into a query, the scraping source into a difference of two snapshots;
both give a `Reading`, and `observation.observe` turns that into what decisions are made from. Names come from the
contract, so a signal cannot ask for a series that nobody exports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from disagg_contract import metrics
from disagg_contract.labels import Role
from disagg_contract.metrics import Metric

Buckets = tuple[tuple[float, float], ...]
"""Cumulative (upper bound, increase) pairs, sorted; the last bound is infinite."""


class Part(StrEnum):
    """Which series of a metric family."""

    VALUE = "value"
    SUM = "sum"
    COUNT = "count"
    BUCKET = "bucket"


@dataclass(frozen=True, slots=True)
class Signal:
    """One series to read; `role` restricts it to the workers of a role, None means the routers."""

    metric: Metric
    part: Part = Part.VALUE
    role: Role | None = None

    @property
    def series(self) -> str:
        """Exposed series name."""
        match self.part:
            case Part.VALUE:
                return self.metric.series
            case Part.SUM:
                return self.metric.sum
            case Part.COUNT:
                return self.metric.count
            case Part.BUCKET:
                return self.metric.bucket

    @property
    def key(self) -> str:
        """Short name, unique among the signals."""
        return f"{self.role.value}:{self.series}" if self.role else self.series


STARTED: Final = Signal(metrics.ROUTER_STARTED)
INPUT_SUM: Final = Signal(metrics.ROUTER_INPUT_TOKENS, Part.SUM)
INPUT_COUNT: Final = Signal(metrics.ROUTER_INPUT_TOKENS, Part.COUNT)
OUTPUT_SUM: Final = Signal(metrics.ROUTER_OUTPUT_TOKENS, Part.SUM)
OUTPUT_COUNT: Final = Signal(metrics.ROUTER_OUTPUT_TOKENS, Part.COUNT)
CACHED: Final = Signal(metrics.ROUTER_CACHED_TOKENS)
TTFT_SUM: Final = Signal(metrics.ROUTER_TTFT, Part.SUM)
TTFT_COUNT: Final = Signal(metrics.ROUTER_TTFT, Part.COUNT)
TTFT_BUCKET: Final = Signal(metrics.ROUTER_TTFT, Part.BUCKET)
TPOT_SUM: Final = Signal(metrics.ROUTER_TPOT, Part.SUM)
TPOT_COUNT: Final = Signal(metrics.ROUTER_TPOT, Part.COUNT)
TPOT_BUCKET: Final = Signal(metrics.ROUTER_TPOT, Part.BUCKET)
PREFILL_BUSY: Final = Signal(metrics.WORKER_BUSY, role=Role.PREFILL)
PREFILL_ITERATIONS: Final = Signal(metrics.WORKER_ITERATIONS, role=Role.PREFILL)
PREFILL_TOKENS: Final = Signal(metrics.WORKER_PROMPT_TOKENS, role=Role.PREFILL)
PREFILL_SUM: Final = Signal(metrics.WORKER_PREFILL, Part.SUM, Role.PREFILL)
PREFILL_COUNT: Final = Signal(metrics.WORKER_PREFILL, Part.COUNT, Role.PREFILL)
DECODE_BUSY: Final = Signal(metrics.WORKER_BUSY, role=Role.DECODE)
DECODE_ITERATIONS: Final = Signal(metrics.WORKER_ITERATIONS, role=Role.DECODE)
DECODE_TOKENS: Final = Signal(metrics.WORKER_GENERATED_TOKENS, role=Role.DECODE)
DECODE_PROMPT_TOKENS: Final = Signal(metrics.WORKER_PROMPT_TOKENS, role=Role.DECODE)
TRANSFER_SUM: Final = Signal(metrics.WORKER_TRANSFER, Part.SUM, Role.DECODE)
TRANSFER_COUNT: Final = Signal(metrics.WORKER_TRANSFER, Part.COUNT, Role.DECODE)

SIGNALS: Final[tuple[Signal, ...]] = tuple(value for value in list(globals().values()) if isinstance(value, Signal))
"""Every signal, in the order of the file."""
SCALARS: Final = tuple(signal for signal in SIGNALS if signal.part is not Part.BUCKET)
HISTOGRAMS: Final = tuple(signal for signal in SIGNALS if signal.part is Part.BUCKET)


class ProblemKind(StrEnum):
    """Why there is nothing to decide from. The values are reasons of the condition MetricsAvailable."""

    MISSING = "MetricsMissing"
    STALE = "MetricsStale"
    NOT_FINITE = "MetricsNotFinite"
    UNREACHABLE = "MetricsUnreachable"
    NO_SOURCE = "MetricsUrlMissing"


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind for programs and a sentence for people."""

    kind: ProblemKind
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One window of raw numbers.

    `window_seconds` and `age_seconds` (of the newest router sample; None where it cannot be old) are wall seconds.
    `increases` is keyed by `Signal.key`; an absent key is a series that nobody exports, NaN is what the source said.
    `silent` names the targets that did not answer.
    """

    at_seconds: float
    window_seconds: float
    increases: Mapping[str, float] = field(default_factory=dict)
    buckets: Mapping[str, Buckets] = field(default_factory=dict)
    age_seconds: float | None = None
    silent: tuple[str, ...] = ()
    problem: Problem | None = None
