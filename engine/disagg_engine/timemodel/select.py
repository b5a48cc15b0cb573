"""A time model by its name: the one place that knows them all."""

from __future__ import annotations

from enum import StrEnum

from disagg_contract.profile import Profile
from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel.calibration import Calibration
from disagg_engine.timemodel.fitted import Analytic, AnalyticCoefficients, Fitted
from disagg_engine.timemodel.roofline import Roofline
from disagg_engine.timemodel.shapes import TimeModel
from disagg_engine.timemodel.spread import SpreadRoofline
from disagg_engine.timemodel.tabulated import Tabulated


class TimeModelKind(StrEnum):
    """What `time_model` builds, and from what."""

    ROOFLINE = "roofline"
    FITTED = "fitted"
    ANALYTIC = "analytic"
    PROFILE = "profile"
    CALIBRATED = "calibrated"


def time_model(
    kind: str,
    instance: Instance,
    *,
    profile: Profile | None = None,
    coefficients: AnalyticCoefficients | None = None,
    calibration: Calibration | None = None,
    backend: str | None = None,
) -> TimeModel:
    """The time model called `kind` of an instance.

    roofline: the model of the reference; spread over data-parallel ranks where the instance is. fitted: DistServe's
    published coefficients for `backend` (by default its own). analytic: the form of its appendix A with `coefficients`.
    profile: the tables of `profile`. calibrated: the roofline with the constants of `calibration`, measured with
    `backend`. Raises SettingError for an unknown kind, what is missing, and what does not suit the instance.
    """
    known = [each.value for each in TimeModelKind]
    if kind not in known:
        raise SettingError(field="time_model", value=str(kind), wanted=f"one of {', '.join(known)}")
    spread = instance.data_parallel > 1 or instance.expert_parallel > 1
    if kind == TimeModelKind.ROOFLINE:
        return SpreadRoofline(instance) if spread else Roofline(instance)
    if spread:
        raise SettingError(field="time_model", value=str(kind), wanted=f"roofline for {instance.layout()}")
    if kind == TimeModelKind.FITTED:
        return Fitted(instance, backend=backend or "distserve")
    if kind == TimeModelKind.ANALYTIC:
        if coefficients is None:
            raise SettingError(field="coefficients", value=None, wanted="C1 to C5 for the analytic time model")
        return Analytic(instance, coefficients=coefficients)
    if kind == TimeModelKind.CALIBRATED:
        if calibration is None:
            raise SettingError(field="profile", value=None, wanted="constants for the time model `calibrated`")
        return calibration.time_model(instance, backend=backend)
    if profile is None:
        raise SettingError(field="profile", value=None, wanted="measured tables for the time model `profile`")
    return Tabulated.from_profile(profile, instance)
