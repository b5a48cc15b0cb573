"""From target and fleet to actions: the number of instances, drains and one-at-a-time replacement.

Invariants, each a test: an instance that is terminating or draining is never a candidate again, so that a repeated
pass over an unchanged fleet asks for nothing new; a ready instance is drained before it is deleted, any other is
deleted at once; the GPUs of all instances, terminating ones included, stay within the budget; replacing an old
revision never takes the ready instances below the base.
"""

from collections.abc import Iterable

from disagg_operator.core.actions import Action, CancelDrain, Create, Decision, Delete, Drain
from disagg_operator.core.fleet import Instance, Observed, RoleTarget, Target


def decide(target: Target, observed: Observed) -> Decision:
    """Everything to do now. Roles that the target lacks are not touched: their group's deletion takes them away."""
    purse = _Purse(target.gpu_budget, observed.instances)
    actions: list[Action] = []
    wanted: list[tuple[bool, RoleTarget]] = []
    for role in target.roles.values():
        mine = observed.of(role.role)
        actions += _remove(role, mine, observed.now)
        missing = _shortfall(role, mine)
        base_missing = min(missing, max(0, role.floor - sum(1 for instance in mine if instance.serving)))
        wanted += [(True, role)] * base_missing + [(False, role)] * (missing - base_missing)
    unaffordable = 0
    for base, role in sorted(wanted, key=lambda item: not item[0]):
        if purse.pay(role.gpus):
            actions.append(Create(role.role, base))
        else:
            unaffordable += 1
    return Decision(tuple(actions), unaffordable)


class _Purse:
    """What is left of the GPU budget. Failed instances hold nothing; terminating ones still do."""

    def __init__(self, budget: int | None, instances: Iterable[Instance]) -> None:
        held = sum(instance.gpus for instance in instances if not instance.failed)
        self.left = None if budget is None else budget - held

    def pay(self, gpus: int) -> bool:
        if self.left is None:
            return True
        if gpus > self.left:
            return False
        self.left -= gpus
        return True


def _remove(role: RoleTarget, mine: tuple[Instance, ...], now: float) -> list[Action]:
    actions: list[Action] = [
        Delete(instance, "it failed") for instance in mine if instance.failed and not instance.terminating
    ]
    serving = [instance for instance in mine if instance.serving]
    draining = [instance for instance in mine if instance.alive and instance.draining]
    back = _wanted_back(role, serving, draining)
    actions += [CancelDrain(instance) for instance in back]
    for instance in draining:
        if instance in back:
            continue
        if instance.drained:
            actions.append(Delete(instance, "it is drained"))
        elif instance.draining_since is not None and now - instance.draining_since >= role.drain_seconds:
            actions.append(Delete(instance, f"its drain took longer than {role.drain_seconds:g} s"))
    for instance, reason in _victims(role, serving):
        actions.append(Drain(instance, reason) if instance.ready else Delete(instance, reason))
    return actions


def _wanted_back(role: RoleTarget, serving: list[Instance], draining: list[Instance]) -> list[Instance]:
    """Draining instances that fill a gap: cheaper than new ones. Those that have most left to do come first."""
    gap = role.replicas - len(serving)
    usable = [instance for instance in draining if instance.revision == role.revision and instance.scheduled]
    usable.sort(key=lambda instance: (instance.drained, -(instance.draining_since or 0.0), instance.name))
    return usable[: max(0, gap)]


def _shortfall(role: RoleTarget, mine: tuple[Instance, ...]) -> int:
    """New instances that are missing, one more while a replacement has to come up before an old one may go."""
    serving = [instance for instance in mine if instance.serving]
    draining = [instance for instance in mine if instance.alive and instance.draining]
    missing = role.replicas - len(serving) - len(_wanted_back(role, serving, draining))
    return max(0, missing + (1 if _surges(role, serving) else 0))


def _old(role: RoleTarget, serving: Iterable[Instance]) -> list[Instance]:
    return [instance for instance in serving if instance.revision != role.revision]


def _surges(role: RoleTarget, serving: list[Instance]) -> bool:
    """True while an old ready instance may only go after a new one is ready, because the base would break."""
    old = _old(role, serving)
    ready = sum(1 for instance in serving if instance.ready)
    if not old or not all(instance.ready for instance in old) or ready - 1 >= role.floor:
        return False
    coming = any(not instance.ready for instance in serving)
    return len(serving) > role.replicas or (len(serving) == role.replicas and not coming)


def _victims(role: RoleTarget, serving: list[Instance]) -> list[tuple[Instance, str]]:
    old = _old(role, serving)
    limit = role.replicas + (1 if _surges(role, serving) else 0)
    surplus = len(serving) - limit
    if surplus > 0:
        ranked = sorted(serving, key=lambda instance: removal_rank(instance, role.revision))
        noun = "instance is" if role.replicas == 1 else "instances are"
        reason = f"{role.replicas} {role.role.value} {noun} wanted"
        return [(instance, reason) for instance in ranked[:surplus]]
    return [(instance, "its revision is old") for instance in _replaceable(role, old, serving)]


def _replaceable(role: RoleTarget, old: list[Instance], serving: list[Instance]) -> list[Instance]:
    """Old instances that may go now: all that serve nobody, else one, once every other instance is ready."""
    idle = [instance for instance in old if not instance.ready]
    if idle or not old:
        return idle
    if len(serving) < role.replicas or not all(instance.ready for instance in serving):
        return []
    if len(serving) - 1 < role.floor:
        return []
    return [min(old, key=lambda instance: removal_rank(instance, role.revision))]


def removal_rank(instance: Instance, revision: str) -> tuple[bool, bool, bool, bool, float, str]:
    """Sort key of who goes first: unassigned, pending, not ready, old revision, newest."""
    return (
        instance.placed,
        instance.scheduled,
        instance.ready,
        instance.revision == revision,
        -instance.created_at,
        instance.name,
    )
