"""The tally as a Prometheus page, built from the contract's names in a registry of its own.

The series are made at scrape time from plain numbers, so counting costs the hot path nothing and what is gone from the
tally is gone from the page.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from disagg_contract import metrics
from disagg_contract.labels import Role
from disagg_contract.metrics import Kind, Metric
from disagg_router.core.fleet import Fleet
from disagg_router.core.tally import Histogram, Tally

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"

_Value = float | Histogram
_Series = Mapping[tuple[str, ...], _Value]


class Exposition(Collector):
    """Reads tally and fleet when it is scraped."""

    def __init__(self, tally: Tally, fleet: Fleet) -> None:
        self._tally = tally
        self._fleet = fleet
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def page(self) -> bytes:
        """Text of ``/metrics``."""
        return generate_latest(self._registry)

    def describe(self) -> Sequence[Family]:
        """Nothing is known before the first scrape."""
        return ()

    def collect(self) -> Iterator[Family]:
        models = self._tally.models
        for name in self._fleet.known_models:
            self._tally.model(name)

        def each(attribute: str) -> _Series:
            return {(model,): getattr(tally, attribute) for model, tally in models.items()}

        def split(attribute: str) -> _Series:
            return {
                (model, label): value
                for model, tally in models.items()
                for label, value in getattr(tally, attribute).items()
            }

        yield family(metrics.ROUTER_REQUESTS, split("outcomes"))
        yield family(metrics.ROUTER_STARTED, each("started"))
        yield family(metrics.ROUTER_IN_FLIGHT, each("in_flight"))
        yield family(metrics.ROUTER_QUEUED, each("queued"))
        yield family(metrics.ROUTER_TTFT, each("ttft"))
        yield family(metrics.ROUTER_TPOT, each("tpot"))
        yield family(metrics.ROUTER_DURATION, each("duration"))
        yield family(metrics.ROUTER_INPUT_TOKENS, each("input_tokens"))
        yield family(metrics.ROUTER_OUTPUT_TOKENS, each("output_tokens"))
        yield family(metrics.ROUTER_CACHED_TOKENS, each("cached_tokens"))
        yield family(metrics.ROUTER_SLO, split("slo"))
        yield family(metrics.ROUTER_LEG_ERRORS, split("leg_errors"))
        yield family(metrics.ROUTER_RETRIES, split("retries"))
        yield family(metrics.ROUTER_WORKERS, {(role.value,): self._fleet.count(role) for role in Role})
        yield family(metrics.ROUTER_REFUSED, {(reason,): n for reason, n in self._tally.refused.items()})
        yield family(metrics.ROUTER_CHOICE, {(): self._tally.choice})


def family(metric: Metric, series: _Series) -> Family:
    """A metric family from values by label values."""
    match metric.kind:
        case Kind.COUNTER:
            counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in series.items():
                counter.add_metric(labels, _number(value))
            return counter
        case Kind.GAUGE:
            gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in series.items():
                gauge.add_metric(labels, _number(value))
            return gauge
        case Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in series.items():
                assert isinstance(value, Histogram)
                bounds = [*map(str, value.bounds), "+Inf"]
                histogram.add_metric(labels, list(zip(bounds, value.cumulative(), strict=True)), value.sum)
            return histogram


def _number(value: _Value) -> float:
    assert not isinstance(value, Histogram)
    return value
