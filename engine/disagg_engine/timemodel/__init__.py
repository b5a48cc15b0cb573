"""Time models: how long an iteration takes, behind one Protocol.

shapes      what is asked and answered: `TimeModel`
lines       decode steps as straight pieces: windows of steps and their inverse in closed form
roofline    arithmetic against memory traffic, the model of the reference; `spread` over data-parallel ranks
fitted      DistServe's published coefficients, and the form of its appendix A
tabulated   measured tables
select      all of them by name: `time_model`
"""

from disagg_engine.timemodel.fitted import Analytic, AnalyticCoefficients, Fitted, FittedCoefficients
from disagg_engine.timemodel.lines import DecodeLine, line_at, steps_within, window_seconds
from disagg_engine.timemodel.roofline import Roofline
from disagg_engine.timemodel.select import TimeModelKind, time_model
from disagg_engine.timemodel.shapes import BatchShape, Bound, Chunk, CountedTimeModel, IterationCost, TimeModel
from disagg_engine.timemodel.spread import SpreadRoofline
from disagg_engine.timemodel.tabulated import DecodeRow, PrefillRow, Tabulated

__all__ = [
    "Analytic",
    "AnalyticCoefficients",
    "BatchShape",
    "Bound",
    "Chunk",
    "CountedTimeModel",
    "DecodeLine",
    "DecodeRow",
    "Fitted",
    "FittedCoefficients",
    "IterationCost",
    "PrefillRow",
    "Roofline",
    "SpreadRoofline",
    "Tabulated",
    "TimeModel",
    "TimeModelKind",
    "line_at",
    "steps_within",
    "time_model",
    "window_seconds",
]
