"""The planner's core in the loop: OPT-13B on A100, 512/64, TTFT 0.4 s, TPOT 0.04 s; a rate that steps up and down."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from random import Random
from statistics import fmean

import pytest

from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.profile import compute_profile
from disagg_planner.core.decision import Reason
from disagg_planner.core.interpolation import ProfileTable
from disagg_planner.core.settings import RoleSettings, Settings
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.deployment import Deployment, Link, Mode
from disagg_simulator.errors import DeploymentError
from disagg_simulator.options import Fault, Options
from disagg_simulator.planner import PlannerSetup
from disagg_simulator.recording import Outcome

INTERVAL = 20.0
STARTUP = 30.0


@pytest.fixture
def deployment(group):
    """1P1D; further instances take half a minute to start."""
    return Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(replace(group(Role.PREFILL), startup_seconds=STARTUP),),
        decode=(replace(group(Role.DECODE), startup_seconds=STARTUP),),
        link=Link(bytes_per_second=300e9),
    )


@pytest.fixture
def planner(instance):
    """`planner(maximum=…, **settings)`."""
    table = ProfileTable(
        compute_profile(
            prefill=instance,
            decode=instance,
            prefill_batching=BatchingConfig(role=Role.PREFILL),
            decode_batching=BatchingConfig(role=Role.DECODE),
        )
    )

    def make(*, maximum=8, **settings):
        roles = {role: RoleSettings(maximum=maximum) for role in (Role.PREFILL, Role.DECODE)}
        return PlannerSetup(
            table=table,
            settings=Settings(
                slo_ttft_seconds=0.4,
                slo_tpot_seconds=0.04,
                roles=roles,
                interval_seconds=INTERVAL,
                stabilization_seconds=40.0,
                startup_seconds=STARTUP,
                **settings,
            ),
        )

    return make


@pytest.fixture
def steps(columns):
    """`steps((rate, seconds), …)`: Poisson arrivals."""

    def make(*spans):
        rng, begin, arrivals = Random(3), 0.0, []
        for rate, seconds in spans:
            now = begin
            while rate and (now := now + rng.expovariate(rate)) < begin + seconds:
                arrivals.append(now)
            begin += seconds
        return columns(arrivals, 512, 64)

    return make


def mean_ttft(recording, begin, end):
    arrivals = recording.requests.arrival_seconds
    return fmean(
        first - arrival
        for first, arrival in zip(recording.first_token, arrivals, strict=True)
        if begin <= arrival < end
    )


def gpus_over_time(recording):
    """(time, GPUs that exist) after each change."""
    changes = []
    for instance in recording.instances:
        changes.append((instance.started_seconds, instance.gpus))
        if not isnan(instance.stopped_seconds):
            changes.append((instance.stopped_seconds, -instance.gpus))
    total, seen = 0, []
    for seconds, change in sorted(changes):  # what stops at a time makes room for what starts then
        total += change
        seen.append((seconds, total))
    return seen


def test_a_step_of_the_rate_makes_it_scale_and_ttft_recovers(deployment, planner, steps):
    requests = steps((4.0, 200.0), (16.0, 300.0), (2.0, 200.0))
    recording = simulate_cluster(deployment, requests, seed=0, options=Options(planner=planner()))
    assert set(recording.outcome) == {Outcome.COMPLETED}
    assert mean_ttft(recording, 0, 200) < 0.4
    assert mean_ttft(recording, 210, 240) > 0.8
    assert mean_ttft(recording, 350, 500) < 0.4
    decisions = recording.decisions
    assert all(one.at_seconds % INTERVAL == 0 for one in decisions)
    assert {one.role for one in decisions} == {Role.PREFILL, Role.DECODE}
    up = next(one for one in decisions if one.target > one.current and one.at_seconds >= 200)
    assert (up.role, up.at_seconds) == (Role.PREFILL, 220.0)
    assert up.reason == Reason.LOAD_FORECAST
    assert up.sentence.startswith(f"prefill {up.current} -> {up.target}: ")
    down = next(one for one in decisions if one.target < one.current and one.at_seconds > 500)
    assert down.reason == Reason.SCALE_DOWN


def test_an_instance_serves_when_it_has_started_and_stops_when_it_is_empty(deployment, planner, steps):
    requests = steps((4.0, 100.0), (16.0, 200.0), (2.0, 200.0))
    recording = simulate_cluster(deployment, requests, seed=0, options=Options(planner=planner(), series=True))
    added = [number for number, one in enumerate(recording.instances) if one.started_seconds > 0]
    assert added
    for number in added:
        one = recording.instances[number]
        assert one.started_seconds % INTERVAL == 0
        if one.role is Role.PREFILL:
            mine = [index for index in range(len(requests)) if recording.prefill_instance[index] == number]
            assert all(requests.arrival_seconds[index] >= one.started_seconds + STARTUP for index in mine)
            if not isnan(one.stopped_seconds):
                assert all(recording.first_token[index] <= one.stopped_seconds for index in mine)
    assert any(not isnan(recording.instances[number].stopped_seconds) for number in added)


def test_paying_can_begin_with_serving(deployment, planner, steps):
    requests = steps((4.0, 60.0), (16.0, 100.0))
    setup = replace(planner(), paid_while_starting=False)
    recording = simulate_cluster(deployment, requests, seed=0, options=Options(planner=setup))
    assert {one.started_seconds % INTERVAL for one in recording.instances} == {0.0, STARTUP % INTERVAL}


def test_the_gpu_budget_holds_at_every_moment(deployment, planner, steps):
    requests = steps((4.0, 100.0), (30.0, 120.0), (4.0, 200.0))
    recording = simulate_cluster(deployment, requests, seed=0, options=Options(planner=planner(gpu_budget=3)))
    assert max(total for _, total in gpus_over_time(recording)) == 3
    assert any(one.needed is not None and one.needed > one.target for one in recording.decisions)
    assert set(recording.outcome) == {Outcome.COMPLETED}


def test_nothing_is_decided_before_the_first_interval_has_passed(deployment, planner, steps):
    recording = simulate_cluster(
        deployment, steps((16.0, INTERVAL - 1.0)), seed=0, options=Options(planner=planner(), until_seconds=19.9)
    )
    assert recording.decisions == []
    assert len(recording.instances) == 2


def test_a_colocated_deployment_has_nothing_that_a_planner_scales(group, planner, steps):
    deployment = Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER),))
    with pytest.raises(DeploymentError, match="a planner scales prefill and decode"):
        simulate_cluster(deployment, steps((1.0, 10.0)), seed=0, options=Options(planner=planner()))


def test_an_instance_that_comes_back_is_not_replaced_and_one_that_does_not_is(deployment, planner, steps):
    requests = steps((4.0, 120.0))
    for seconds, instances in ((15.0, 2), (float("inf"), 3)):
        fault = Fault(at_seconds=30.0, role=Role.DECODE, for_seconds=seconds)
        options = Options(planner=planner(), faults=(fault,))
        recording = simulate_cluster(deployment, requests, seed=0, options=options)
        assert set(recording.outcome) == {Outcome.COMPLETED}
        assert len(recording.instances) == instances
    assert any(one.reason == Reason.OUTSIDE_BOUNDS and one.role is Role.DECODE for one in recording.decisions)


def test_a_run_that_nothing_can_finish_ends_although_the_planner_goes_on(deployment, planner, steps):
    roles = {Role.PREFILL: RoleSettings(maximum=4), Role.DECODE: RoleSettings(scaled=False)}
    setup = planner()
    setup = replace(setup, settings=replace(setup.settings, roles=roles))
    options = Options(planner=setup, faults=(Fault(at_seconds=30.0, role=Role.DECODE),))
    recording = simulate_cluster(deployment, steps((1.0, 60.0)), seed=0, options=options)
    assert Outcome.UNFINISHED in recording.outcome


def test_roles_may_start_at_different_speeds(deployment, planner, steps):
    """A decode instance that was asked for after a prefill one may serve before it."""
    slow = replace(deployment, prefill=(replace(deployment.prefill[0], startup_seconds=55.0),))
    recording = simulate_cluster(slow, steps((4.0, 60.0), (40.0, 200.0)), seed=0, options=Options(planner=planner()))
    assert set(recording.outcome) == {Outcome.COMPLETED}
    assert {Role.PREFILL, Role.DECODE} == {one.role for one in recording.instances[2:]}
