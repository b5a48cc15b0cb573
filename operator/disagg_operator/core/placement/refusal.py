"""Why a gang is nowhere: what is missing, by how much, and in which domain it is least.

Amounts come first. Where they would do, some rule is in the way, and the one whose absence would let the gang in is
named. Only the domains that lack least of the devices are packed again for the answer: the others can't be the best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from disagg_contract.labels import HOSTNAME
from disagg_crds import Reason
from disagg_operator.core.placement.attempt import Budget, Ground, Plan, wishes
from disagg_operator.core.placement.domains import Domain, carries, domain_of
from disagg_operator.core.placement.explain import Shortage, explain, shortage
from disagg_operator.core.placement.items import Item
from disagg_operator.core.placement.packing import pack
from disagg_operator.core.placement.request import GangRequest, NoRoom, Pairing, RoleRule
from disagg_operator.core.placement.snapshot import Snapshot
from disagg_operator.core.quantity import CPU, MEMORY, PODS, show

MOST_PACKED = 64
"""Domains packed again for the answer."""
_PART = 10
"""Part of a plan's steps that looking for the rule in the way may take, each time."""


@dataclass(frozen=True, slots=True)
class _Tried:
    domain: Domain
    members: tuple[int, ...]
    shortage: Shortage


def refuse(
    ground: Ground, tried: Sequence[tuple[Domain, tuple[int, ...]]], budget: Budget, snapshot: Snapshot
) -> NoRoom:
    """The answer for a gang that fits into none of the domains ``tried``, given with their usable nodes."""
    request = ground.request
    usable = [(domain, members) for domain, members in tried if members]
    if not usable:
        return NoRoom(Reason.NO_ELIGIBLE_NODES, _nobody(request, snapshot, bool(tried)))
    oversized = _oversized(ground)
    if oversized is not None:
        return oversized
    plan = Plan(ground, wishes(request)[-1])
    best = min(_shortages(plan, usable), key=lambda attempt: (attempt.shortage.rank, attempt.domain.value))
    reason = Reason.INSUFFICIENT_CAPACITY
    message = explain(
        best.shortage,
        names=plan.names(),
        pods=len(request.pods),
        required=request.required,
        domain=best.domain.value,
    )
    missing = best.shortage.missing
    if not missing and not best.shortage.left_over:
        message, missing = _rule(ground, best)
    if budget.hit:
        message += f"; the search stopped after {request.step_limit} steps, so a packing may exist"
        reason = Reason.SEARCH_BOUND_HIT
    unknown = [key for key in _levels(request) if key != HOSTNAME and not carries(ground.nodes, key)]
    if unknown:
        message += f"; no node has the label {' or '.join(unknown)}, so each node counts as a domain of its own"
        reason = Reason.UNKNOWN_TOPOLOGY_KEY
    if request.excluded:
        message += f"; left out for now: {', '.join(sorted(request.excluded))}"
    return NoRoom(reason, message, best.domain.value, missing, budget.hit)


def _levels(request: GangRequest) -> list[str]:
    """Levels that the gang must not cross."""
    rules = request.rules.values()
    return [key for key in dict.fromkeys((request.required, *(rule.required for rule in rules))) if key]


def _shortages(plan: Plan, usable: Sequence[tuple[Domain, tuple[int, ...]]]) -> list[_Tried]:
    ground = plan.ground
    devices = len([resource for resource in ground.dimensions if resource not in (CPU, MEMORY, PODS)])

    def lack(members: Sequence[int]) -> int:
        totals = ground.totals(members)
        return sum(max(0, need - have) for need, have in zip(ground.needed[:devices], totals[:devices], strict=True))

    ranked = sorted(usable, key=lambda item: (lack(item[1]), item[0].value))
    least = lack(ranked[0][1])
    found = []
    for domain, members in ranked[:MOST_PACKED]:
        if lack(members) > least:
            break
        items = [Item(item.size, item.bins) for item in plan.items(members)[0]]
        free = [ground.room[index] for index in members]
        packing = pack(items, free, step_limit=0)
        found.append(_Tried(domain, members, shortage(items, free, ground.dimensions, packing, devices=devices)))
    return found


def _rule(ground: Ground, best: _Tried) -> tuple[str, dict[str, int]]:
    """The rule that keeps out a gang whose amounts would do, and the devices of those it keeps out."""
    request = ground.request
    start = f"{len(request.pods)} pods would find the room in {best.domain.value}, but not "
    for words, relaxed in _relaxed(request):
        attempt = Plan(ground.asked(relaxed), wishes(relaxed)[-1])
        packing = attempt.pack(best.members, Budget(request.step_limit // _PART, alone=True))
        if packing.bins is not None:
            return _by_how_much(ground, best, start + words)
    return _by_how_much(ground, best, start + "with all rules of its roles at once")


def _by_how_much(ground: Ground, best: _Tried, message: str) -> tuple[str, dict[str, int]]:
    """The message with what the first role or instance lacks that finds no domain of its level by itself."""
    plan = Plan(ground, wishes(ground.request)[-1])
    for bond in plan.bonds:
        homes: dict[int, list[int]] = {}
        for index, home in zip(
            best.members, (ground.levels.of(bond.level)[index] for index in best.members), strict=True
        ):
            homes.setdefault(home, []).append(index)
        needed = [sum(axis) for axis in zip(*[plan.sizes[unit] for unit in bond.units], strict=True)]
        lacks: list[tuple[int, str, dict[str, int], dict[str, int]]] = []
        for home, members in homes.items():
            if bond.home in (None, home):
                free = ground.totals(members)
                lack = {
                    resource: need - have
                    for resource, need, have in zip(ground.dimensions, needed, free, strict=True)
                    if need > have
                }
                name = domain_of(ground.nodes[members[0]], bond.level)[1]
                devices = sum(value for resource, value in lack.items() if resource not in (CPU, MEMORY))
                lacks.append((devices, name, lack, dict(zip(ground.dimensions, free, strict=True))))
        if lacks and all(lack for _, _, lack, _ in lacks):
            _, name, lack, free_there = min(lacks, key=lambda item: item[:2])
            amounts = ", ".join(
                f"{show(resource, value + free_there[resource])} {resource} needed in one, "
                f"{show(resource, free_there[resource])} free in {name}"
                for resource, value in lack.items()
            )
            return f"{message}: {amounts}", lack
    return message, {}


def _relaxed(request: GangRequest) -> list[tuple[str, GangRequest]]:
    """The request without one of its rules, and the words for what stood in the way."""
    found: list[tuple[str, GangRequest]] = []
    for role, rule in sorted(request.rules.items()):
        if rule.spread is not None and rule.spread.most is not None:
            words = f"with at most {rule.spread.most} {role} instances in one domain of {rule.spread.level}"
            found.append((words, _with(request, role, replace(rule, spread=None))))
        if rule.required:
            words = f"with all of {role} in one domain of {rule.required}"
            found.append((words, _with(request, role, replace(rule, required=None))))
        if rule.instance:
            words = f"with each instance of {role} in one domain of {rule.instance}"
            found.append((words, _with(request, role, replace(rule, instance=None))))
    if request.pairing is Pairing.REQUIRED:
        words = "with the same stage of prefill and decode on one node"
        found.append((words, replace(request, pairing=Pairing.NONE)))
    return found


def _with(request: GangRequest, role: str, rule: RoleRule) -> GangRequest:
    rules: Mapping[str, RoleRule] = {**request.rules, role: rule}
    return replace(request, rules=rules)


def _oversized(ground: Ground) -> NoRoom | None:
    """A pod that no node could take even if it were empty: only the pods of an instance may be spread over nodes."""
    seen: set[tuple[object, ...]] = set()
    for pod, size in zip(ground.request.pods, ground.sizes, strict=True):
        if (pod.kind, size) in seen:
            continue
        seen.add((pod.kind, size))
        nodes = [node for node in ground.nodes if pod.accepts(node)]
        for resource, need in zip(ground.dimensions, size, strict=True):
            largest = max((node.allocatable.get(resource, 0) for node in nodes), default=0)
            if nodes and need > largest:
                message = (
                    f"{pod.name} needs {show(resource, need)} {resource} on one node and the largest has "
                    f"{show(resource, largest)}; only gpusPerPod spreads an instance over nodes"
                )
                return NoRoom(Reason.INSUFFICIENT_CAPACITY, message, None, {resource: need - largest})
    return None


def _nobody(request: GangRequest, snapshot: Snapshot, any_domain: bool) -> str:
    if not any_domain and request.within is not None and request.within in request.excluded:
        return f"domain {request.within}, where the deployment's other pods are, is kept for a gang that waits longer"
    if not any_domain and request.within is not None:
        return f"domain {request.within}, where the deployment's other pods are, has no nodes any more"
    if not any_domain and request.excluded:
        return f"every domain is left out for now: {', '.join(sorted(request.excluded))}"
    ready = sum(1 for node in snapshot.nodes if node.schedulable)
    return (
        f"none of {len(snapshot.nodes)} nodes ({ready} ready and not cordoned) accepts the pods: "
        "look at node selectors, node affinity, taints and tolerations"
    )
