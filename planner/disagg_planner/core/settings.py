"""What a decision depends on besides the load: promises, bounds, and how patient to be.

Times are wall seconds, as on the command line, unless the name says engine; `time_scale` joins the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from disagg_contract.config import PlannerConfig
from disagg_contract.labels import Role
from disagg_planner.errors import SettingsError

SCALED = (Role.PREFILL, Role.DECODE)
"""The roles that the planner knows, in the order of every report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings:
    """Bounds of one group; `scaled` is False where somebody else sets its replicas."""

    scaled: bool = True
    minimum: int = 1
    maximum: int = 1
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything constant that `decision.decide` reads.

    `idle_intervals` without an arrival are taken as the end of the load. `length_intervals` is the age at which an
    observed length no longer counts. `pending_seconds` bounds how long an increase that does not become ready holds
    back a decrease.
    """

    slo_ttft_seconds: float = 0.5
    slo_tpot_seconds: float = 0.05
    attainment: float = 0.9
    roles: Mapping[Role, RoleSettings] = field(default_factory=lambda: {role: RoleSettings() for role in SCALED})
    gpu_budget: int = 0
    interval_seconds: float = 30.0
    stale_seconds: float = 120.0
    stabilization_seconds: float = 180.0
    startup_seconds: float = 0.0
    time_scale: float = 1.0
    idle_intervals: int = 3
    length_intervals: int = 10
    pending_seconds: float = 600.0

    @property
    def steps(self) -> int:
        """Intervals to look ahead: the next one and those that pass while an instance starts."""
        return 1 + min(round(self.startup_seconds / self.interval_seconds), 30)


def from_config(config: PlannerConfig) -> Settings:
    """Settings of the command line. Raises SettingsError when the bounds contradict each other."""
    roles = {
        Role.PREFILL: RoleSettings(
            scaled=config.prefill_scaling,
            minimum=config.prefill_min,
            maximum=config.prefill_max,
            gpus=config.prefill_tensor * config.prefill_pipeline,
        ),
        Role.DECODE: RoleSettings(
            scaled=config.decode_scaling,
            minimum=config.decode_min,
            maximum=config.decode_max,
            gpus=config.decode_tensor * config.decode_pipeline,
        ),
    }
    for role, bounds in roles.items():
        if bounds.minimum > bounds.maximum:
            raise SettingsError(
                f"--{role.value}-min={bounds.minimum} is above --{role.value}-max={bounds.maximum}; raise the maximum"
            )
    least = sum(bounds.minimum * bounds.gpus for bounds in roles.values())
    if 0 < config.gpu_budget < least:
        raise SettingsError(
            f"--gpu-budget={config.gpu_budget}: the minimum of both roles takes {least} GPUs; use 0 or at least {least}"
        )
    return Settings(
        slo_ttft_seconds=config.slo_ttft_seconds,
        slo_tpot_seconds=config.slo_tpot_seconds,
        attainment=config.attainment,
        roles=roles,
        gpu_budget=config.gpu_budget,
        interval_seconds=config.interval_seconds,
        stale_seconds=config.stale_seconds,
        stabilization_seconds=config.scale_down_stabilization_seconds,
        startup_seconds=config.startup_seconds,
        time_scale=config.time_scale,
        pending_seconds=max(10 * config.interval_seconds, 4 * config.startup_seconds),
    )
