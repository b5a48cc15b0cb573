"""The planner's own decisions, on the run's clock.

Every interval the planner looks at the groups, at what a router and its workers have counted since its last look, and
decides as its program does: `observe`, `look`, `assess`, `decide`, `plan_writes`. What it writes happens: an instance
asked for serves after its group's start-up time, one too many is drained. An increase that waits for the GPUs of a
decrease is tried again every two seconds, like in the program.
"""

from __future__ import annotations

from functools import partial

from disagg_contract.labels import Role
from disagg_planner.core.decision import Decision, decide
from disagg_planner.core.explain import explain
from disagg_planner.core.fleet import Fleet as Groups
from disagg_planner.core.fleet import Group as Replicas
from disagg_planner.core.observation import observe
from disagg_planner.core.settings import SCALED
from disagg_planner.core.state import State, assess, look
from disagg_planner.core.writes import plan_writes
from disagg_simulator.cluster.member import Member, Phase
from disagg_simulator.cluster.meter import Meter
from disagg_simulator.cluster.run import ClusterRun
from disagg_simulator.deployment import Mode
from disagg_simulator.errors import DeploymentError
from disagg_simulator.planner import PlannerSetup
from disagg_simulator.recording import ScalingDecision

POLL_SECONDS = 2.0


class Planning:
    """Drives the planner's core; see the module's text. Raises DeploymentError where there is nothing to scale."""

    def __init__(self, run: ClusterRun, setup: PlannerSetup, meter: Meter) -> None:
        if run.deployment.mode is not Mode.DISAGGREGATED:
            raise DeploymentError(
                field="mode", value=run.deployment.mode, wanted="'disaggregated': a planner scales prefill and decode"
            )
        self._run = run
        self._setup = setup
        self._meter = meter
        self._state = State()
        self._waiting: Decision | None = None
        self._groups = {Role.PREFILL: run.deployment.prefill[-1], Role.DECODE: run.deployment.decode[-1]}
        run.at(setup.settings.interval_seconds, self._tick)

    def _tick(self) -> None:
        run, settings = self._run, self._setup.settings
        now = run.now
        observation = observe(
            self._meter.read(now),
            time_scale=1.0,
            slo_ttft_seconds=settings.slo_ttft_seconds,
            slo_tpot_seconds=settings.slo_tpot_seconds,
            attainment=settings.attainment,
            stale_seconds=settings.stale_seconds,
        )
        groups = self._look()
        state = look(self._state, groups, settings, now=now)
        assessment, state = assess(
            state,
            observation,
            predictor=self._setup.predictor,
            table=self._setup.table,
            fleet=groups,
            settings=settings,
        )
        decision, self._state = decide(state, assessment, groups, table=self._setup.table, settings=settings, now=now)
        for role, one in decision.roles.items():
            run.recording.decisions.append(
                ScalingDecision(
                    at_seconds=now,
                    role=role,
                    current=one.current,
                    needed=one.needed,
                    target=one.target,
                    reason=one.reason.value,
                    sentence=explain(decision, role, settings),
                )
            )
        self._waiting = None
        if decision.changes:
            self._write(decision)
        if not run.stuck:
            run.at(now + settings.interval_seconds, self._tick)

    def _look(self) -> Groups:
        groups = {}
        for role in SCALED:
            members = self._run.fleet.of(role)
            groups[role] = Replicas(
                replicas=len(_wanted(members)),
                existing=len(members),
                ready=sum(member.phase is Phase.SERVING for member in members),
            )
        return groups

    def _write(self, decision: Decision) -> None:
        writes = plan_writes(decision.targets, self._look(), self._setup.settings)
        for role, target in writes.now:
            self._scale(role, target)
        if writes.waiting:
            self._waiting = decision
            self._run.at(self._run.now + POLL_SECONDS, partial(self._poll, decision))

    def _poll(self, decision: Decision) -> None:
        """An increase still waits for room, unless another decision has come."""
        if self._waiting is decision:
            self._write(decision)

    def _scale(self, role: Role, target: int) -> None:
        run = self._run
        members = _wanted(run.fleet.of(role))
        for member in members[target:]:
            run.fleet.drain(member, now=run.now)
        for _ in range(target - len(members)):
            group = self._groups[role]
            member = run.fleet.create(group, now=run.now)
            run.at(run.now + group.startup_seconds, partial(self._started, member))

    def _started(self, member: Member) -> None:
        if member.phase is Phase.STARTING:
            if not self._setup.paid_while_starting:
                member.record.started_seconds = self._run.now
            self._run.serve(member)


def _wanted(members: list[Member]) -> list[Member]:
    """Instances that are not being drained, oldest first: the youngest go first."""
    return [member for member in members if member.phase is not Phase.DRAINING]
