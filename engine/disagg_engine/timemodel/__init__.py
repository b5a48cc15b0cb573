"""Time models: how long an iteration takes, behind one Protocol.

shapes      what is asked and answered: `TimeModel`
lines       decode steps as straight pieces: windows of steps and their inverse in closed form
roofline    arithmetic against memory traffic, the model of the reference; `spread` over data-parallel ranks
fitted      DistServe's published coefficients, and the form of its appendix A
tabulated   measured tables
kernels     measured kernels put together
calibrated  the roofline with constants fitted to a real engine; `calibration` is the document that holds them
select      all of them by name: `time_model`
"""

from disagg_engine.timemodel.calibrated import Calibrated, CalibratedConstants
from disagg_engine.timemodel.calibration import Calibration, read_calibration
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
    "Calibrated",
    "CalibratedConstants",
    "Calibration",
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
    "read_calibration",
    "steps_within",
    "time_model",
    "window_seconds",
]
