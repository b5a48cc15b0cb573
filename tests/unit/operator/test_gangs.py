"""Which pods are placed together, and what becomes of attempts that are late."""

from collections.abc import Callable
from dataclasses import replace

from disagg_crds import Role
from disagg_operator.core.fleet import Instance, Observed, RoleTarget, Target
from disagg_operator.core.gangs import Gang, gangs, overdue

Make = Callable[..., Instance]


def target(prefill: int = 1, decode: int = 1, *, base: int = 1) -> Target:
    roles = {
        Role.PREFILL: RoleTarget(role=Role.PREFILL, replicas=prefill, base=base, gpus=1, revision="r1"),
        Role.DECODE: RoleTarget(role=Role.DECODE, replicas=decode, base=base, gpus=1, revision="r1"),
    }
    return Target(deployment="chat", roles=roles, bind_deadline_seconds=60)


def test_the_base_waits_until_all_its_pods_exist(make_instance: Make) -> None:
    state = gangs(target(), Observed(0.0, (make_instance(Role.PREFILL, "gated"),)))
    assert state.gangs == ()
    assert state.absent == 1


def test_pg2_the_base_gang_is_the_minimum_of_every_role(make_instance: Make) -> None:
    fleet = tuple(make_instance(role, "gated") for role in (Role.PREFILL, Role.DECODE) for _ in range(2))
    (gang,) = gangs(target(2, 2, base=2), Observed(0.0, fleet)).gangs
    assert set(gang.instances) == set(fleet)
    assert gang.base


def test_pg4_extras_wait_for_base_scheduled_not_ready(make_instance: Make) -> None:
    extras = [make_instance(Role.PREFILL, "gated", created_at=50.0 + n) for n in range(2)]
    pinned = [make_instance(role, "pinned") for role in (Role.PREFILL, Role.DECODE)]
    assert gangs(target(3, 1), Observed(0.0, (*pinned, *extras))).gangs == ()
    bound = [replace(instance, node="node-a") for instance in pinned]
    state = gangs(target(3, 1), Observed(0.0, (*bound, *extras)))
    assert state.base_scheduled
    assert not any(instance.ready for instance in bound)
    assert state.gangs == tuple(Gang(extra.name, (extra,), False) for extra in extras)


def test_pg5_from_zero_again_is_the_same_as_the_first_time(make_instance: Make) -> None:
    first = tuple(make_instance(role, "gated") for role in (Role.PREFILL, Role.DECODE))
    before = gangs(target(), Observed(0.0, first))
    assert gangs(target(0, 0), Observed(1.0, ())).gangs == ()
    again = tuple(make_instance(role, "gated") for role in (Role.PREFILL, Role.DECODE))
    after = gangs(target(), Observed(2.0, again))
    assert (len(before.gangs[0].instances), before.gangs[0].base) == (2, True)
    assert (len(after.gangs[0].instances), after.gangs[0].base) == (2, True)


def test_a_lost_member_is_replaced_alone(make_instance: Make) -> None:
    prefill, lost = make_instance(Role.PREFILL), make_instance(Role.DECODE, terminating=True)
    new = make_instance(Role.DECODE, "gated")
    (gang,) = gangs(target(), Observed(0.0, (prefill, lost, new))).gangs
    assert gang.instances == (new,)
    assert gang.base


def test_late_attempts_are_given_back_whole(make_instance: Make) -> None:
    bound, stuck = make_instance(Role.PREFILL, "bound"), make_instance(Role.DECODE, "pinned")
    assert overdue(target(), Observed(159.0, (bound, stuck))) == ()
    assert overdue(target(), Observed(160.0, (bound, stuck))) == ((bound, stuck),)


def test_a_late_replacement_takes_nobody_else_along(make_instance: Make) -> None:
    serving = make_instance(Role.PREFILL, placed_at=1.0)
    stuck = make_instance(Role.DECODE, "pinned", gang="decode-7")
    assert overdue(target(), Observed(200.0, (serving, stuck))) == ((stuck,),)


def test_pg10_a_gang_that_was_never_placed_is_not_torn_down(make_instance: Make) -> None:
    fleet = (make_instance(Role.PREFILL, "gated"), make_instance(Role.DECODE, "gated"))
    assert overdue(target(), Observed(1e9, fleet)) == ()


def test_the_first_instances_of_a_new_pairing_are_one_gang(make_instance: Make) -> None:
    wanted = target()
    wanted = replace(wanted, roles={role: replace(section, pairing="k2") for role, section in wanted.roles.items()})
    old = tuple(make_instance(role, pairing="k1") for role in (Role.PREFILL, Role.DECODE))
    new = tuple(make_instance(role, "gated", pairing="k2") for role in (Role.PREFILL, Role.DECODE))
    (gang,) = gangs(wanted, Observed(0.0, (*old, *new))).gangs
    assert gang == Gang(new[0].name, new, False)
    further = make_instance(Role.PREFILL, "gated", pairing="k2")
    both = gangs(wanted, Observed(0.0, (*old, *new, further))).gangs
    assert [len(gang.instances) for gang in both] == [2, 1]
    placed = tuple(replace(instance, pinned_node="node-a", gated=False) for instance in new)
    assert [g.instances for g in gangs(wanted, Observed(0.0, (*old, *placed, further))).gangs] == [(further,)]
