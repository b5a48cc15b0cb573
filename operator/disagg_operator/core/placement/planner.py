"""From a gang and a snapshot to an assignment of every pod, or to what is missing.

Candidates are tried in this order: the domain the deployment already lives in, then domains of the preferred level,
then domains of the required level; within a level the fullest first, so that large holes stay large. The first domain
in which the whole gang packs wins. Ties go to the smaller label value, so equal inputs give equal answers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from disagg_contract.labels import HOSTNAME
from disagg_crds import Reason
from disagg_operator.core.placement.domains import Domain, carries, domains
from disagg_operator.core.placement.explain import Shortage, explain, shortage
from disagg_operator.core.placement.packing import STEP_LIMIT, Item, Packing, pack
from disagg_operator.core.placement.snapshot import NodeView, PodDemand, Snapshot
from disagg_operator.core.quantity import CPU, MEMORY, PODS, show


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """Pods that are placed together or not at all.

    ``required``: node label key whose domains the gang must not cross; None: any nodes. ``preferred``: level to stay
    within when possible. ``within``: value of the required level's domain that the deployment lives in already, which
    then is the only one. ``prefer``: a domain value to try first. ``excluded``: domain values left out for now.
    """

    pods: tuple[PodDemand, ...]
    required: str | None = None
    preferred: str | None = None
    within: str | None = None
    prefer: str | None = None
    excluded: frozenset[str] = field(default_factory=frozenset)
    step_limit: int = STEP_LIMIT


@dataclass(frozen=True, slots=True)
class Placed:
    """Every pod has a node: ``nodes`` by pod UID."""

    domain: Domain
    nodes: dict[str, NodeView]
    bound_hit: bool = False


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Nothing is placed. ``missing`` is what the best domain lacks; ``message`` says it in a sentence."""

    reason: Reason
    message: str
    best_domain: str | None = None
    missing: dict[str, int] = field(default_factory=dict)
    bound_hit: bool = False


@dataclass(frozen=True, slots=True)
class _Attempt:
    domain: Domain
    nodes: tuple[NodeView, ...]
    packing: Packing
    shortage: Shortage


def plan(request: GangRequest, snapshot: Snapshot) -> Placed | NoRoom:
    """Place the whole gang in one domain, or nothing."""
    if not request.pods:
        return Placed(Domain("", "", ()), {})
    dimensions = _dimensions(request.pods)
    failed: list[_Attempt] = []
    for domain in _candidates(request, snapshot, dimensions):
        attempt = _attempt(request, domain, snapshot, dimensions)
        if attempt.packing.bins is not None:
            nodes = zip(request.pods, attempt.packing.bins, strict=True)
            hit = any(other.packing.bound_hit for other in failed)
            return Placed(domain, {pod.uid: attempt.nodes[bin_] for pod, bin_ in nodes}, hit)
        if domain.key == (request.required or "") or domain.key == HOSTNAME:
            failed.append(attempt)
    return _no_room(request, snapshot, dimensions, failed)


def _dimensions(pods: Iterable[PodDemand]) -> tuple[str, ...]:
    """Resources that matter, scarcest kind first: devices, then CPU, memory, and the number of pods."""
    named = {resource for pod in pods for resource, value in pod.requests.items() if value > 0} - {PODS}
    devices = sorted(named - {CPU, MEMORY})
    return (*devices, *(resource for resource in (CPU, MEMORY) if resource in named), PODS)


def _size(pod: PodDemand, dimensions: Sequence[str]) -> tuple[int, ...]:
    return tuple(1 if resource == PODS else pod.requests.get(resource, 0) for resource in dimensions)


def _candidates(request: GangRequest, snapshot: Snapshot, dimensions: Sequence[str]) -> list[Domain]:
    """Domains in the order of trying."""
    required = [
        domain
        for domain in domains(snapshot.nodes, request.required)
        if (request.within is None or domain.value == request.within) and domain.value not in request.excluded
    ]
    allowed = [node for domain in required for node in domain.nodes]
    narrow = list(domains(allowed, request.preferred)) if request.preferred else []
    narrow = [domain for domain in narrow if domain.value not in request.excluded and _inside(domain, required)]

    def fullness(domain: Domain) -> tuple[bool, tuple[int, ...], str]:
        usable = [node for node in domain.nodes if any(pod.accepts(node) for pod in request.pods)]
        vectors = [snapshot.vector(node.name, dimensions) for node in usable]
        totals = tuple(sum(axis) for axis in zip(*vectors, strict=True)) if vectors else ()
        return domain.value != request.prefer, totals, domain.value

    return sorted(narrow, key=fullness) + sorted(required, key=fullness)


def _inside(domain: Domain, wider: Sequence[Domain]) -> bool:
    """A domain of the preferred level counts only if it does not cross a required one."""
    names = {node.name for node in domain.nodes}
    return any(names <= {node.name for node in other.nodes} for other in wider)


def _attempt(request: GangRequest, domain: Domain, snapshot: Snapshot, dimensions: Sequence[str]) -> _Attempt:
    nodes = tuple(node for node in domain.nodes if any(pod.accepts(node) for pod in request.pods))
    free = [snapshot.vector(node.name, dimensions) for node in nodes]
    eligible: dict[tuple[object, ...], tuple[int, ...]] = {}
    items: list[Item] = []
    for pod in request.pods:
        kind = (tuple(sorted(pod.node_selector.items())), pod.tolerations)
        if kind not in eligible:
            eligible[kind] = tuple(index for index, node in enumerate(nodes) if pod.accepts(node))
        items.append(Item(_size(pod, dimensions), eligible[kind]))
    packing = pack(items, free, step_limit=request.step_limit)
    return _Attempt(domain, nodes, packing, shortage(items, free, dimensions, packing))


def _no_room(request: GangRequest, snapshot: Snapshot, dimensions: Sequence[str], failed: Sequence[_Attempt]) -> NoRoom:
    hit = any(attempt.packing.bound_hit for attempt in failed)
    usable = [attempt for attempt in failed if attempt.nodes]
    if not usable:
        return NoRoom(Reason.NO_ELIGIBLE_NODES, _nobody(request, snapshot, bool(failed)))
    oversized = _oversized(request, snapshot, dimensions)
    if oversized is not None:
        return oversized
    best = min(usable, key=lambda attempt: (attempt.shortage.rank, attempt.domain.value))
    reason = Reason.INSUFFICIENT_CAPACITY
    message = explain(best.shortage, pods=request.pods, required=request.required, domain=best.domain.value)
    if hit:
        message += f"; the search stopped after {request.step_limit} steps, so a packing may exist"
        reason = Reason.SEARCH_BOUND_HIT
    if request.required and not carries(snapshot.nodes, request.required):
        message += f"; no node has the label {request.required}, so each node counts as a domain of its own"
        reason = Reason.UNKNOWN_TOPOLOGY_KEY
    if request.excluded:
        message += f"; left out for now: {', '.join(sorted(request.excluded))}"
    return NoRoom(reason, message, best.domain.value, best.shortage.missing, hit)


def _oversized(request: GangRequest, snapshot: Snapshot, dimensions: Sequence[str]) -> NoRoom | None:
    """A pod that no node could take even if it were empty: an instance has to fit on one node."""
    for pod in request.pods:
        nodes = [node for node in snapshot.nodes if pod.accepts(node)]
        for resource, need in zip(dimensions, _size(pod, dimensions), strict=True):
            largest = max((node.allocatable.get(resource, 0) for node in nodes), default=0)
            if nodes and need > largest:
                message = (
                    f"{pod.name} needs {show(resource, need)} {resource} on one node and the largest has "
                    f"{show(resource, largest)}; instances that span nodes are not supported"
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
        "look at node selectors, taints and tolerations"
    )
