"""Conditions and status from facts."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from disagg_crds import ConditionType, DeploymentStatus, Reason, Role, find_condition
from disagg_operator.core.conditions import Facts, Failure
from disagg_operator.core.fit import Fit
from disagg_operator.core.fleet import Instance, Observed, RoleTarget, RouterView, Target, count
from disagg_operator.core.gangs import gangs
from disagg_operator.core.placement import NoRoom
from disagg_operator.core.status import PlacementFacts, deployment_status, group_status, transitions

Make = Callable[..., Instance]
FITS = Fit(True, Reason.FITS, "it fits")
ROUTER = RouterView(desired=1, current=1, ready=1, updated=1)


def facts(instances: Sequence[Instance], *, decode: int = 1, revision: str = "r1", **fields: object) -> Facts:
    roles = {
        Role.PREFILL: RoleTarget(role=Role.PREFILL, replicas=1, base=1, gpus=1, revision=revision),
        Role.DECODE: RoleTarget(role=Role.DECODE, replicas=decode, base=1, gpus=1, revision=revision),
    }
    observed = Observed(0.0, tuple(instances))
    given: dict[str, object] = {
        "roles": roles,
        "counts": {role: count(target, instances) for role, target in roles.items()},
        "router": ROUTER,
        "gang": gangs(Target(deployment="chat", roles=roles), observed),
        "fit": FITS,
        "domain": "rack-1",
        **fields,
    }
    return Facts(**given)  # type: ignore[arg-type]


def status(
    facts: Facts, *, previous: DeploymentStatus | None = None, now: float = 0.0, generation: int = 1
) -> DeploymentStatus:
    return deployment_status(
        facts,
        placement=PlacementFacts(domain=facts.domain),
        previous=previous or DeploymentStatus(),
        generation=generation,
        revision="r",
        endpoint=None,
        now=now,
    )


def answer(status: DeploymentStatus, kind: ConditionType) -> tuple[str, str]:
    condition = find_condition(status.conditions, kind)
    assert condition is not None
    return condition.status, condition.reason


def message(status: DeploymentStatus, kind: ConditionType) -> str:
    condition = find_condition(status.conditions, kind)
    assert condition is not None
    return condition.message


def test_why_an_instance_does_not_start_is_said(make_instance: Make) -> None:
    stuck = make_instance(Role.DECODE, ready=False, trouble="image nope/x:1 cannot be pulled")
    found = status(facts([make_instance(Role.PREFILL), stuck, make_instance(Role.DECODE)], decode=2))
    assert message(found, ConditionType.READY) == "decode: 1 of 2 ready, 2 scheduled (image nope/x:1 cannot be pulled)"
    healed = status(facts([make_instance(Role.PREFILL), make_instance(Role.DECODE, trouble="it ended once")]))
    assert answer(healed, ConditionType.READY) == ("True", "AllInstancesReady")


def test_everything_ready(make_instance: Make) -> None:
    found = status(facts([make_instance(Role.PREFILL), make_instance(Role.DECODE)]))
    assert answer(found, ConditionType.READY) == ("True", "AllInstancesReady")
    assert answer(found, ConditionType.AVAILABLE) == ("True", "MinimumAvailable")
    assert answer(found, ConditionType.PROGRESSING) == ("False", "Reconciled")
    assert answer(found, ConditionType.GANG_SCHEDULED) == ("True", "GangBound")
    assert answer(found, ConditionType.MODEL_FITS) == ("True", "Fits")
    assert found.roles[Role.DECODE].summary == "1/1"


def test_not_scheduled_and_not_ready_are_different_reasons(make_instance: Make) -> None:
    bound = [make_instance(Role.PREFILL, "bound"), make_instance(Role.DECODE, "bound")]
    assert answer(status(facts(bound)), ConditionType.READY) == ("False", "InstancesNotReady")
    pinned = [make_instance(Role.PREFILL, "pinned"), make_instance(Role.DECODE, "pinned")]
    assert answer(status(facts(pinned)), ConditionType.READY) == ("False", "InstancesNotScheduled")
    assert answer(status(facts(pinned)), ConditionType.GANG_SCHEDULED) == ("False", "GangPlaced")
    assert answer(status(facts([])), ConditionType.READY) == ("False", "InstancesNotCreated")
    gated = [make_instance(Role.PREFILL, "gated"), make_instance(Role.DECODE, "gated")]
    lack = NoRoom(Reason.INSUFFICIENT_CAPACITY, "2 GPUs needed, 1 free", "rack-1", {"nvidia.com/gpu": 1})
    found = status(facts(gated, no_room=lack))
    assert answer(found, ConditionType.GANG_SCHEDULED) == ("False", "InsufficientCapacity")
    assert answer(found, ConditionType.AVAILABLE) == ("False", "InstancesNotScheduled")
    assert found.placement.missing == {"nvidia.com/gpu": "1"}
    assert found.placement.best_domain == "rack-1"


def test_an_update_is_told_from_instances_that_are_missing(make_instance: Make) -> None:
    both = [make_instance(Role.PREFILL, revision="r2"), make_instance(Role.DECODE)]
    found = status(facts(both, revision="r2"))
    assert answer(found, ConditionType.READY) == ("False", "Updating")
    assert message(found, ConditionType.READY) == "decode: 0 of 1 of this revision ready, 1 of an old one left"


def test_a_further_instance_without_room_says_why(make_instance: Make) -> None:
    three = [make_instance(Role.PREFILL), make_instance(Role.DECODE), make_instance(Role.DECODE, "gated")]
    lack = NoRoom(Reason.INSUFFICIENT_CAPACITY, "1 GPU needed, 0 free", "rack-1", {"nvidia.com/gpu": 1})
    found = status(facts(three, decode=2, no_room=lack))
    assert answer(found, ConditionType.READY) == ("False", "InstancesNotScheduled")
    assert message(found, ConditionType.READY) == "decode: 1 of 2 ready, 1 scheduled; 1 GPU needed, 0 free"
    assert answer(found, ConditionType.GANG_SCHEDULED) == ("True", "GangBound")


def test_op2_ready_means_the_current_generation(make_instance: Make) -> None:
    old = [make_instance(Role.PREFILL), make_instance(Role.DECODE)]
    first = status(facts(old))
    assert first.observed_generation == 1
    second = status(facts(old, revision="r2"), previous=first, generation=2)
    assert answer(second, ConditionType.READY) == ("False", "Updating")
    assert second.observed_generation == 2
    new = [make_instance(role, revision="r2") for role in (Role.PREFILL, Role.DECODE)]
    third = status(facts([*old, *new], revision="r2"), previous=second, generation=2)
    assert answer(third, ConditionType.READY)[0] == "False", "old instances still serve"
    fourth = status(facts(new, revision="r2"), previous=third, generation=2)
    assert answer(fourth, ConditionType.READY) == ("True", "AllInstancesReady")


def test_op3_counts_are_computed_afresh(make_instance: Make) -> None:
    prefill, decode = make_instance(Role.PREFILL), make_instance(Role.DECODE)
    more = [make_instance(Role.DECODE) for _ in range(4)]
    grown = status(facts([prefill, decode, *more], decode=5))
    assert grown.roles[Role.DECODE].updated == 5
    shrunk = status(facts([prefill, decode]), previous=grown)
    assert shrunk.roles == status(facts([prefill, decode])).roles
    assert answer(shrunk, ConditionType.READY) == ("True", "AllInstancesReady")


def test_op5_transition_times_move_only_with_the_status(make_instance: Make) -> None:
    running = [make_instance(Role.PREFILL), make_instance(Role.DECODE)]
    found = status(facts(running), now=1000.0)
    for later in range(5):
        again = status(facts(running), previous=found, now=2000.0 + later)
        assert again == found
    broken = status(facts([replace(running[0], ready=False), running[1]]), previous=found, now=3000.0)
    ready = find_condition(broken.conditions, ConditionType.READY)
    fits = find_condition(broken.conditions, ConditionType.MODEL_FITS)
    assert ready is not None
    assert fits is not None
    assert ready.last_transition_time.timestamp() == 3000.0
    assert fits.last_transition_time.timestamp() == 1000.0


def test_failures_budget_and_fit_have_reasons_of_their_own(make_instance: Make) -> None:
    running = [make_instance(Role.PREFILL)]
    quota = status(facts(running, failure=Failure(Reason.QUOTA_EXCEEDED, "exceeded quota: gpus")))
    assert answer(quota, ConditionType.READY) == ("False", "QuotaExceeded")
    poor = status(facts(running, unaffordable=1))
    assert answer(poor, ConditionType.READY) == ("False", "GpuBudgetExceeded")
    big = status(facts([], fit=Fit(False, Reason.INSUFFICIENT_GPU_MEMORY, "too big")))
    assert answer(big, ConditionType.MODEL_FITS) == ("False", "InsufficientGpuMemory")
    assert answer(big, ConditionType.PROGRESSING) == ("False", "InsufficientGpuMemory")


def test_a_router_that_is_not_ready_keeps_the_deployment_unready(make_instance: Make) -> None:
    running = [make_instance(Role.PREFILL), make_instance(Role.DECODE)]
    found = status(facts(running, router=RouterView(desired=1)))
    assert answer(found, ConditionType.READY) == ("False", "RouterNotReady")
    assert answer(found, ConditionType.AVAILABLE) == ("False", "RouterNotReady")


def test_events_are_transitions(make_instance: Make) -> None:
    running = [make_instance(Role.PREFILL), make_instance(Role.DECODE)]
    ready = status(facts(running))
    assert [note.reason for note in transitions(DeploymentStatus(), ready)] == ["AllInstancesReady", "GangBound"]
    assert transitions(ready, ready) == ()
    lack = NoRoom(Reason.INSUFFICIENT_CAPACITY, "no room", "rack-1", {})
    gated = [make_instance(Role.PREFILL, "gated"), make_instance(Role.DECODE, "gated")]
    notes = transitions(ready, status(facts(gated, no_room=lack), previous=ready))
    assert ("Warning", "InsufficientCapacity") in {(note.type, note.reason) for note in notes}


def test_the_group_shows_instances_to_scale(make_instance: Make) -> None:
    role = RoleTarget(role=Role.DECODE, replicas=3, base=1, gpus=1, revision="r1")
    fleet = [make_instance(), make_instance(state="gated"), make_instance(terminating=True)]
    found = group_status(count(role, fleet), selector="a=b", generation=4)
    assert (found.replicas, found.ready_replicas, found.selector, found.observed_generation) == (2, 1, "a=b", 4)
