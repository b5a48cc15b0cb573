"""The planner's own metrics, in a registry of their own, all present at 0 before the first decision."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from disagg_contract import metrics
from disagg_contract.labels import Role
from disagg_contract.metrics import Metric
from disagg_planner.core.decision import Decision
from disagg_planner.core.fleet import Fleet
from disagg_planner.core.settings import SCALED, Settings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
    """Gauges of the last decision and counters of all."""

    def __init__(self, settings: Settings) -> None:
        self.registry = CollectorRegistry()
        self._decisions = Counter(
            metrics.PLANNER_DECISIONS.name,
            metrics.PLANNER_DECISIONS.help,
            metrics.PLANNER_DECISIONS.labels,
            registry=self.registry,
        )
        for result in metrics.PLANNER_RESULTS:
            self._decisions.labels(result)
        self._wanted = self._gauge(metrics.PLANNER_WANTED)
        self._current = self._gauge(metrics.PLANNER_CURRENT)
        for role in Role:
            self._wanted.labels(role.value)
            self._current.labels(role.value)
        self._correction = self._gauge(metrics.PLANNER_CORRECTION)
        for phase in metrics.PLANNER_PHASES:
            self._correction.labels(phase).set(1)
        self._holding = self._gauge(metrics.PLANNER_HOLDING)
        self._load = {
            metric.name: self._gauge(metric)
            for metric in (
                metrics.PLANNER_OBSERVED_RATE,
                metrics.PLANNER_FORECAST_RATE,
                metrics.PLANNER_OBSERVED_ISL,
                metrics.PLANNER_FORECAST_ISL,
                metrics.PLANNER_OBSERVED_OSL,
                metrics.PLANNER_FORECAST_OSL,
                metrics.PLANNER_OBSERVED_TTFT,
                metrics.PLANNER_OBSERVED_TPOT,
            )
        }
        self._gauge(metrics.PLANNER_SLO_TTFT).set(settings.slo_ttft_seconds)
        self._gauge(metrics.PLANNER_SLO_TPOT).set(settings.slo_tpot_seconds)

    def count(self, result: str) -> None:
        """One decision came to `result`, one of `PLANNER_RESULTS`."""
        self._decisions.labels(result).inc()

    def show_fleet(self, fleet: Fleet) -> None:
        for role, group in fleet.items():
            self._current.labels(role.value).set(group.replicas)

    def show(self, decision: Decision) -> None:
        """Export a decision. What is not known in a window keeps out of the way as NaN, never as 0."""
        for role in SCALED:
            if role in decision.roles:
                self._wanted.labels(role.value).set(decision.roles[role].target)
        self._correction.labels("prefill").set(decision.prefill_k)
        self._correction.labels("decode").set(decision.decode_k)
        assessment = decision.assessment
        self._holding.set(1 if assessment.demand is None else 0)
        seen = assessment.observation
        idle = seen.idle
        self._set(metrics.PLANNER_OBSERVED_RATE, None if seen.problem else seen.rate)
        self._set(metrics.PLANNER_OBSERVED_ISL, seen.input_tokens)
        self._set(metrics.PLANNER_OBSERVED_OSL, seen.output_tokens)
        self._set(metrics.PLANNER_OBSERVED_TTFT, seen.ttft.mean_seconds if seen.ttft else None)
        self._set(metrics.PLANNER_OBSERVED_TPOT, seen.tpot.mean_seconds if seen.tpot else None)
        rate = assessment.demand.requests_per_second if assessment.demand is not None else None
        self._set(metrics.PLANNER_FORECAST_RATE, 0.0 if idle else rate)
        inputs, outputs = assessment.input_tokens, assessment.output_tokens
        self._set(metrics.PLANNER_FORECAST_ISL, inputs.value if inputs else None)
        self._set(metrics.PLANNER_FORECAST_OSL, outputs.value if outputs else None)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)

    def _set(self, metric: Metric, value: float | None) -> None:
        self._load[metric.name].set(math.nan if value is None else value)

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)
