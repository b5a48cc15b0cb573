"""From a gang and a snapshot to an assignment of every pod, or to what is missing.

Candidates are tried in this order: the domain the deployment already lives in, then domains of the preferred level,
then domains of the required level; within a level the fullest first, so that large holes stay large. The first domain
in which the whole gang packs wins. Ties go to the smaller label value, so equal inputs give equal answers. Wishes of
roles come before the order of domains: a domain that meets them all beats a fuller one that does not.

Where nothing fits and the gang may preempt, the same is done once more on the cluster as it would be without the pods
of lower priority; then the domain wins in which the fewest of them have to go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from disagg_operator.core.placement.attempt import Budget, Ground, Plan, Wishes, wishes
from disagg_operator.core.placement.domains import Domain, domains
from disagg_operator.core.placement.refusal import refuse
from disagg_operator.core.placement.request import GangRequest, NoRoom, Pairing, Placed, Present, RoleRule, Spread
from disagg_operator.core.placement.snapshot import NodeView, Snapshot
from disagg_operator.core.placement.victims import Eviction, evictions, preemptible

__all__ = ["GangRequest", "NoRoom", "Pairing", "Placed", "Present", "RoleRule", "Spread", "plan"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A domain to try; ``members`` are the places of its usable nodes, ``totals`` what they have free together."""

    domain: Domain
    members: tuple[int, ...]
    totals: tuple[int, ...]
    preferred: bool


@dataclass(frozen=True, slots=True)
class _Success:
    candidate: Candidate
    nodes: dict[str, NodeView]
    wishes: Wishes
    refused: int


def plan(request: GangRequest, snapshot: Snapshot) -> Placed | NoRoom:
    """Place the whole gang in one domain, or nothing."""
    if not request.pods:
        return Placed(Domain("", "", ()), {})
    if request.later and request.required is not None and request.within is None:
        return _with_later(request, snapshot)
    return _plan(request, snapshot)


def _with_later(request: GangRequest, snapshot: Snapshot) -> Placed | NoRoom:
    """A gang whose further instances have to follow it: first a domain that takes them all, then one for it alone."""
    alone, pods = replace(request, later=()), "pod" if len(request.later) == 1 else "pods"
    whole = replace(alone, pods=(*request.pods, *request.later), preferred=None, preemption=False)
    ahead = _plan(whole, snapshot)
    if isinstance(ahead, Placed):
        outcome = _plan(replace(alone, within=ahead.domain.value), snapshot)
        if isinstance(outcome, Placed):
            where = f"{_where(request, outcome.nodes, outcome.domain)}: {_choice(ahead)}"
            return replace(outcome, message=f"{where}, and its {len(request.later)} further {pods} too")
    outcome = _plan(alone, snapshot)
    if isinstance(outcome, Placed):
        text = f"{outcome.message}; no domain has room for its {len(request.later)} further {pods} too"
        return replace(outcome, message=text)
    return outcome


def _plan(request: GangRequest, snapshot: Snapshot) -> Placed | NoRoom:
    ground = Ground(request, snapshot)
    found = candidates(ground)
    budget = Budget(request.step_limit, alone=len(found) == 1)
    success = _first(ground, found, budget)
    if success is not None:
        return _placed(request, success, len(found), budget)
    if request.preemption:
        outcome = _preempt(request, snapshot, budget)
        if outcome is not None:
            return outcome
    required = [(item.domain, item.members) for item in found if not item.preferred]
    return refuse(ground, required, budget, snapshot)


def candidates(ground: Ground) -> list[Candidate]:
    """Domains in the order of trying."""
    request = ground.request
    required = [
        domain
        for domain in domains(ground.nodes, request.required)
        if (request.within is None or domain.value == request.within) and domain.value not in request.excluded
    ]
    narrow: list[Domain] = []
    if request.preferred:
        home = {node.name: number for number, domain in enumerate(required) for node in domain.nodes}
        allowed = [node for domain in required for node in domain.nodes]
        # A domain of the preferred level counts only if it does not cross a required one.
        narrow = [
            domain
            for domain in domains(allowed, request.preferred)
            if domain.value not in request.excluded and len({home[node.name] for node in domain.nodes}) == 1
        ]

    def ranked(group: Sequence[Domain], preferred: bool) -> list[Candidate]:
        made = []
        for domain in group:
            members = ground.members(domain)
            made.append(Candidate(domain, members, ground.totals(members), preferred))
        return sorted(made, key=lambda item: (item.domain.value != request.prefer, item.totals, item.domain.value))

    return ranked(narrow, True) + ranked(required, False)


def _first(ground: Ground, found: Sequence[Candidate], budget: Budget) -> _Success | None:
    """The first candidate that takes the whole gang, with as many wishes met as can be."""
    for made in wishes(ground.request):
        attempt = Plan(ground, made)
        for refused, candidate in enumerate(found):
            nodes = _try(attempt, candidate, budget)
            if nodes is not None:
                return _Success(candidate, nodes, made, refused)
    return None


def _try(attempt: Plan, candidate: Candidate, budget: Budget) -> dict[str, NodeView] | None:
    short = [need > have for need, have in zip(attempt.ground.needed, candidate.totals, strict=False)]
    if not candidate.members or any(short):
        return None
    packing = attempt.pack(candidate.members, budget)
    return None if packing.bins is None else attempt.nodes(candidate.members, packing.bins)


def _preempt(request: GangRequest, snapshot: Snapshot, budget: Budget) -> Placed | None:
    lower = preemptible(request, snapshot)
    if not lower:
        return None
    ground = Ground(request, snapshot.without({use.uid for use in lower}))
    found = candidates(ground)
    best: tuple[tuple[int, int, int], _Success, Eviction] | None = None
    for made in wishes(request):
        attempt = Plan(ground, made)
        for number, candidate in enumerate(found):
            nodes = _try(attempt, candidate, budget)
            if nodes is None:
                continue
            eviction = evictions(request, nodes, snapshot, lower)
            rank = (eviction.highest, len(eviction.uids), number)
            if best is None or rank < best[0]:
                best = rank, _Success(candidate, nodes, made, number), eviction
        if best is not None:
            _, success, eviction = best
            outcome = _placed(request, success, len(found), budget)
            pods = "1 pod" if len(eviction.uids) == 1 else f"{len(eviction.uids)} pods"
            text = f"{outcome.message}; {pods} of lower priority will be evicted for it"
            return replace(outcome, victims=eviction.uids, message=text)
    return None


def _placed(request: GangRequest, success: _Success, looked: int, budget: Budget) -> Placed:
    return Placed(
        success.candidate.domain,
        success.nodes,
        budget.hit,
        given_up=success.wishes.given_up,
        message=_why(request, success, looked),
    )


def _where(request: GangRequest, placed: Mapping[str, NodeView], domain: Domain) -> str:
    pods = "1 pod" if len(request.pods) == 1 else f"{len(request.pods)} pods"
    nodes = len({node.name for node in placed.values()})
    where = f"{pods} on {nodes} node{'' if nodes == 1 else 's'}"
    return f"{where} of {domain.value} ({domain.key})" if domain.key else where


def _choice(outcome: Placed) -> str:
    """Why that domain: what its message says behind the place."""
    return outcome.message.partition(": ")[2] or "the domain that takes all of it"


def _why(request: GangRequest, success: _Success, looked: int) -> str:
    """Where the gang is and why there."""
    where = _where(request, success.nodes, success.candidate.domain)
    if request.within is not None and not success.candidate.preferred:
        where += ", where the deployment's other pods are"
    elif looked > 1:
        where += f": the fullest of {looked} domains that takes all of it"
        if success.refused:
            where += f", after {success.refused} fuller one{'' if success.refused == 1 else 's'} without room"
    if success.wishes.given_up:
        where += f"; given up for it: {', '.join(success.wishes.given_up)}"
    return where
