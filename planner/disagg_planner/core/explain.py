"""Decisions in words: what `kubectl describe dd` and `disagg status` show.

One sentence a changed role, with the numbers that led to it, so that a person can redo the arithmetic.
"""

from __future__ import annotations

from disagg_contract.labels import Role
from disagg_planner.core.decision import Decision, Reason, RoleDecision
from disagg_planner.core.settings import Settings


def explain(decision: Decision, role: Role, settings: Settings) -> str:
    """Why the group of `role` gets its target."""
    one = decision.roles[role]
    change = f"{role.value} {one.current} -> {one.target}" if one.changes else f"{role.value} stays {one.current}"
    return f"{change}: {_because(decision, one, settings)}"


def _because(decision: Decision, one: RoleDecision, settings: Settings) -> str:
    match one.reason:
        case Reason.LOAD_FORECAST | Reason.HOLD_GPU_BUDGET:
            return f"{_load(decision)}; {_capacity(one, settings)}{_capped(one, settings)}"
        case Reason.SLOWER_THAN_PROFILE:
            return f"{_slow(decision, one, settings)}; that needs {one.needed}, but the SLO is still met"
        case Reason.TTFT_ABOVE_SLO | Reason.TPOT_ABOVE_SLO:
            return f"{_slow(decision, one, settings)}; {_capacity(one, settings)}{_capped(one, settings)}"
        case Reason.SCALE_DOWN:
            return (
                f"{_load(decision)}: {one.needed} needed, and never more than {one.target} "
                f"in the last {settings.stabilization_seconds:g} s"
            )
        case Reason.OUTSIDE_BOUNDS:
            bounds = settings.roles[one.role]
            return f"bounds are {bounds.minimum} to {bounds.maximum}"
        case Reason.STEADY:
            return _load(decision)
        case Reason.NOT_SCALED:
            return "its replicas are not the planner's"
        case Reason.HOLD_IDLE:
            return f"no requests, but not yet for {settings.idle_intervals} intervals"
        case Reason.HOLD_STABILIZING:
            return f"{_load(decision)}: {one.needed} needed, but more within {settings.stabilization_seconds:g} s"
        case Reason.HOLD_SCALE_UP_IN_FLIGHT:
            return f"{_load(decision)}: {one.needed} needed, but the last increase is not settled"
        case _:
            return decision.problem.detail if decision.problem is not None else "no usable metrics"


def _load(decision: Decision) -> str:
    demand, rate = decision.assessment.demand, decision.assessment.rate
    if demand is None or demand.requests_per_second <= 0 or rate is None:
        return "no requests"
    source = f"{rate.source.value} {rate.model}".rstrip()
    if demand.requests_per_second > rate.value:
        source = f"observed, far above the {rate.value:.3g} forecast"
    return (
        f"{demand.requests_per_second:.3g} req/s of {demand.input_tokens:.0f}+{demand.output_tokens:.0f} tokens "
        f"expected ({source}; {decision.assessment.observation.rate:.3g} observed)"
    )


def _capacity(one: RoleDecision, settings: Settings) -> str:
    if one.sizing is None:
        return "capacity unknown"
    prefill = one.role is Role.PREFILL
    name = "TTFT" if prefill else "TPOT"
    slo = settings.slo_ttft_seconds if prefill else settings.slo_tpot_seconds
    if not one.sizing.feasible:
        return (
            f"{name} is {one.sizing.idle_latency_seconds:.3g} s on an idle instance, above its SLO of {slo:g} s "
            f"whatever the replicas, so {one.needed} is what the throughput needs"
        )
    return (
        f"{one.sizing.load_tokens_per_second:.0f} tok/s need {one.sizing.instances}, "
        f"an instance takes {one.sizing.tokens_per_second:.0f} tok/s within {name} {slo:g} s"
    )


def _slow(decision: Decision, one: RoleDecision, settings: Settings) -> str:
    prefill = one.role is Role.PREFILL
    name = "TTFT" if prefill else "TPOT"
    slo = settings.slo_ttft_seconds if prefill else settings.slo_tpot_seconds
    factor = decision.prefill_k if prefill else decision.decode_k
    latency = decision.assessment.observation.ttft if prefill else decision.assessment.observation.tpot
    slower = f"iterations take {factor:.2f} times the profile's time"
    if latency is None or one.reason is Reason.SLOWER_THAN_PROFILE:
        return slower
    spread = ""
    if latency.share is not None:
        spread = f", {100 * latency.share:.0f} % of requests within it"
    if latency.quantile is not None:
        more = "more than " if latency.quantile.saturated else ""
        spread += f", {100 * settings.attainment:.0f} % within {more}{latency.quantile.value:.3g} s"
    return f"{name} is {latency.mean_seconds:.3g} s against an SLO of {slo:g} s{spread}; {slower}"


def _capped(one: RoleDecision, settings: Settings) -> str:
    notes = []
    if one.sizing is not None and one.needed is not None and one.sizing.instances > one.needed:
        notes.append(f"its maximum is {settings.roles[one.role].maximum}")
    if one.needed is not None and one.target < one.needed:
        notes.append(f"the GPU budget is {settings.gpu_budget}")
    return f"; {' and '.join(notes)}" if notes else ""
