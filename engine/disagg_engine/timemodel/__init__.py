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

from importlib import import_module
from typing import TYPE_CHECKING, Any

from disagg_engine.timemodel.lines import DecodeLine, line_at, steps_within, window_seconds
from disagg_engine.timemodel.roofline import Roofline
from disagg_engine.timemodel.shapes import BatchShape, Bound, Chunk, CountedTimeModel, IterationCost, TimeModel

if TYPE_CHECKING:
    from disagg_engine.timemodel.calibrated import Calibrated, CalibratedConstants
    from disagg_engine.timemodel.calibration import Calibration, read_calibration
    from disagg_engine.timemodel.fitted import Analytic, AnalyticCoefficients, Fitted, FittedCoefficients
    from disagg_engine.timemodel.select import TimeModelKind, time_model
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

_LATER = {
    "Analytic": "fitted",
    "AnalyticCoefficients": "fitted",
    "Calibrated": "calibrated",
    "CalibratedConstants": "calibrated",
    "Calibration": "calibration",
    "DecodeRow": "tabulated",
    "Fitted": "fitted",
    "FittedCoefficients": "fitted",
    "PrefillRow": "tabulated",
    "SpreadRoofline": "spread",
    "Tabulated": "tabulated",
    "TimeModelKind": "select",
    "read_calibration": "calibration",
    "time_model": "select",
}
"""What is imported when somebody asks for it, and from where: most programs need one time model."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    return found
