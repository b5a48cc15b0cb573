"""What the planner remembers between decisions, and how a window changes it.

A frozen value: every step returns a new one, so a decision can be taken again from the same memory after a conflict,
and the simulator can keep as many planners as it likes. `look` takes in the fleet, `assess` the window; both are pure,
and `assess` is the expensive one (it fits the models).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from disagg_contract.labels import Role
from disagg_planner.core.capacity import Demand
from disagg_planner.core.correction import decode_factor, prefill_factor
from disagg_planner.core.fleet import Fleet, Tracked, track
from disagg_planner.core.forecast import Forecast, Predictor
from disagg_planner.core.interpolation import ProfileTable
from disagg_planner.core.observation import Observation
from disagg_planner.core.series import Series
from disagg_planner.core.settings import Settings
from disagg_planner.core.signals import Problem, ProblemKind

SURPRISE_SIGMAS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Memory.

    `recommended` are (time, replicas by role) that the load asked for, oldest first; `sized_for` is the correction at
    which a group was last found to be enough.
    """

    rates: Series = field(default_factory=Series)
    inputs: Series = field(default_factory=Series)
    outputs: Series = field(default_factory=Series)
    idle: int = 0
    prefill_k: float = 1.0
    decode_k: float = 1.0
    transfers: Series = field(default_factory=Series)
    tracked: Mapping[Role, Tracked] = field(default_factory=lambda: MappingProxyType({}))
    recommended: tuple[tuple[float, Mapping[Role, int]], ...] = ()
    sized_for: Mapping[Role, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def transfer_seconds(self) -> float:
        """What a KV transfer takes without queueing: the least that a window showed. Congestion is no property."""
        return min(self.transfers.values, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What one window says of the load to come.

    `demand` is None on hold, with `problem` saying why. In an idle interval the demand is there and zero, and
    `settling` is True until enough of them have passed.
    """

    observation: Observation
    demand: Demand | None = None
    problem: Problem | None = None
    settling: bool = False
    rate: Forecast | None = None
    input_tokens: Forecast | None = None
    output_tokens: Forecast | None = None


def look(state: State, fleet: Fleet, settings: Settings, *, now: float) -> State:
    """Memory after reading the groups. Looking twice changes nothing."""
    tracked = {
        role: track(
            state.tracked.get(role),
            group,
            now=now,
            settle_seconds=settings.stabilization_seconds,
            pending_seconds=settings.pending_seconds,
        )
        for role, group in fleet.items()
    }
    fresh = tuple(entry for entry in state.recommended if entry[0] > now - settings.stabilization_seconds)
    if not fresh:
        # After a start or an outage the fleet itself is the best word on what was needed.
        fresh = ((now, {role: group.replicas for role, group in fleet.items()}),)
    return replace(state, tracked=tracked, recommended=fresh)


def assess(
    state: State,
    observation: Observation,
    *,
    predictor: Predictor,
    table: ProfileTable,
    fleet: Fleet,
    settings: Settings,
) -> tuple[Assessment, State]:
    """Forecast the load and learn the corrections from one window."""
    if observation.problem is not None:
        return Assessment(observation=observation, problem=observation.problem), state
    at = observation.at_seconds
    idle = state.idle + 1 if observation.idle else 0
    state = replace(
        state,
        rates=state.rates.add(at, observation.rate),
        inputs=state.inputs.add(at, observation.input_tokens),
        outputs=state.outputs.add(at, observation.output_tokens),
        idle=idle,
        transfers=state.transfers.add(at, observation.transfer_seconds),
    )
    if idle:
        nothing = Demand(requests_per_second=0.0, input_tokens=1.0, output_tokens=1.0)
        return Assessment(observation=observation, demand=nothing, settling=idle < settings.idle_intervals), state
    rate = predictor.forecast(state.rates.values, steps=settings.steps)
    inputs, outputs = _length(state.inputs, predictor, at, settings), _length(state.outputs, predictor, at, settings)
    if rate is None or inputs is None or outputs is None:
        problem = Problem(ProblemKind.MISSING, "requests arrive, but none has completed: their lengths are unknown")
        return Assessment(observation=observation, problem=problem), state
    demand = Demand(
        requests_per_second=expected_rate(rate, observation),
        input_tokens=max(inputs.value, 1.0),
        output_tokens=max(outputs.value, 1.0),
        hit_rate=observation.hit_rate,
    )
    assessment = Assessment(
        observation=observation, demand=demand, rate=rate, input_tokens=inputs, output_tokens=outputs
    )
    return assessment, _learn(state, observation, table=table, fleet=fleet)


def expected_rate(forecast: Forecast, observation: Observation) -> float:
    """Arrivals per engine second to be ready for, from the forecast and the count of the last window.

    A forecast smooths, and a jump must not wait for it: a count more than three standard errors (the square root of
    the expected one) above what was forecast is taken at once. But a count is noisy, and an instance too many is paid
    for at least a stabilisation window, while one too few is corrected at the next tick: so what rests on one to four
    windows only is taken with one standard error off.
    """
    seconds = observation.window_seconds
    expected = forecast.value * seconds
    if observation.started > expected + SURPRISE_SIGMAS * math.sqrt(expected):
        return max((observation.started - math.sqrt(observation.started)) / seconds, forecast.value)
    if forecast.points > 0:
        return (expected - math.sqrt(expected / forecast.points)) / seconds if expected > 1 else forecast.value
    return forecast.value


def _length(series: Series, predictor: Predictor, at: float, settings: Settings) -> Forecast | None:
    """Forecast of a length, or None when none was observed lately: an old burst of long prompts must age out."""
    oldest = at - settings.length_intervals * settings.interval_seconds
    if series.last_at is None or series.last_at < oldest:
        return None
    return predictor.forecast(series.values, steps=1)


def _learn(state: State, observation: Observation, *, table: ProfileTable, fleet: Fleet) -> State:
    """Corrections by what this window saw; frozen for a role that waits for its own increase."""
    if observation.input_tokens is None or observation.output_tokens is None:
        return state
    seen = Demand(
        requests_per_second=observation.rate,
        input_tokens=max(observation.input_tokens, 1.0),
        output_tokens=max(observation.output_tokens, 1.0),
        hit_rate=observation.hit_rate,
    )
    prefill_k, decode_k = state.prefill_k, state.decode_k
    if not _waiting(state, Role.PREFILL):
        prefill_k = prefill_factor(table, observation, input_tokens=seen.prefill_tokens, previous=prefill_k)
    if not _waiting(state, Role.DECODE):
        decode_k = decode_factor(
            table,
            observation,
            context_tokens=seen.context_tokens,
            output_tokens=seen.output_tokens,
            instances=fleet[Role.DECODE].serving if Role.DECODE in fleet else 0,
            previous=decode_k,
        )
    return replace(state, prefill_k=prefill_k, decode_k=decode_k)


def _waiting(state: State, role: Role) -> bool:
    tracked = state.tracked.get(role)
    return tracked is not None and tracked.waiting
