"""What holds for every decision, whatever is measured."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disagg_contract.labels import Role
from disagg_planner.core.decision import Reason
from disagg_planner.core.observation import Observation, Work
from disagg_planner.core.settings import RoleSettings, Settings
from disagg_planner.core.signals import Problem, ProblemKind
from disagg_planner.core.writes import plan_writes

P, D = Role.PREFILL, Role.DECODE
SETTINGS = Settings(
    roles={P: RoleSettings(minimum=1, maximum=6, gpus=1), D: RoleSettings(minimum=2, maximum=5, gpus=2)},
    gpu_budget=10,
    slo_ttft_seconds=0.25,
    slo_tpot_seconds=0.05,
    stabilization_seconds=60.0,
)
NUMBERS = st.floats(0, 1e7, allow_nan=False)
MAYBE = st.none() | NUMBERS
WORKS = st.none() | st.builds(
    Work, iterations=NUMBERS, busy_seconds=NUMBERS, prompt_tokens=NUMBERS, answer_tokens=NUMBERS
)
PROBLEMS = st.none() | st.sampled_from([Problem(kind, "gone") for kind in ProblemKind])
WINDOWS = st.builds(
    Observation,
    at_seconds=st.just(0.0),
    window_seconds=st.just(30.0),
    started=st.just(0.0) | NUMBERS,
    input_tokens=MAYBE,
    output_tokens=MAYBE,
    hit_rate=st.floats(0, 0.99),
    prefill_work=WORKS,
    decode_work=WORKS,
    transfer_seconds=MAYBE,
    problem=PROBLEMS,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(windows=st.lists(WINDOWS, min_size=1, max_size=12), refused=st.sets(st.integers(0, 11)))
def test_targets_stay_inside_bounds_and_budget(planner: object, windows: list[Observation], refused: set[int]) -> None:
    assert callable(planner)
    scene = planner(decode=2)
    scene.settings = SETTINGS
    for tick, window in enumerate(windows):
        before = scene.replicas()
        seen = replace(window, at_seconds=30.0 * (tick + 1))
        decision = scene.tick(seen, obey=tick not in refused)
        for role, one in decision.roles.items():
            bounds = SETTINGS.roles[role]
            assert bounds.minimum <= one.target <= bounds.maximum
            assert one.changes or one.reason is not Reason.SCALE_DOWN
        assert sum(one.target * SETTINGS.roles[role].gpus for role, one in decision.roles.items()) <= 10
        if window.problem is not None:
            assert decision.targets == before
        held = {role: before[role] for role in before}
        for role, replicas in plan_writes(decision.targets, scene.fleet(), SETTINGS).now:
            held[role] = replicas
        assert sum(count * SETTINGS.roles[role].gpus for role, count in held.items()) <= 10
