"""Gangs that lost members."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from disagg_crds import Condition, ConditionType, DeploymentStatus, Reason, Role, RoleStatus
from disagg_operator.core.breach import find_breach, remains
from disagg_operator.core.decide import decide
from disagg_operator.core.fleet import Instance, Observed, RoleTarget, Target
from disagg_operator.core.gangs import gangs

Make = Callable[..., Instance]


def target(decode: int = 2, *, base: int = 2) -> Target:
    roles = {
        Role.PREFILL: RoleTarget(role=Role.PREFILL, replicas=1, base=1, gpus=1, revision="r1"),
        Role.DECODE: RoleTarget(role=Role.DECODE, replicas=decode, base=base, gpus=1, revision="r1"),
    }
    return Target(deployment="chat", roles=roles, termination_delay_seconds=60.0)


def told(*, scheduled: int = 2, since: float | None = None) -> DeploymentStatus:
    """A status as it was last written; ``since``: of a breach that it tells of."""
    status = "False" if since is None else "True"
    condition = Condition.model_validate(
        {
            "type": ConditionType.MIN_AVAILABLE_BREACHED.value,
            "status": status,
            "reason": Reason.MEMBERS_LOST.value,
            "last_transition_time": datetime.fromtimestamp(since or 0.0, UTC),
        }
    )
    roles = {Role.PREFILL: RoleStatus(scheduled=1), Role.DECODE: RoleStatus(scheduled=scheduled)}
    return DeploymentStatus(conditions=(condition,), roles=roles)


def test_pg10_a_gang_that_was_never_placed_is_not_torn_down(make_instance: Make) -> None:
    waiting = tuple(make_instance(role, "gated") for role in (Role.PREFILL, Role.DECODE, Role.DECODE))
    for status in (DeploymentStatus(), told(scheduled=0), told(since=1.0)):
        assert find_breach(target(), Observed(10_000.0, waiting), status) is None


def test_pg10_what_is_left_of_a_gang_goes_once_and_is_queued_again(make_instance: Make) -> None:
    prefill, kept, gone = make_instance(Role.PREFILL), make_instance(), make_instance(terminating=True, lost=True)
    new = make_instance(state="gated")
    fleet = (prefill, kept, gone, new)
    first = find_breach(target(), Observed(100.0, fleet), told())
    assert first is not None
    assert (first.short, first.since) == ({Role.DECODE: (1, 2)}, 100.0)
    assert first.due(159.0) == 1.0
    later = find_breach(target(), Observed(160.0, fleet), told(scheduled=1, since=100.0))
    assert later is not None
    assert later.due(160.0) == 0.0
    assert later.message == first.message, "no new status while it lasts"
    rest = remains(Observed(160.0, fleet))
    assert set(rest) == {prefill, kept}, "what waits already stays"
    after = (*(replace(i, terminating=True) for i in rest), gone, new)
    assert find_breach(target(), Observed(161.0, after), told(scheduled=1, since=100.0)) is None
    created = decide(target(), Observed(161.0, after)).actions
    assert len(created) == 2
    again = (*after, make_instance(Role.PREFILL, "gated"), make_instance(state="gated"))
    (gang,) = gangs(target(), Observed(162.0, again)).gangs
    assert (len(gang.instances), gang.base) == (3, True)


def test_an_instance_on_a_lost_node_is_not_up(make_instance: Make) -> None:
    fleet = (make_instance(Role.PREFILL), make_instance(), make_instance(lost=True, ready=False))
    assert find_breach(target(), Observed(5.0, fleet), told()) is not None


def test_not_ready_is_no_breach(make_instance: Make) -> None:
    fleet = (make_instance(Role.PREFILL), make_instance(), make_instance(state="bound"))
    assert find_breach(target(), Observed(5.0, fleet), told()) is None


def test_a_base_that_was_raised_is_no_breach(make_instance: Make) -> None:
    fleet = (make_instance(Role.PREFILL), make_instance(), make_instance(state="gated"))
    assert find_breach(target(), Observed(5.0, fleet), told(scheduled=1)) is None


def test_members_that_come_back_end_it(make_instance: Make) -> None:
    fleet = (make_instance(Role.PREFILL), make_instance(), make_instance())
    assert find_breach(target(), Observed(500.0, fleet), told(since=1.0)) is None
