"""When the planner keeps still, and when it must not: outages, idleness, increases under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from disagg_contract.labels import Role
from disagg_planner.core.decision import Decision, Reason
from disagg_planner.core.settings import RoleSettings
from disagg_planner.core.signals import ProblemKind

Build = Callable[..., Any]
P, D = Role.PREFILL, Role.DECODE


def targets(decision: Decision) -> tuple[int, int]:
    return decision.targets[P], decision.targets[D]


def wide(minimum: int = 1, maximum: int = 20) -> dict[Role, RoleSettings]:
    return {role: RoleSettings(minimum=minimum, maximum=maximum) for role in (P, D)}


def test_pl1_idle_traffic_releases_the_gpus_after_three_intervals(planner: Build) -> None:
    scene = planner(prefill=7, decode=1, roles=wide())
    scene.run(lambda at: 40.0, ticks=3)
    before = scene.replicas()
    first, second, third = scene.run(lambda at: 0.0, ticks=3)
    assert targets(first) == targets(second) == (before[P], before[D])
    assert first.roles[P].reason is Reason.HOLD_IDLE
    assert targets(third) == (1, 1)
    assert third.roles[P].reason is Reason.SCALE_DOWN


def test_pl1_a_long_stabilisation_window_is_waited_for_too(planner: Build) -> None:
    scene = planner(stabilization_seconds=180.0, roles=wide())
    scene.run(lambda at: 40.0, ticks=3)
    last_load = scene.now
    decisions = scene.run(lambda at: 0.0, ticks=8)
    down = [one.at_seconds for one in decisions if one.changes]
    assert down == [last_load + 180.0]


def test_pl1_one_interval_without_numbers_changes_nothing(planner: Build, load: Build, outage: Build) -> None:
    scene = planner(prefill=2, decode=2)
    scene.run(lambda at: 12.0, ticks=3)
    at = scene.now
    held = scene.tick(outage(at + 30, ProblemKind.NOT_FINITE))
    assert targets(held) == (2, 2)
    assert held.roles[P].reason is Reason.HOLD_METRICS_NOT_FINITE
    after = scene.tick(load(at + 60, 12.0, decodes=2))
    assert targets(after) == (2, 2)
    assert len(scene.state.rates.values) == 4


@pytest.mark.parametrize("kind", list(ProblemKind))
def test_no_usable_metrics_mean_hold_whatever_the_problem(planner: Build, outage: Build, kind: ProblemKind) -> None:
    scene = planner(prefill=3, decode=2)
    for tick in range(1, 30):
        decision = scene.tick(outage(30.0 * tick, kind))
        assert targets(decision) == (3, 2)
        assert decision.roles[P].reason.value == f"Hold{kind.value}"


@pytest.mark.parametrize(("current", "target"), [(1, 2), (5, 5), (9, 8)])
def test_pl9_bounds_hold_without_metrics(planner: Build, outage: Build, current: int, target: int) -> None:
    scene = planner(prefill=current, decode=2, roles=wide(minimum=2, maximum=8))
    assert scene.tick(outage(30.0)).targets[P] == target


def test_after_an_outage_one_low_reading_is_not_enough_to_go_down(planner: Build, load: Build, outage: Build) -> None:
    scene = planner(prefill=2, decode=2)
    scene.run(lambda at: 12.0, ticks=3)
    for _ in range(10):
        scene.tick(outage(scene.now + 30))
    first = scene.tick(load(scene.now + 30, 1.0, decodes=2))
    assert targets(first) == (2, 2)
    assert first.roles[P].reason is Reason.HOLD_STABILIZING
    scene.tick(load(scene.now + 30, 1.0, decodes=2))
    third = scene.tick(load(scene.now + 30, 1.0, decodes=2))
    assert targets(third) == (1, 1)


def test_a_restarted_planner_does_not_go_down_at_once(planner: Build, load: Build) -> None:
    scene = planner(prefill=4, decode=4)
    assert targets(scene.tick(load(1000.0, 1.0, decodes=4))) == (4, 4)


def test_scale_down_follows_the_highest_need_of_the_window(planner: Build) -> None:
    scene = planner(stabilization_seconds=90.0, prefill=3, decode=3)
    scene.run(lambda at: 14.5, ticks=1)
    scene.run(lambda at: 12.0, ticks=1)
    decisions = scene.run(lambda at: 3.0, ticks=5)
    # 3 were needed at 30 s and 2 at 60 s; each counts for 90 s.
    assert [one.targets[P] for one in decisions] == [3, 2, 1, 1, 1]


def test_pl5_an_increase_that_cannot_be_scheduled_does_not_block_the_way_down(planner: Build) -> None:
    scene = planner(schedulable=False)
    scene.run(lambda at: 25.0, ticks=2)
    assert scene.replicas()[D] == 4
    assert scene.fleet()[D].ready == 1
    scene.run(lambda at: 0.0, ticks=3)
    assert scene.replicas() == {P: 1, D: 1}


def test_pl6_a_refused_write_is_asked_again(planner: Build, load: Build) -> None:
    scene = planner()
    refused = scene.tick(load(30.0, 12.0), obey=False)
    again = scene.tick(load(60.0, 12.0))
    assert targets(refused) == targets(again) == (2, 2)
    assert refused.changes
    assert again.changes
    assert len(scene.asked) == 1


def test_pl7_the_same_overload_is_asked_for_once(planner: Build) -> None:
    scene = planner(ready_after=90.0)
    scene.run(lambda at: 12.0, ticks=4, ttft=8.0, tpot=0.3)
    assert len(scene.asked) == 1


def test_pl7_an_increase_that_never_becomes_ready_expires_with_a_warning(planner: Build) -> None:
    scene = planner(schedulable=False, pending_seconds=300.0)
    busy = scene.run(lambda at: 12.0, ticks=11)
    assert [one.expired for one in busy[:10]] == [()] * 10
    decisions = scene.run(lambda at: 3.0, ticks=6)
    assert set(decisions[0].expired) == {P, D}
    assert scene.replicas() == {P: 1, D: 1}, "a lower load may go down again"


def test_corrections_are_frozen_while_an_increase_starts(planner: Build, load: Build) -> None:
    scene = planner(ready_after=1000.0)
    scene.tick(load(30.0, 12.0))
    scene.tick(load(60.0, 12.0, slow=2.0))
    assert scene.state.decode_k == pytest.approx(1.0, rel=0.02)
    assert scene.state.prefill_k == pytest.approx(1.0, rel=0.02)


def test_pl18_a_scale_up_in_progress_is_not_undone_by_a_slow_window(planner: Build) -> None:
    """A burst of 60 s with a start-up of 90 s: no decrease before the new instances were ready for a whole window."""
    scene = planner(ready_after=90.0, stabilization_seconds=60.0)
    scene.run(lambda at: 1.2, ticks=4)
    burst = scene.run(lambda at: 12.0, ticks=2)
    asked_at = burst[0].at_seconds
    after = scene.run(lambda at: 1.2, ticks=8)
    down = [one.at_seconds for one in after if one.changes]
    assert down
    assert down[0] >= asked_at + 90.0 + 60.0
    assert {one.roles[P].reason for one in after if one.at_seconds < down[0]} <= {
        Reason.HOLD_SCALE_UP_IN_FLIGHT,
        Reason.HOLD_STABILIZING,
    }


def test_pl19_a_burst_of_long_prompts_ages_out(planner: Build, load: Build) -> None:
    scene = planner(roles=wide())
    for _ in range(3):
        scene.tick(load(scene.now + 30, 3.3, isl=32_000.0, decodes=scene.decode))
    assert scene.replicas()[P] > 1
    scene.run(lambda at: 0.0, ticks=10)
    assert scene.replicas() == {P: 1, D: 1}
    unknown = replace(load(scene.now + 60, 0.5), input_tokens=None, output_tokens=None)
    held = scene.tick(unknown)
    assert held.problem is not None, "the old length no longer counts, and there is no new one yet"
    assert targets(held) == (1, 1)


def test_requests_without_a_completion_use_the_last_known_lengths(planner: Build, load: Build) -> None:
    scene = planner()
    scene.run(lambda at: 3.0, ticks=2)
    decision = scene.tick(replace(load(90.0, 12.0), input_tokens=None, output_tokens=None))
    assert targets(decision) == (2, 2)
