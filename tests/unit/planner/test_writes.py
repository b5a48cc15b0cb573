"""The order of writes under a GPU budget."""

from __future__ import annotations

from disagg_contract.labels import Role
from disagg_planner.core.fleet import Fleet, Group
from disagg_planner.core.settings import RoleSettings, Settings
from disagg_planner.core.writes import Writes, plan_writes

P, D = Role.PREFILL, Role.DECODE


def settings(budget: int) -> Settings:
    return Settings(roles={role: RoleSettings(maximum=8) for role in (P, D)}, gpu_budget=budget)


def fleet(prefill: tuple[int, int], decode: tuple[int, int]) -> Fleet:
    """(replicas, existing) of each."""
    return {
        role: Group(replicas=replicas, existing=existing, ready=min(replicas, existing))
        for role, (replicas, existing) in ((P, prefill), (D, decode))
    }


def test_pl4_the_decrease_goes_first_and_the_increase_waits_for_its_gpus() -> None:
    targets = {P: 6, D: 2}
    assert plan_writes(targets, fleet((4, 4), (4, 4)), settings(8)) == Writes(now=((D, 2),), waiting=((P, 6),))
    assert plan_writes(targets, fleet((4, 4), (2, 4)), settings(8)) == Writes(waiting=((P, 6),))
    assert plan_writes(targets, fleet((4, 4), (2, 3)), settings(8)) == Writes(waiting=((P, 6),))
    assert plan_writes(targets, fleet((4, 4), (2, 2)), settings(8)) == Writes(now=((P, 6),))
    assert plan_writes(targets, fleet((6, 4), (2, 2)), settings(8)) == Writes()


def test_increases_within_the_budget_are_written_together() -> None:
    assert plan_writes({P: 2, D: 2}, fleet((1, 1), (1, 1)), settings(8)).now == ((P, 2), (D, 2))


def test_terminating_instances_hold_their_gpus() -> None:
    writes = plan_writes({P: 2, D: 2}, fleet((1, 1), (1, 6)), settings(8))
    assert writes.now == ((P, 2), (D, 2)), "their own group may grow into them"
    assert plan_writes({P: 3, D: 2}, fleet((1, 1), (2, 6)), settings(8)).waiting == ((P, 3),)


def test_without_a_budget_nothing_waits() -> None:
    assert plan_writes({P: 6, D: 2}, fleet((4, 4), (4, 4)), settings(0)).now == ((D, 2), (P, 6))
