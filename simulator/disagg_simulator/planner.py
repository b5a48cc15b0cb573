"""A planner for a simulated deployment: what the planner's program is started with."""

from __future__ import annotations

from dataclasses import dataclass, field

from disagg_planner.core.forecast import LastValue, Predictor
from disagg_planner.core.interpolation import ProfileTable
from disagg_planner.core.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSetup:
    """settings, table and predictor are the planner's own (`disagg_planner.core`); seconds of both clocks are equal.

    paid_while_starting: whether an instance counts as existing from when it was asked for, or from when it serves.
    """

    settings: Settings
    table: ProfileTable
    predictor: Predictor = field(default_factory=LastValue)
    paid_while_starting: bool = True
