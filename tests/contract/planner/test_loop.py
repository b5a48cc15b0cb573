"""The control loop with a clock of its own, a scripted source and a runtime that can misbehave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from disagg_contract import metrics
from disagg_contract.control import Condition, Event
from disagg_contract.labels import Role
from disagg_contract.profile import Profile
from disagg_crds import ConditionType
from disagg_crds import Reason as CrdReason
from disagg_planner.core import signals
from disagg_planner.core.fleet import Group
from disagg_planner.core.forecast import LastValue
from disagg_planner.core.interpolation import ProfileTable
from disagg_planner.core.settings import RoleSettings, Settings
from disagg_planner.core.signals import Problem, ProblemKind, Reading
from disagg_planner.errors import ScaleConflict, ScaleRefused, ScalerError
from disagg_planner.shell.exporter import Exporter
from disagg_planner.shell.loop import Planner
from disagg_planner.shell.scaling import ScaleState
from disagg_planner.shell.sources import NoSource, Past

P, D = Role.PREFILL, Role.DECODE


class Enough(Exception):
    """A test has seen what it wanted."""


class FakeClock:
    """Time passes only by sleeping; `on_sleep` sees every nap, and `done` ends the loop that wanted one."""

    def __init__(self) -> None:
        self.time = 0.0
        self.on_sleep: Callable[[], None] = lambda: None
        self.done: Callable[[], bool] = lambda: False

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        if self.done():
            raise Enough
        self.time += max(seconds, 0.0)
        self.on_sleep()


class Script:
    """A source that reads what the test says: a rate, or a problem."""

    def __init__(self) -> None:
        self.rate: float | Problem = 2.0
        self.past: Sequence[Past] = ()

    async def start(self, now: float) -> None:
        """Nothing to prepare."""

    async def history(self, now: float, intervals: int) -> Sequence[Past]:
        return self.past

    async def close(self) -> None:
        """Nothing to close."""

    async def read(self, now: float) -> Reading:
        if isinstance(self.rate, Problem):
            return Reading(at_seconds=now, window_seconds=30.0, problem=self.rate)
        count = 30.0 * self.rate
        values = {signals.STARTED.key: count}
        for total, number, mean in (
            (signals.INPUT_SUM, signals.INPUT_COUNT, 1000.0),
            (signals.OUTPUT_SUM, signals.OUTPUT_COUNT, 100.0),
            (signals.TTFT_SUM, signals.TTFT_COUNT, 0.12),
            (signals.TPOT_SUM, signals.TPOT_COUNT, 0.02),
        ):
            values |= {total.key: count * mean, number.key: count}
        return Reading(at_seconds=now, window_seconds=30.0, increases=values)


class Site:
    """Scaler and reporter: obeys at once unless told otherwise."""

    def __init__(self, prefill: int = 1, decode: int = 1) -> None:
        self.groups = {
            role: Group(replicas=count, existing=count, ready=count) for role, count in ((P, prefill), (D, decode))
        }
        self.version = 0
        self.writes: list[tuple[Role, int]] = []
        self.said: list[Condition] = []
        self.events: list[Event] = []
        self.fail_write: dict[Role, Exception] = {}
        self.fail_read: ScalerError | None = None
        self.fail_report: ScalerError | None = None
        self.meddle: Callable[[], None] | None = None
        self.lazy = False
        self.most = 0

    async def read(self, role: Role) -> ScaleState:
        if self.fail_read is not None:
            raise self.fail_read
        return ScaleState(group=self.groups[role], resource_version=str(self.version))

    async def write(self, role: Role, replicas: int, resource_version: str) -> None:
        if self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            meddle()
        if role in self.fail_write:
            raise self.fail_write[role]
        if resource_version != str(self.version):
            raise ScaleConflict("stale")
        self.writes.append((role, replicas))
        existing = max(self.groups[role].existing, replicas) if self.lazy else replicas
        self.groups[role] = Group(replicas=replicas, existing=existing, ready=min(replicas, existing))
        self.most = max(self.most, sum(group.existing for group in self.groups.values()))

    async def conditions(self, conditions: tuple[Condition, ...]) -> None:
        if self.fail_report is not None:
            raise self.fail_report
        self.said += conditions

    async def event(self, event: Event) -> None:
        if self.fail_report is not None:
            raise self.fail_report
        self.events.append(event)

    async def close(self) -> None:
        """Nothing to close."""

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]

    def last(self, kind: ConditionType) -> Condition:
        return next(one for one in reversed(self.said) if one.type == kind.value)


class Rig:
    """A planner with everything around it scripted. An instance takes about 4 req/s of prefill and 10 of decode."""

    def __init__(self, profile: Profile, site: Site, *, advisory: bool = False, **changes: Any) -> None:
        self.clock, self.source, self.site = FakeClock(), Script(), site
        self.settings = replace(
            Settings(
                slo_ttft_seconds=0.25,
                slo_tpot_seconds=0.1,
                roles={role: RoleSettings(minimum=1, maximum=8) for role in (P, D)},
                stabilization_seconds=60.0,
            ),
            **changes,
        )
        self.exporter = Exporter(self.settings)
        self.planner = Planner(
            settings=self.settings,
            table=ProfileTable(profile),
            predictor=LastValue(),
            source=self.source,
            runtime=site,
            exporter=self.exporter,
            clock=self.clock,
            advisory=advisory,
        )

    async def tick(self, rate: float | Problem | None = None, *, times: int = 1) -> None:
        for _ in range(times):
            self.clock.time += 30.0
            self.source.rate = self.source.rate if rate is None else rate
            await self.planner.tick()

    def counted(self, result: str) -> float | None:
        return self.exporter.registry.get_sample_value(metrics.PLANNER_DECISIONS.series, {"result": result})

    async def run_until(self, done: Callable[[], bool]) -> None:
        self.clock.done = done
        with pytest.raises(Enough):
            await self.planner.run()


async def test_load_is_scaled_for_and_explained(profile: Profile) -> None:
    rig = Rig(profile, Site())
    await rig.tick(2.0)
    await rig.tick(12.0)
    assert rig.site.writes == [(P, 2), (D, 2)]
    assert rig.site.reasons() == ["LoadForecast", "LoadForecast"]
    assert rig.site.events[0].message.startswith("prefill 1 -> 2: 12 req/s")
    assert (rig.counted("kept"), rig.counted("applied")) == (1, 1)
    assert rig.site.last(ConditionType.METRICS_AVAILABLE).reason == CrdReason.METRICS_FRESH.value
    assert rig.site.last(ConditionType.SCALING_ACTIVE).reason == CrdReason.DECISIONS_WRITTEN.value


async def test_conditions_and_transitions_are_said_once(profile: Profile) -> None:
    rig = Rig(profile, Site())
    await rig.tick(2.0, times=5)
    assert len(rig.site.said) == 2
    await rig.tick(Problem(ProblemKind.MISSING, "no samples"), times=5)
    assert len(rig.site.said) == 4
    assert rig.site.last(ConditionType.METRICS_AVAILABLE).status == "False"
    assert rig.site.last(ConditionType.SCALING_ACTIVE).reason == CrdReason.HOLDING.value
    await rig.tick(2.0, times=2)
    assert rig.site.reasons() == ["HoldMetricsMissing", "MetricsAvailable"]
    assert rig.counted("held") == 5


def test_every_reason_of_a_condition_is_one_of_the_api() -> None:
    known = {reason.value for reason in CrdReason}
    assert {kind.value for kind in ProblemKind} <= known


async def test_a_reporter_that_fails_is_tried_again(profile: Profile) -> None:
    rig = Rig(profile, Site())
    rig.site.fail_report = ScalerError("no API server")
    await rig.tick(12.0)
    assert rig.site.writes == [(P, 2), (D, 2)]
    rig.site.fail_report = None
    await rig.tick()
    assert len(rig.site.said) == 2


async def test_hc6_without_a_source_the_planner_holds_and_says_which_setting_is_missing(profile: Profile) -> None:
    rig = Rig(profile, Site(prefill=3), roles={role: RoleSettings(minimum=2, maximum=8) for role in (P, D)})
    rig.planner._source = NoSource("no metrics source: set spec.planner.prometheus.url")
    await rig.tick(times=3)
    assert rig.site.writes == [(D, 2)], "the minimum is kept without metrics (PL9)"
    condition = rig.site.last(ConditionType.METRICS_AVAILABLE)
    assert (condition.status, condition.reason) == ("False", CrdReason.METRICS_URL_MISSING.value)
    assert "spec.planner.prometheus.url" in condition.message


async def test_a_conflict_is_read_again_and_decided_again(profile: Profile) -> None:
    """Somebody scales prefill to 5 between read and write: the planner sees it and leaves it above the need."""
    rig = Rig(profile, Site())

    def meddle() -> None:
        rig.site.version += 1
        rig.site.groups[P] = Group(replicas=5, existing=5, ready=5)

    rig.site.meddle = meddle
    await rig.tick(12.0)
    assert rig.site.writes == [(D, 2)]
    assert rig.site.groups[P].replicas == 5
    assert len(rig.planner.state.rates.values) == 1, "the window counts once"


async def test_conflicts_without_end_are_deferred(profile: Profile) -> None:
    rig = Rig(profile, Site())
    rig.site.fail_write = {P: ScaleConflict("stale"), D: ScaleConflict("stale")}
    await rig.tick(12.0)
    assert rig.counted("deferred") == 1
    assert rig.site.last(ConditionType.SCALING_ACTIVE).reason == CrdReason.SCALE_REJECTED.value


async def test_pl6_a_refusal_is_deferred_and_tried_again(profile: Profile) -> None:
    rig = Rig(profile, Site())
    rig.site.fail_write = {P: ScaleRefused("not ready"), D: ScaleRefused("not ready")}
    await rig.tick(12.0, times=2)
    assert (rig.site.writes, rig.counted("deferred"), rig.counted("applied")) == ([], 2, 0)
    assert rig.site.reasons() == ["ScaleDeferred"]
    rig.site.fail_write = {}
    await rig.tick(12.0)
    assert rig.site.writes == [(P, 2), (D, 2)]
    assert rig.site.last(ConditionType.SCALING_ACTIVE).status == "True"


async def test_a_fleet_that_cannot_be_read_is_no_decision(profile: Profile) -> None:
    rig = Rig(profile, Site())
    rig.site.fail_read = ScalerError("no API server")
    await rig.tick(12.0)
    assert (rig.counted("failed"), rig.site.writes) == (1, [])
    rig.site.fail_read = None
    await rig.tick(12.0)
    assert rig.counted("applied") == 1


async def test_advisory_decides_and_never_writes(profile: Profile) -> None:
    rig = Rig(profile, Site(), advisory=True)
    await rig.tick(12.0, times=4)
    assert rig.site.writes == []
    assert rig.counted("advised") == 4
    assert [event.message[:24] for event in rig.site.events] == ["advice: prefill 1 -> 2: ", "advice: decode 1 -> 2: 1"]
    assert rig.site.last(ConditionType.SCALING_ACTIVE).reason == CrdReason.ADVISORY.value
    wanted = rig.exporter.registry.get_sample_value(metrics.PLANNER_WANTED.series, {"role": "prefill"})
    assert wanted == 2


def drain(rig: Rig) -> None:
    """One instance that drains is gone at each nap."""
    for role, group in rig.site.groups.items():
        if group.existing > group.replicas:
            rig.site.groups[role] = replace(group, existing=group.existing - 1)
            return


async def test_pl4_a_rebalance_decreases_first_and_never_passes_the_budget(profile: Profile) -> None:
    rig = Rig(profile, Site(prefill=2, decode=6), gpu_budget=8)
    rig.site.lazy = True
    rig.site.most = 8
    rig.clock.on_sleep = lambda: drain(rig)
    rig.source.rate = 28.0
    await rig.run_until(lambda: len(rig.site.writes) >= 2 or rig.clock.time > 400)
    first, second = rig.site.writes[:2]
    assert first[0] is D
    assert second[0] is P
    assert second[1] > 2
    assert rig.site.most <= 8
    assert rig.site.groups[D].existing == rig.site.groups[D].replicas, "its instances were gone first"


async def test_pl4_when_the_decrease_fails_the_increase_is_not_issued(profile: Profile) -> None:
    rig = Rig(profile, Site(prefill=2, decode=6), gpu_budget=8)
    rig.site.fail_write = {D: ScaleRefused("not now")}
    await rig.tick(28.0, times=4)
    assert rig.site.writes == []
    assert (rig.counted("deferred") or 0) >= 1


async def test_the_past_is_taken_from_the_source_at_start(profile: Profile) -> None:
    rig = Rig(profile, Site())
    rig.source.past = [Past(at_seconds=-60.0, rate=3.0, input_tokens=900.0), Past(at_seconds=-30.0, rate=4.0)]
    await rig.run_until(lambda: rig.clock.time >= 30.0 and len(rig.planner.state.rates.values) >= 3)
    assert rig.planner.state.rates.values == (3.0, 4.0, 2.0)
    assert rig.planner.state.inputs.values == (900.0, 1000.0)


async def test_decisions_come_once_an_interval(profile: Profile) -> None:
    rig = Rig(profile, Site())
    await rig.run_until(lambda: (rig.counted("kept") or 0) >= 10)
    assert [at for at, _ in rig.planner.state.rates.points] == [30.0 * number for number in range(1, 11)]
    assert rig.planner.healthy()
    rig.clock.time += 200.0
    assert not rig.planner.healthy()


async def test_pl8_an_infeasible_slo_is_said_in_a_condition(profile: Profile) -> None:
    rig = Rig(profile, Site(), slo_ttft_seconds=0.05)
    await rig.tick(0.1, times=20)
    assert rig.site.writes == []
    condition = rig.site.last(ConditionType.SCALING_ACTIVE)
    assert (condition.status, condition.reason) == ("True", CrdReason.SLO_INFEASIBLE.value)
    assert rig.site.reasons() == ["SLOInfeasible"]


async def test_pl7_an_increase_that_never_becomes_ready_is_warned_about(profile: Profile) -> None:
    rig = Rig(profile, Site(), pending_seconds=300.0)
    await rig.tick(12.0)
    rig.site.groups = {role: replace(group, ready=1) for role, group in rig.site.groups.items()}
    await rig.tick(12.0, times=12)
    assert rig.site.reasons().count("ScaleUpStalled") == 1
    assert rig.site.writes == [(P, 2), (D, 2)]
