"""Time models: how long an iteration takes, behind one Protocol."""

from disagg_engine.timemodel.roofline import Roofline
from disagg_engine.timemodel.shapes import BatchShape, Bound, Chunk, IterationCost, TimeModel

__all__ = ["BatchShape", "Bound", "Chunk", "IterationCost", "Roofline", "TimeModel"]
