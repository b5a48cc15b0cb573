"""The text that programs expose at /metrics, reduced to what the signals ask for.

Only the wanted series of one model are kept, histogram buckets by upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from disagg_contract.metrics import MODEL
from disagg_planner.core.signals import Part, Signal


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals of one target: by signal key, and by signal key and upper bound."""

    values: Mapping[str, float] = field(default_factory=dict)
    buckets: Mapping[str, Mapping[float, float]] = field(default_factory=dict)


def read_counters(text: str, wanted: Iterable[Signal], *, model: str) -> Counters:
    """Totals of the wanted signals of a served model. Raises ValueError for text that is no exposition."""
    by_name = {signal.series: signal for signal in wanted}
    values: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                signal = by_name.get(sample.name)
                if signal is None or sample.labels.get(MODEL) != model or not math.isfinite(sample.value):
                    continue
                if signal.part is Part.BUCKET:
                    bounds = buckets.setdefault(signal.key, {})
                    bound = float(sample.labels["le"])
                    bounds[bound] = bounds.get(bound, 0.0) + sample.value
                else:
                    values[signal.key] = values.get(signal.key, 0.0) + sample.value
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"not the exposition format: {error}") from error
    return Counters(values, buckets)
