"""The planner's PromQL, one query a signal.

Selectors are made of the label names that scraping adds (`contract.metrics.SCRAPE_*`): the namespace, the deployment
and, for workers, the role, so that two deployments in one namespace never mix; and of the model, so that requests for
models that nobody serves here are no load. All queries are instant.

==================  ====================================================================================
what                query (with S the selector, W the window)
==================  ====================================================================================
a counter           ``sum(increase(NAME_total{S}[W]))``; the same for the sum and count of histograms
a histogram         ``sum by (le) (increase(NAME_bucket{S}[W]))``
age of the sample   ``min(time() - timestamp(disagg_router_requests_started_total{S}))``
silent targets      ``up{S} == 0``, without model and role
==================  ====================================================================================

`increase` is over the pods' own counters and knows resets; a pod that was restarted loses what it counted between its
last scrape and its death. For a window to hold two samples, the scrape interval must be at most half of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from disagg_contract import metrics
from disagg_planner.core import signals
from disagg_planner.core.signals import Part, Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which deployment is asked about, and the served model name that its series carry."""

    namespace: str
    deployment: str
    model: str

    def selector(self, signal: Signal | None = None) -> str:
        """Label matchers of the series of a signal, or of all pods of the deployment."""
        labels = {metrics.SCRAPE_NAMESPACE: self.namespace, metrics.SCRAPE_DEPLOYMENT: self.deployment}
        if signal is not None:
            labels[metrics.MODEL] = self.model
            if signal.role is not None:
                labels[metrics.SCRAPE_ROLE] = signal.role.value
        return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def increase(target: Target, signal: Signal, window_seconds: float) -> str:
    """Increase of a signal over a window; by `le` for buckets."""
    by = " by (le)" if signal.part is Part.BUCKET else ""
    return f"sum{by}(increase({signal.series}{target.selector(signal)}[{duration(window_seconds)}]))"


def age(target: Target) -> str:
    """Seconds since the newest sample of the count of arrivals; no result when the routers are gone."""
    return f"min(time() - timestamp({signals.STARTED.series}{target.selector(signals.STARTED)}))"


def silent(target: Target) -> str:
    """Targets of the deployment that do not answer scrapes."""
    return f"up{target.selector()} == 0"


def rate_history(target: Target, window_seconds: float, time_scale: float) -> str:
    """Arrivals per engine second, for a range query."""
    return f"{increase(target, signals.STARTED, window_seconds)} / {window_seconds * time_scale!r}"


def mean_history(target: Target, total: Signal, count: Signal, window_seconds: float) -> str:
    """Mean of a histogram, for a range query; NaN where nothing was observed."""
    return f"{increase(target, total, window_seconds)} / {increase(target, count, window_seconds)}"


def duration(seconds: float) -> str:
    """PromQL duration; milliseconds, because windows need not be whole seconds."""
    return f"{max(round(seconds * 1000), 1)}ms"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
