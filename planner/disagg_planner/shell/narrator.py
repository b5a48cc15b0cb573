"""What the planner tells people: two conditions, and an Event for every change of mind.

Conditions are sent when they changed; Events once for each change of replicas and at each transition (metrics lost and
back, an SLO that cannot be kept, an increase that never became ready, a refused write), not at every tick. A reporter
that fails is logged and tried again with the next decision.
"""

from __future__ import annotations

import logging

from disagg_contract.control import Condition, Event
from disagg_contract.labels import Role
from disagg_crds import ConditionType
from disagg_crds import Reason as CrdReason
from disagg_planner.core.decision import Decision
from disagg_planner.core.explain import explain
from disagg_planner.core.settings import Settings
from disagg_planner.errors import ScalerError
from disagg_planner.shell.scaling import Reporter

log = logging.getLogger(__name__)

METRICS_BACK = "MetricsAvailable"
SLO_INFEASIBLE = "SLOInfeasible"
SCALE_UP_STALLED = "ScaleUpStalled"
SCALE_DEFERRED = "ScaleDeferred"


class Narrator:
    """Keeps what was said, so that nothing is said twice."""

    def __init__(self, reporter: Reporter, settings: Settings, *, advisory: bool) -> None:
        self._reporter = reporter
        self._settings = settings
        self._advisory = advisory
        self._sent: tuple[Condition, ...] | None = None
        self._said: dict[str, str] = {}
        self._advised: dict[Role, int] = {}

    async def scaled(self, decision: Decision, role: Role) -> None:
        """A group was written."""
        message = explain(decision, role, self._settings)
        log.info("%s", message)
        await self._event(Event("Normal", decision.roles[role].reason.value, message))

    async def tell(self, decision: Decision, *, refusal: str = "") -> None:
        """Conditions and transitions after a decision; `refusal` says why its targets could not be written."""
        if self._advisory:
            await self._advise(decision)
        await self._transition(
            "metrics",
            f"Hold{decision.problem.kind.value}" if decision.problem else "",
            decision.problem.detail if decision.problem else "metrics are fresh again; scaling goes on",
            back=METRICS_BACK,
        )
        infeasible = _infeasible(decision, self._settings)
        await self._transition("slo", SLO_INFEASIBLE if infeasible else "", infeasible)
        await self._transition(
            "stalled",
            SCALE_UP_STALLED if decision.expired else "",
            f"instances of {', '.join(decision.expired)} did not become ready within "
            f"{self._settings.pending_seconds:g} s; the increase no longer holds back other decisions",
        )
        await self._transition("refusal", SCALE_DEFERRED if refusal else "", refusal)
        await self._conditions(
            (
                _metrics_condition(decision),
                _scaling_condition(decision, advisory=self._advisory, refusal=refusal, infeasible=infeasible),
            )
        )

    async def _advise(self, decision: Decision) -> None:
        for role, one in decision.roles.items():
            if one.changes and self._advised.get(role) != one.target:
                await self._event(
                    Event("Normal", one.reason.value, f"advice: {explain(decision, role, self._settings)}")
                )
            self._advised[role] = one.target

    async def _transition(self, topic: str, reason: str, message: str, *, back: str = "") -> None:
        before = self._said.get(topic, "")
        self._said[topic] = reason
        if reason == before:
            return
        if reason:
            log.warning("%s: %s", reason, message)
            await self._event(Event("Warning", reason, message))
        elif back:
            log.info("%s", message)
            await self._event(Event("Normal", back, message))

    async def _event(self, event: Event) -> None:
        try:
            await self._reporter.event(event)
        except ScalerError as error:
            log.warning("event %s is lost: %s", event.reason, error)

    async def _conditions(self, conditions: tuple[Condition, ...]) -> None:
        if conditions == self._sent:
            return
        try:
            await self._reporter.conditions(conditions)
        except ScalerError as error:
            log.warning("conditions not written: %s", error)
            self._sent = None
            return
        self._sent = conditions


def _metrics_condition(decision: Decision) -> Condition:
    kind = ConditionType.METRICS_AVAILABLE.value
    silent = decision.assessment.observation.silent
    if decision.problem is not None:
        return Condition(kind, "False", decision.problem.kind.value, decision.problem.detail)
    if silent:
        return Condition(kind, "True", CrdReason.METRICS_PARTIAL.value, f"no answer from {', '.join(silent)}")
    return Condition(kind, "True", CrdReason.METRICS_FRESH.value, "router and workers are measured")


def _scaling_condition(decision: Decision, *, advisory: bool, refusal: str, infeasible: str) -> Condition:
    kind = ConditionType.SCALING_ACTIVE.value
    if advisory:
        return Condition(kind, "False", CrdReason.ADVISORY.value, "decisions are exported, never written")
    if refusal:
        return Condition(kind, "False", CrdReason.SCALE_REJECTED.value, refusal)
    if decision.problem is not None:
        return Condition(kind, "False", CrdReason.HOLDING.value, "replicas are kept while metrics are unusable")
    if infeasible:
        return Condition(kind, "True", CrdReason.SLO_INFEASIBLE.value, infeasible)
    return Condition(kind, "True", CrdReason.DECISIONS_WRITTEN.value, "decisions are written to the groups")


def _infeasible(decision: Decision, settings: Settings) -> str:
    parts = []
    for role in decision.infeasible:
        name, slo = ("TTFT", settings.slo_ttft_seconds) if role is Role.PREFILL else ("TPOT", settings.slo_tpot_seconds)
        sizing = decision.roles[role].sizing
        if sizing is not None:
            parts.append(f"{name} is {sizing.idle_latency_seconds:.2g} s on an idle instance, its SLO is {slo:g} s")
    return "; ".join(parts)
