"""From what the load asks for to what is written.

In flows an assessment (the load to come, the corrections) and the fleet; out flows a decision with one target a role,
a reason for programs and a sentence for people. The order of the rules:

1. *Hold.* Without usable metrics nobody's replicas change, except to get back inside min and max.
2. *Need.* The formulas of `capacity`, within min and max.
3. *Up at once*, to the need.
4. *Down late*: not below the highest need of the stabilisation window; not while the group's own increase is in flight
   (unless the load is gone altogether); and when the load is gone, not before enough idle intervals have passed.
5. *Budget*: both legs or neither (`budget`).

The reason of an increase tells load and slow instances apart. When instances as fast as the profile would be enough,
the cause is that they are slower: with a missed SLO the reason is that SLO. While the SLO is met, slowness alone is
watched only, and load that grows on instances which are known to be slow (a fleet that was enough at some correction is
*sized for* it) is load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from disagg_contract.labels import Role
from disagg_planner.core import budget
from disagg_planner.core.capacity import Demand, Sizing, size_decode, size_prefill
from disagg_planner.core.fleet import Fleet
from disagg_planner.core.interpolation import ProfileTable
from disagg_planner.core.settings import SCALED, RoleSettings, Settings
from disagg_planner.core.signals import Problem, ProblemKind
from disagg_planner.core.state import Assessment, State


class Reason(StrEnum):
    """Why a group gets its target. Those of changes are reasons of Events."""

    LOAD_FORECAST = "LoadForecast"
    TTFT_ABOVE_SLO = "TTFTAboveSLO"
    TPOT_ABOVE_SLO = "TPOTAboveSLO"
    SLOWER_THAN_PROFILE = "SlowerThanProfile"
    SCALE_DOWN = "ScaleDown"
    OUTSIDE_BOUNDS = "OutsideBounds"
    STEADY = "Steady"
    NOT_SCALED = "NotScaled"
    HOLD_METRICS_MISSING = "HoldMetricsMissing"
    HOLD_METRICS_STALE = "HoldMetricsStale"
    HOLD_METRICS_NOT_FINITE = "HoldMetricsNotFinite"
    HOLD_METRICS_UNREACHABLE = "HoldMetricsUnreachable"
    HOLD_METRICS_URL_MISSING = "HoldMetricsUrlMissing"
    HOLD_IDLE = "HoldIdle"
    HOLD_STABILIZING = "HoldStabilizing"
    HOLD_SCALE_UP_IN_FLIGHT = "HoldScaleUpInFlight"
    HOLD_GPU_BUDGET = "HoldGpuBudget"


_HOLDS: Mapping[ProblemKind, Reason] = {
    ProblemKind.MISSING: Reason.HOLD_METRICS_MISSING,
    ProblemKind.STALE: Reason.HOLD_METRICS_STALE,
    ProblemKind.NOT_FINITE: Reason.HOLD_METRICS_NOT_FINITE,
    ProblemKind.UNREACHABLE: Reason.HOLD_METRICS_UNREACHABLE,
    ProblemKind.NO_SOURCE: Reason.HOLD_METRICS_URL_MISSING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleDecision:
    """One group: what it has, what the load needs (None on hold), what it gets, and why."""

    role: Role
    current: int
    needed: int | None
    target: int
    reason: Reason
    sizing: Sizing | None = None

    @property
    def changes(self) -> bool:
        return self.target != self.current


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One target a role, and what they came from."""

    at_seconds: float
    roles: Mapping[Role, RoleDecision]
    assessment: Assessment
    prefill_k: float = 1.0
    decode_k: float = 1.0
    expired: tuple[Role, ...] = ()

    @property
    def targets(self) -> dict[Role, int]:
        return {role: one.target for role, one in self.roles.items()}

    @property
    def changes(self) -> bool:
        return any(one.changes for one in self.roles.values())

    @property
    def problem(self) -> Problem | None:
        """Why the metrics could not be used, or None."""
        return self.assessment.problem

    @property
    def infeasible(self) -> tuple[Role, ...]:
        """Roles whose SLO no number of instances can keep."""
        return tuple(role for role, one in self.roles.items() if one.sizing is not None and not one.sizing.feasible)


def decide(
    state: State, assessment: Assessment, fleet: Fleet, *, table: ProfileTable, settings: Settings, now: float
) -> tuple[Decision, State]:
    """Targets for the fleet as it is; call `state.look` with the same fleet first."""
    if assessment.demand is None:
        return _decision(state, assessment, _hold(assessment, fleet, settings), now), state
    sizes = _sizes(state, assessment.demand, table, settings)
    roles = {
        role: _choose(role, sizes[role], state, assessment, fleet, settings, table) for role in SCALED if role in fleet
    }
    needs = {role: one.needed if one.needed is not None else one.current for role, one in roles.items()}
    speeds = {Role.PREFILL: state.prefill_k, Role.DECODE: state.decode_k}
    enough = {role: speeds[role] for role in roles if sizes[role].instances <= fleet[role].replicas}
    state = replace(state, recommended=(*state.recommended, (now, needs)), sized_for={**state.sized_for, **enough})
    return _decision(state, assessment, _within_budget(roles, settings), now), state


def _decision(state: State, assessment: Assessment, roles: Mapping[Role, RoleDecision], now: float) -> Decision:
    return Decision(
        at_seconds=now,
        roles=roles,
        assessment=assessment,
        prefill_k=state.prefill_k,
        decode_k=state.decode_k,
        expired=tuple(
            role for role, one in state.tracked.items() if one.in_flight is not None and one.in_flight.expired
        ),
    )


def _hold(assessment: Assessment, fleet: Fleet, settings: Settings) -> dict[Role, RoleDecision]:
    kind = assessment.problem.kind if assessment.problem is not None else ProblemKind.MISSING
    roles = {}
    for role in SCALED:
        if role not in fleet:
            continue
        current, bounds = fleet[role].replicas, settings.roles[role]
        target = _clamp(current, bounds) if bounds.scaled else current
        reason = Reason.OUTSIDE_BOUNDS if target != current else _HOLDS[kind]
        roles[role] = RoleDecision(role=role, current=current, needed=None, target=target, reason=reason)
    return roles


def _clamp(count: int, bounds: RoleSettings) -> int:
    return min(max(count, bounds.minimum), bounds.maximum)


def _sizes(state: State, demand: Demand, table: ProfileTable, settings: Settings) -> dict[Role, Sizing]:
    return {
        role: _size(role, demand, table, settings, prefill_k=state.prefill_k, decode_k=state.decode_k, state=state)
        for role in SCALED
    }


def _size(
    role: Role,
    demand: Demand,
    table: ProfileTable,
    settings: Settings,
    *,
    prefill_k: float,
    decode_k: float,
    state: State,
) -> Sizing:
    if role is Role.PREFILL:
        return size_prefill(
            table,
            demand,
            slo_seconds=settings.slo_ttft_seconds,
            attainment=settings.attainment,
            correction=prefill_k,
            transfer_seconds=state.transfer_seconds,
        )
    return size_decode(table, demand, slo_seconds=settings.slo_tpot_seconds, correction=decode_k)


def _choose(
    role: Role,
    sizing: Sizing,
    state: State,
    assessment: Assessment,
    fleet: Fleet,
    settings: Settings,
    table: ProfileTable,
) -> RoleDecision:
    current, bounds = fleet[role].replicas, settings.roles[role]
    needed = _clamp(sizing.instances, bounds)

    def result(target: int, reason: Reason) -> RoleDecision:
        return RoleDecision(role=role, current=current, needed=needed, target=target, reason=reason, sizing=sizing)

    if not bounds.scaled:
        return replace(result(current, Reason.NOT_SCALED), needed=current)
    inside = _clamp(current, bounds)
    if needed > inside:
        reason = _why_up(role, state, assessment, settings, table, at_most=current)
        return result(inside if reason is Reason.SLOWER_THAN_PROFILE else needed, reason)
    if inside != current:
        return result(inside, Reason.OUTSIDE_BOUNDS)
    if needed == current:
        return result(current, Reason.STEADY)
    if assessment.settling:
        return result(current, Reason.HOLD_IDLE)
    tracked = state.tracked.get(role)
    flight = tracked.in_flight if tracked is not None else None
    if flight is not None and not flight.expired and not assessment.observation.idle:
        return result(current, Reason.HOLD_SCALE_UP_IN_FLIGHT)
    highest = max((needs.get(role, 0) for _, needs in state.recommended), default=needed)
    target = min(current, max(needed, _clamp(highest, bounds)))
    return result(target, Reason.SCALE_DOWN if target < current else Reason.HOLD_STABILIZING)


def _why_up(
    role: Role,
    state: State,
    assessment: Assessment,
    settings: Settings,
    table: ProfileTable,
    *,
    at_most: int,
) -> Reason:
    """Load, or slower instances: see the module."""
    demand = assessment.demand
    if demand is None:
        return Reason.OUTSIDE_BOUNDS

    def needed(k: float) -> int:
        return _size(role, demand, table, settings, prefill_k=k, decode_k=k, state=state).instances

    if needed(1.0) > at_most:
        return Reason.LOAD_FORECAST
    prefill = role is Role.PREFILL
    latency = assessment.observation.ttft if prefill else assessment.observation.tpot
    slo = settings.slo_ttft_seconds if prefill else settings.slo_tpot_seconds
    if latency is not None and latency.misses(slo_seconds=slo, attainment=settings.attainment):
        return Reason.TTFT_ABOVE_SLO if prefill else Reason.TPOT_ABOVE_SLO
    known = state.sized_for.get(role, 1.0)
    return Reason.LOAD_FORECAST if needed(known) > at_most else Reason.SLOWER_THAN_PROFILE


def _within_budget(roles: Mapping[Role, RoleDecision], settings: Settings) -> Mapping[Role, RoleDecision]:
    if set(roles) != set(SCALED):
        return roles
    legs = [
        budget.Leg(
            current=roles[role].current,
            wanted=roles[role].target,
            gpus=settings.roles[role].gpus,
            minimum=settings.roles[role].minimum if settings.roles[role].scaled else roles[role].current,
        )
        for role in SCALED
    ]
    fitted = budget.fit(legs[0], legs[1], settings.gpu_budget)
    result = dict(roles)
    for role, target in zip(SCALED, fitted, strict=True):
        one = roles[role]
        if target == one.target or not settings.roles[role].scaled:
            continue
        reason = one.reason if target > one.current else Reason.HOLD_GPU_BUDGET
        result[role] = replace(one, target=target, reason=reason)
    return result
