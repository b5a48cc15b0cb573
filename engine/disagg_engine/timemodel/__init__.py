"""Time models: how long an iteration takes, behind one Protocol."""

from disagg_engine.timemodel.lines import DecodeLine, line_at, steps_within, window_seconds
from disagg_engine.timemodel.roofline import Roofline
from disagg_engine.timemodel.shapes import BatchShape, Bound, Chunk, CountedTimeModel, IterationCost, TimeModel

__all__ = [
    "BatchShape",
    "Bound",
    "Chunk",
    "CountedTimeModel",
    "DecodeLine",
    "IterationCost",
    "Roofline",
    "TimeModel",
    "line_at",
    "steps_within",
    "window_seconds",
]
