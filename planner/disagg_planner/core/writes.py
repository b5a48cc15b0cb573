"""In which order targets are written, so that the GPUs in use never pass the budget.

Decreases go first. An increase is written only when all instances that exist, those still draining or terminating
included, leave room for it; until then it waits. When a decrease could not be written, the caller must not go on: the
increases of that decision are void, because the room that they counted on is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from disagg_contract.labels import Role
from disagg_planner.core.fleet import Fleet
from disagg_planner.core.settings import Settings


@dataclass(frozen=True, slots=True)
class Writes:
    """Replicas to write now, in order, and those that wait for room."""

    now: tuple[tuple[Role, int], ...] = ()
    waiting: tuple[tuple[Role, int], ...] = ()


def plan_writes(targets: Mapping[Role, int], fleet: Fleet, settings: Settings) -> Writes:
    """Next writes towards `targets` from the fleet as it is."""
    down = tuple((role, target) for role, target in targets.items() if target < fleet[role].replicas)
    up = tuple((role, target) for role, target in targets.items() if target > fleet[role].replicas)
    if down and up and settings.gpu_budget > 0:
        return Writes(now=down, waiting=up)
    if settings.gpu_budget <= 0:
        return Writes(now=down + up)
    now, waiting = list(down), []
    held = {role: max(group.existing, group.replicas) for role, group in fleet.items()}
    for role, target in up:
        after = held | {role: max(held[role], target)}
        if sum(count * settings.roles[one].gpus for one, count in after.items()) <= settings.gpu_budget:
            held = after
            now.append((role, target))
        else:
            waiting.append((role, target))
    return Writes(now=tuple(now), waiting=tuple(waiting))
