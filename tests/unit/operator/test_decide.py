"""Instances that are created, drained and deleted."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from disagg_crds import Role
from disagg_operator.core.actions import CancelDrain, Create, Delete, Drain
from disagg_operator.core.decide import decide
from disagg_operator.core.fleet import Instance, Observed, RoleTarget, Target

Make = Callable[..., Instance]


def target(replicas: int, *, base: int = 1, budget: int | None = None, gpus: int = 1, revision: str = "r1") -> Target:
    decode = RoleTarget(role=Role.DECODE, replicas=replicas, base=base, gpus=gpus, revision=revision, drain_seconds=30)
    return Target(deployment="chat", roles={Role.DECODE: decode}, gpu_budget=budget)


def test_creates_what_is_missing_base_first() -> None:
    decision = decide(target(3, base=2), Observed(0.0))
    assert decision.actions == (Create(Role.DECODE, True), Create(Role.DECODE, True), Create(Role.DECODE, False))


def test_asks_for_nothing_when_the_fleet_is_right(make_instance: Make) -> None:
    assert decide(target(2), Observed(0.0, (make_instance(), make_instance()))).actions == ()


def test_a_failed_instance_is_deleted_and_replaced(make_instance: Make) -> None:
    failed = make_instance(failed=True)
    assert decide(target(1), Observed(0.0, (failed,))).actions == (
        Delete(failed, "it failed"),
        Create(Role.DECODE, True),
    )


def test_scale_down_takes_the_least_useful_first(make_instance: Make) -> None:
    ready_old, ready_new = make_instance(created_at=1.0), make_instance(created_at=2.0)
    starting, pinned, gated = (make_instance(state=state) for state in ("bound", "pinned", "gated"))
    fleet = Observed(0.0, (ready_old, ready_new, starting, pinned, gated))
    assert [a.instance for a in decide(target(4), fleet).actions if isinstance(a, Delete)] == [gated]
    assert [a.instance for a in decide(target(3), fleet).actions if isinstance(a, Delete)] == [gated, pinned]
    last = decide(target(1), fleet).actions
    assert [action.instance for action in last if isinstance(action, Delete)] == [gated, pinned, starting]
    assert [action.instance for action in last if isinstance(action, Drain)] == [ready_new]
    assert {action.reason for action in last} == {"1 decode instance is wanted"}
    assert {action.reason for action in decide(target(3), fleet).actions} == {"3 decode instances are wanted"}


def test_pg7_a_terminating_instance_is_no_candidate_in_a_second_pass(make_instance: Make) -> None:
    first, second, third = make_instance(), make_instance(), make_instance()
    (drain,) = decide(target(2), Observed(0.0, (first, second, third))).actions
    assert isinstance(drain, Drain)
    assert drain.instance == third
    marked = replace(third, draining_since=0.0)
    assert decide(target(2), Observed(1.0, (first, second, marked))).actions == ()
    drained = replace(marked, drained=True)
    assert decide(target(2), Observed(2.0, (first, second, drained))).actions == (Delete(drained, "it is drained"),)
    going = replace(drained, terminating=True)  # still reports Ready
    assert decide(target(2), Observed(3.0, (first, second, going))).actions == ()


def test_kv9_a_drain_waits_until_empty_and_has_a_bound(make_instance: Make) -> None:
    busy = make_instance(draining_since=100.0)
    other = make_instance()
    assert decide(target(1), Observed(129.0, (other, busy))).actions == ()
    (late,) = decide(target(1), Observed(130.0, (other, busy))).actions
    assert late == Delete(busy, "its drain took longer than 30 s")


def test_a_drain_is_cancelled_when_the_instance_is_wanted_again(make_instance: Make) -> None:
    draining, other = make_instance(draining_since=5.0), make_instance()
    assert decide(target(2), Observed(6.0, (other, draining))).actions == (CancelDrain(draining),)


def test_budget_counts_terminating_instances(make_instance: Make) -> None:
    going = make_instance(terminating=True, gpus=4)
    decision = decide(target(2, budget=8, gpus=4), Observed(0.0, (going,)))
    assert decision.actions == (Create(Role.DECODE, True),)
    assert decision.unaffordable == 0, "the second waits for the GPUs that come free"
    assert decide(target(3, budget=8, gpus=4), Observed(0.0, (going,))).unaffordable == 1


def test_what_terminates_on_a_lost_node_holds_nothing(make_instance: Make) -> None:
    lost = make_instance(terminating=True, lost=True, gpus=8)
    assert decide(target(1, budget=8, gpus=8), Observed(0.0, (lost,))).actions == (Create(Role.DECODE, True),)
    still_running = replace(lost, terminating=False)
    assert decide(target(2, budget=8, gpus=8), Observed(0.0, (still_running,))).actions == ()


def test_pg6_replacing_a_revision_keeps_the_base_ready(make_instance: Make) -> None:
    first, second = make_instance(), make_instance()
    (drain,) = decide(target(2, revision="r2"), Observed(0.0, (first, second))).actions
    assert isinstance(drain, Drain)
    assert drain.instance == second
    fleet = Observed(0.0, (first, replace(second, draining_since=0.0)))
    assert decide(target(2, revision="r2"), fleet).actions == (Create(Role.DECODE, False),)
    new = make_instance(state="bound", revision="r2")
    assert decide(target(2, revision="r2"), Observed(0.0, (first, new))).actions == ()


def test_pg6_one_instance_is_replaced_by_surging(make_instance: Make) -> None:
    old = make_instance()
    assert decide(target(1, revision="r2"), Observed(0.0, (old,))).actions == (Create(Role.DECODE, False),)
    new = make_instance(state="gated", revision="r2")
    assert decide(target(1, revision="r2"), Observed(0.0, (old, new))).actions == ()
    ready = replace(new, gated=False, node="node-a", ready=True)
    (drain,) = decide(target(1, revision="r2"), Observed(0.0, (old, ready))).actions
    assert isinstance(drain, Drain)
    assert drain.instance == old


states = st.sampled_from(["gated", "pinned", "bound", "ready"])


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Instance, ...]:
    found = []
    for number in range(draw(st.integers(0, 6))):
        state = draw(states)
        found.append(
            Instance(
                name=f"decode-{number}",
                uid=f"uid-{number}",
                role=Role.DECODE,
                gpus=1,
                created_at=float(number),
                revision=draw(st.sampled_from(["r1", "r0"])),
                gated=state == "gated",
                pinned_node="" if state == "gated" else "node-a",
                node="node-a" if state in ("bound", "ready") else "",
                ready=state == "ready",
                draining_since=draw(st.sampled_from([None, None, 0.0])) if state == "ready" else None,
                terminating=draw(st.booleans()) and draw(st.booleans()),
                failed=draw(st.booleans()) and draw(st.booleans()) and draw(st.booleans()),
            )
        )
    return tuple(found)


@given(fleet=fleets(), replicas=st.integers(0, 5), budget=st.integers(0, 8))
def test_one_pass_never_overshoots(fleet: tuple[Instance, ...], replicas: int, budget: int) -> None:
    wanted = target(replicas, budget=budget)
    actions = decide(wanted, Observed(1.0, fleet)).actions
    named = [action.instance.name for action in actions if not isinstance(action, Create)]
    assert len(named) == len(set(named)), "an instance gets one action a pass"
    held = sum(instance.gpus for instance in fleet if not instance.failed)
    created = sum(1 for action in actions if isinstance(action, Create))
    assert created == 0 or held + created <= budget
    assert all(not action.instance.terminating for action in actions if not isinstance(action, Create))
    ready = sum(1 for instance in fleet if instance.serving and instance.ready)
    drained = sum(1 for action in actions if isinstance(action, Drain))
    assert ready - drained >= min(ready, wanted.roles[Role.DECODE].floor)


@given(fleet=fleets(), replicas=st.integers(0, 5))
def test_repeated_passes_converge(fleet: tuple[Instance, ...], replicas: int) -> None:
    wanted, now, serial = target(replicas), 1.0, 100
    for _ in range(60):
        actions = decide(wanted, Observed(now, fleet)).actions
        states_by_uid = {instance.uid: instance for instance in fleet}
        for action in actions:
            if isinstance(action, Create):
                serial += 1
                new = Instance(
                    name=f"decode-{serial}",
                    uid=f"uid-{serial}",
                    role=Role.DECODE,
                    gpus=1,
                    created_at=now,
                    revision="r1",
                )
                states_by_uid[new.uid] = new
            elif isinstance(action, Drain):
                states_by_uid[action.instance.uid] = replace(action.instance, draining_since=now, drained=True)
            elif isinstance(action, CancelDrain):
                states_by_uid[action.instance.uid] = replace(action.instance, draining_since=None, drained=False)
            else:
                states_by_uid[action.instance.uid] = replace(action.instance, terminating=True)
        # What was deleted before this pass is gone; what remains is placed, starts and becomes ready.
        fleet = tuple(
            replace(i, gated=False, node="node-a", pinned_node="node-a", ready=not i.draining or i.ready)
            for i in states_by_uid.values()
            if not any(i.uid == old.uid and old.terminating for old in fleet)
        )
        now += 1.0
    serving = [instance for instance in fleet if instance.serving]
    assert len(serving) == replicas
    assert all(instance.revision == "r1" for instance in serving)
