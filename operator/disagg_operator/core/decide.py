"""From target and fleet to actions: the number of instances, drains, replacement of revisions, and roles that go.

Invariants, each a test: an instance that is terminating or draining is never a candidate again, so that a repeated
pass over an unchanged fleet asks for nothing new; a ready instance is drained before it is deleted, any other is
deleted at once; the GPUs of all instances, terminating ones included, stay within the budget; replacing an old
revision never takes the ready instances below the base.
"""

from collections.abc import Sequence

from disagg_crds import Reason
from disagg_operator.core.actions import Action, CancelDrain, Create, Decision, Delete, Drain, Obstacle
from disagg_operator.core.fleet import Instance, Observed, RoleTarget, Target
from disagg_operator.core.ranking import removal_rank
from disagg_operator.core.rollout import Rollout, plan_rollout


def decide(target: Target, observed: Observed) -> Decision:
    """Everything to do now."""
    purse = _Purse(target.gpu_budget, observed.instances)
    rollout = plan_rollout(target, observed)
    actions: list[Action] = []
    wanted: list[tuple[bool, RoleTarget]] = []
    for role in target.roles.values():
        mine = observed.of(role.role)
        actions += _remove(role, mine, rollout, observed.now)
        missing = _shortfall(role, mine, rollout)
        base_missing = min(missing, max(0, role.floor - sum(1 for instance in mine if instance.serving)))
        wanted += [(True, role)] * base_missing + [(False, role)] * (missing - base_missing)
    unaffordable = 0
    broke = False
    for base, role in sorted(wanted, key=lambda item: not item[0]):
        if purse.pay(role.gpus):
            actions.append(Create(role.role, base))
        elif not purse.wait(role.gpus):
            unaffordable += 1
            broke |= base
    actions += _retire(target, observed, forced=broke)
    return Decision(tuple(actions), unaffordable, rollout.obstacle or _starved(target, observed, unaffordable))


class _Purse:
    """What is left of the GPU budget, now and once what is on its way out is gone."""

    def __init__(self, budget: int | None, instances: Sequence[Instance]) -> None:
        self.left = None if budget is None else budget - sum(instance.held_gpus for instance in instances)
        self.later = sum(instance.held_gpus for instance in instances if instance.leaving)

    def pay(self, gpus: int) -> bool:
        if self.left is None:
            return True
        if gpus > self.left:
            return False
        self.left -= gpus
        return True

    def wait(self, gpus: int) -> bool:
        """Whether it can be paid later: what is left now is then set aside for it."""
        if self.left is None or gpus > max(0, self.left) + self.later:
            return False
        self.later -= gpus - max(0, self.left)
        self.left = min(0, self.left)
        return True


def _remove(
    role: RoleTarget, mine: tuple[Instance, ...], rollout: Rollout, now: float, *, why: str = ""
) -> list[Action]:
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
    for instance, reason in _victims(role, serving, rollout):
        reason = why or reason
        actions.append(Drain(instance, reason) if instance.ready else Delete(instance, reason))
    return actions


def _wanted_back(role: RoleTarget, serving: list[Instance], draining: list[Instance]) -> list[Instance]:
    """Draining instances that the current revision lacks: cheaper than new ones.

    Those that have most left to do come first. They come back even where instances of another revision fill the number:
    an update that was taken back half-way keeps what it has not thrown away yet.
    """
    gap = role.replicas - sum(1 for instance in serving if instance.revision == role.revision)
    usable = [instance for instance in draining if instance.revision == role.revision and instance.scheduled]
    usable.sort(key=lambda instance: (instance.drained, -(instance.draining_since or 0.0), instance.name))
    return usable[: max(0, gap)]


def _shortfall(role: RoleTarget, mine: tuple[Instance, ...], rollout: Rollout) -> int:
    """New instances that are missing, those of a surge included."""
    serving = [instance for instance in mine if instance.serving]
    draining = [instance for instance in mine if instance.alive and instance.draining]
    back = len(_wanted_back(role, serving, draining))
    return max(0, role.replicas + rollout.surge.get(role.role, 0) - len(serving) - back)


def _victims(role: RoleTarget, serving: list[Instance], rollout: Rollout) -> list[tuple[Instance, str]]:
    surplus = len(serving) - role.replicas - rollout.surge.get(role.role, 0)
    if surplus > 0:
        due = rollout.victims.get(role.role, ())
        ranked = sorted(serving, key=lambda instance: _rank(instance, role.revision, due=instance in due))
        noun = "instance is" if role.replicas == 1 else "instances are"
        reason = f"{role.replicas} {role.role.value} {noun} wanted"
        return [(instance, reason) for instance in ranked[:surplus]]
    return [(instance, "its revision is old") for instance in rollout.victims.get(role.role, ())]


def _rank(instance: Instance, revision: str, *, due: bool) -> tuple[object, ...]:
    """Of instances that serve, those go first that an update takes away now."""
    placed, scheduled, ready, *rest = removal_rank(instance, revision)
    return (placed, scheduled, ready, not due, *rest)


def _starved(target: Target, observed: Observed, unaffordable: int) -> Obstacle | None:
    """Old instances that stay because the budget does not even hold the replicas."""
    old = any(
        instance.serving and instance.revision != role.revision
        for role in target.roles.values()
        for instance in observed.of(role.role)
    )
    if not unaffordable or not old or target.paused:
        return None
    return Obstacle(
        Reason.GPU_BUDGET_EXCEEDED,
        f"{unaffordable} wanted instances exceed spec.gpuBudget {target.gpu_budget}, so none may be taken away for the "
        "update: raise the budget, or lower the replicas",
    )


_LEFT = "its role left the spec"


def _retire(target: Target, observed: Observed, *, forced: bool) -> list[Action]:
    """Roles that left the spec serve until the others do; they go at once where they hold the room that those need."""
    going = any(instance.draining for role in target.retiring for instance in observed.of(role))
    go = going or forced or observed.no_room or all(_serves(role, observed) for role in target.roles.values())
    actions: list[Action] = []
    for role in target.retiring.values():
        mine = observed.of(role.role)
        if go:
            actions += _remove(role, mine, Rollout({}, {}), observed.now, why=_LEFT)
        else:
            idle = (instance for instance in mine if instance.serving and not instance.ready)
            actions += [Delete(instance, _LEFT) for instance in idle]
    return actions


def _serves(role: RoleTarget, observed: Observed) -> bool:
    ready = sum(1 for instance in observed.of(role.role) if instance.serving and instance.ready)
    return ready >= max(role.floor, min(1, role.replicas))
