"""Metrics of a worker: ours and vLLM's, in a registry of their own, every series at 0 from the start.

A request counts as started when its head was read, and ends with exactly one outcome; TTFT and TPOT are observed when
a request completes, so their counts equal the completed requests (those with two tokens or more for TPOT). All
latencies are engine seconds from the arrival of the request's head, queueing included.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from disagg_contract import metrics as names
from disagg_contract.metrics import Metric, Outcome
from disagg_engine.batching import Completed, Counts, Request
from disagg_workers.transfer.inbound import Pulled

LATE_SHARE = 0.2
"""An iteration is late when the wall clock lags by more than this share of its own time."""


@dataclass(slots=True, kw_only=True)
class AnswerTimes:
    """Engine times of one answer; ``admitted_seconds`` is when the loop took it in."""

    arrival_seconds: float
    admitted_seconds: float
    first_seconds: float
    last_seconds: float
    tokens: int
    remote: bool

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first; None for one token."""
        if self.tokens < 2:
            return None
        return (self.last_seconds - self.first_seconds) / (self.tokens - 1)


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """Gauges at the time of a scrape."""

    counts: Counts
    waiting_tokens: int
    kv_usage: float
    pinned_blocks: int
    leases_expired: int
    ready: bool
    draining: bool


@dataclass(slots=True)
class _Seen:
    """Totals of the engine that counters have caught up with."""

    values: dict[str, float] = field(default_factory=dict)

    def advance(self, counter: Counter, key: str, total: float) -> None:
        counter.inc(total - self.values.get(key, 0))
        self.values[key] = total


class TokenGaps(Collector):
    """A histogram that is cheap to add to: it is, once a token."""

    def __init__(self, metric: Metric, model: str) -> None:
        self._metric = metric
        self._model = model
        self._bounds = tuple(metric.buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """What a scrape gets."""
        family = HistogramMetricFamily(self._metric.name, self._metric.help, labels=self._metric.labels)
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        family.add_metric([self._model], list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)
        return [family]


class Telemetry:
    """Counters and histograms of one worker that serves ``model``."""

    def __init__(self, *, model: str, kv_capacity_tokens: int, time_scale: float) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._time_scale = time_scale
        self._seen = _Seen()
        self._tokens = 0
        requests = self._counters(names.WORKER_REQUESTS)
        self._outcomes = {outcome: requests.labels(model, outcome.value) for outcome in Outcome}
        self._started = self._counter(names.WORKER_STARTED)
        self._ttft = (self._histogram(names.WORKER_TTFT), self._histogram(names.VLLM_TTFT))
        self._tpot = (self._histogram(names.WORKER_TPOT), self._histogram(names.VLLM_TPOT))
        self._queue = self._histogram(names.WORKER_QUEUE)
        self._prefill = self._histogram(names.WORKER_PREFILL)
        self._e2e = self._histogram(names.VLLM_E2E)
        self._itl = TokenGaps(names.VLLM_ITL, model)
        self.registry.register(self._itl)
        self._transfer = self._histogram(names.WORKER_TRANSFER)
        self._transfer_bytes = self._counter(names.WORKER_TRANSFER_BYTES)
        self._transfer_failures = self._counter(names.WORKER_TRANSFER_FAILURES)
        self._expired = self._counter(names.WORKER_LEASES_EXPIRED)
        self._prompt_tokens = (self._counter(names.WORKER_PROMPT_TOKENS), self._counter(names.VLLM_PROMPT_TOKENS))
        self._generated = (self._counter(names.WORKER_GENERATED_TOKENS), self._counter(names.VLLM_GENERATION_TOKENS))
        self._cached = (self._counter(names.WORKER_CACHED_TOKENS), self._counter(names.VLLM_PREFIX_HITS))
        self._queried = self._counter(names.VLLM_PREFIX_QUERIES)
        self._preemptions = (self._counter(names.WORKER_PREEMPTIONS), self._counter(names.VLLM_PREEMPTIONS))
        self._iterations = self._counter(names.WORKER_ITERATIONS)
        self._busy = self._counter(names.WORKER_BUSY)
        self._lag = self._histogram(names.WORKER_LAG)
        self._late = self._counter(names.WORKER_LATE)
        self._running = (self._gauge(names.WORKER_RUNNING), self._gauge(names.VLLM_RUNNING))
        self._waiting = (self._gauge(names.WORKER_WAITING), self._gauge(names.VLLM_WAITING))
        self._waiting_tokens = self._gauge(names.WORKER_WAITING_TOKENS)
        self._usage = (self._gauge(names.WORKER_KV_USAGE), self._gauge(names.VLLM_KV_USAGE))
        self._pinned = self._gauge(names.WORKER_PINNED_BLOCKS)
        self._ready = self._gauge(names.WORKER_READY)
        self._draining = self._gauge(names.WORKER_DRAINING)
        self._gauge(names.WORKER_KV_TOKENS).set(kv_capacity_tokens)
        success = self._counters(names.VLLM_SUCCESS)
        self._success = {reason: success.labels(model, reason) for reason in ("stop", "length", "abort")}

    # ---- requests ----------------------------------------------------------------------------------------------

    def started(self) -> None:
        """The head of a request was read."""
        self._started.inc()

    def ended(self, outcome: Outcome) -> None:
        """A request ended."""
        self._outcomes[outcome].inc()
        if outcome is Outcome.CANCELLED:
            self._success["abort"].inc()

    def answered(self, answers: Iterable[AnswerTimes], reasons: Iterable[str]) -> None:
        """A request completed with these answers."""
        times = list(answers)
        first = min(times, key=lambda item: item.first_seconds)
        for histogram in self._ttft:
            histogram.observe(first.first_seconds - first.arrival_seconds)
        tpots = [tpot for item in times if (tpot := item.tpot_seconds) is not None]
        if tpots:
            for histogram in self._tpot:
                histogram.observe(sum(tpots) / len(tpots))
        self._queue.observe(first.admitted_seconds - first.arrival_seconds)
        if not first.remote:
            self._prefill.observe(first.first_seconds - first.admitted_seconds)
        self._e2e.observe(max(item.last_seconds for item in times) - first.arrival_seconds)
        for reason in reasons:
            self._success[reason].inc()

    def token(self, gap_seconds: float | None) -> None:
        """A token was generated, ``gap_seconds`` after the one before it (None: the first of its answer)."""
        self._tokens += 1
        if gap_seconds is not None:
            self._itl.observe(gap_seconds)

    def pulled(self, pulled: Pulled) -> None:
        """A pull of KV ended."""
        if pulled.failed:
            self._transfer_failures.inc()
            return
        self._transfer.observe(pulled.seconds)
        self._transfer_bytes.inc(pulled.kv_bytes)

    # ---- the driver's observer ---------------------------------------------------------------------------------

    def submitted(self, request: Request, *, now: float) -> None:
        """Nothing to count: the engine does."""

    def preempted(self, request_id: str, *, now: float) -> None:
        """Nothing to count: the engine does."""

    def completed(self, completed: Completed, *, lag_seconds: float, prompt_tokens: int) -> None:
        """An iteration ended."""
        iteration = completed.iteration
        duration = iteration.end_seconds - iteration.start_seconds
        self._iterations.inc()
        self._busy.inc(max(0.0, iteration.free_seconds - iteration.start_seconds))
        self._lag.observe(lag_seconds / self._time_scale)
        if lag_seconds > LATE_SHARE * duration:
            self._late.inc()
        for counter in self._prompt_tokens:
            counter.inc(prompt_tokens)

    # ---- scrape ------------------------------------------------------------------------------------------------

    def expose(self, snapshot: Snapshot) -> bytes:
        """The text that Prometheus reads."""
        counts = snapshot.counts
        for gauge in self._running:
            gauge.set(counts.running)
        for gauge in self._waiting:
            gauge.set(counts.waiting + counts.pulling)
        for gauge in self._usage:
            gauge.set(snapshot.kv_usage)
        self._waiting_tokens.set(snapshot.waiting_tokens)
        self._pinned.set(snapshot.pinned_blocks)
        self._ready.set(snapshot.ready)
        self._draining.set(snapshot.draining)
        for number, counter in enumerate(self._cached):
            self._seen.advance(counter, f"cached{number}", counts.prefix_hit_tokens)
        for number, counter in enumerate(self._preemptions):
            self._seen.advance(counter, f"preempted{number}", counts.preemptions)
        for number, counter in enumerate(self._generated):
            self._seen.advance(counter, f"generated{number}", self._tokens)
        self._seen.advance(self._queried, "queried", counts.prefix_queried_tokens)
        self._seen.advance(self._expired, "expired", snapshot.leases_expired)
        return generate_latest(self.registry)

    # ---- building ----------------------------------------------------------------------------------------------

    def _counters(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _counter(self, metric: Metric) -> Counter:
        return self._counters(metric).labels(self._model)

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self.registry).labels(self._model)

    def _histogram(self, metric: Metric) -> Histogram:
        family = Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry)
        return family.labels(self._model)
