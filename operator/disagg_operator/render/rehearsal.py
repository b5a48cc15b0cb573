"""A placement without a cluster: from manifests of nodes and pods, as kubectl prints them, to what would go where.

The same steps as the operator's, with the same planner. What of the deployment has a node already stays there and
counts; gated pods keep their names, and pods that do not exist yet are rendered as the operator would. What is missing
of the base gang is placed whole or not at all; once it has nodes, each further instance is a gang of its own, in the
domain of the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from disagg_contract import labels
from disagg_crds import DisaggDeployment, Reason, Role, group_name, read_group
from disagg_operator.core.placement import (
    Defragmentation,
    GangRequest,
    Movable,
    NodeView,
    NoRoom,
    Placed,
    PodDemand,
    PodUse,
    Present,
    Snapshot,
    defragment,
    describe,
    home_of,
    placement_score,
    plan,
)
from disagg_operator.core.placement.policy import gang_request, measured_levels, parts
from disagg_operator.errors import ManifestError, QuantityError
from disagg_operator.render import reading
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.instances import PLACED_AT, NewInstance, instance_name, pod

Manifest = Mapping[str, Any]
NODE, POD, PRIORITY_CLASS = "Node", "Pod", "PriorityClass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes and pods of a cluster. ``priorities``: values of its PriorityClasses by name; ``""`` is the default."""

    nodes: tuple[NodeView, ...]
    uses: tuple[PodUse, ...]
    pods: tuple[Manifest, ...]
    priorities: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GangOutcome:
    """One gang: the names of its pods and what came of it."""

    pods: tuple[str, ...]
    base: bool
    outcome: Placed | NoRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a placement would come to.

    ``placed``: every wanted pod has a node. ``assignments``: node by pod, of those that get one now. ``waiting``: pods
    that get none. ``domain`` and ``level``: where the deployment is then, None while it is nowhere; ``score`` as
    :func:`placement_score`. ``missing``: amounts by resource, of the first gang that waits, in ``best_domain``.
    ``moves``: what would make room for it, where that was asked for.
    """

    placed: bool
    assignments: Mapping[str, str]
    waiting: tuple[str, ...]
    domain: str | None
    level: str | None
    score: float | None
    reason: Reason
    message: str
    missing: Mapping[str, int] = field(default_factory=dict)
    best_domain: str | None = None
    victims: tuple[str, ...] = ()
    bound_hit: bool = False
    gangs: tuple[GangOutcome, ...] = ()
    moves: Defragmentation | None = None


def read_cluster(documents: Iterable[object]) -> Cluster:
    """Nodes, pods and priority classes among documents, lists opened. Raises ManifestError for what is neither."""
    nodes: list[NodeView] = []
    uses: list[PodUse] = []
    pods: list[Manifest] = []
    priorities: dict[str, int] = {}
    for item in _items(documents):
        kind = item.get("kind")
        name = (item.get("metadata") or {}).get("name", "without a name")
        try:
            if kind == NODE:
                nodes.append(reading.node_view(item))
            elif kind == POD:
                pods.append(item)
                use = reading.use(item)
                uses += [] if use is None else [use]
            elif kind == PRIORITY_CLASS:
                priorities[name] = int(item["value"])
                if item.get("globalDefault"):
                    priorities[""] = int(item["value"])
        except (KeyError, TypeError, ValueError, AttributeError, QuantityError) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ManifestError(f"{kind} {name} is not as the API server returns it: {what}") from error
    return Cluster(nodes=tuple(nodes), uses=tuple(uses), pods=tuple(pods), priorities=priorities)


def _items(documents: Iterable[object]) -> Iterable[Manifest]:
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, Mapping):
            raise ManifestError(f"found {type(document).__name__} where a Kubernetes object is expected")
        if isinstance(document.get("items"), list):
            kind = str(document.get("kind", ""))
            # Items of a typed list (NodeList) carry no kind of their own.
            inner = kind.removesuffix("List")
            yield from _items(
                {"kind": inner, **item} if isinstance(item, Mapping) else item for item in document["items"]
            )
        else:
            yield document


class _Stage:
    """The cluster as it fills, and the deployment's pods on it."""

    def __init__(self, deployment: DisaggDeployment, cluster: Cluster, around: Surroundings) -> None:
        self.deployment = deployment
        self.spec = deployment.spec
        self.cluster = cluster
        self.around = around
        self.snapshot = Snapshot.take(cluster.nodes, cluster.uses)
        self.nodes = {node.name: node for node in self.snapshot.nodes}
        self.by_hostname = {node.hostname: node.name for node in self.snapshot.nodes}
        self.present: list[Present] = []
        self.gated: dict[Role, list[tuple[PodDemand, ...]]] = {role: [] for role in self.spec.roles}
        self._look()

    def _look(self) -> None:
        """What of the deployment exists."""
        for manifest in sorted(self.cluster.pods, key=lambda item: str(item["metadata"].get("name"))):
            own = manifest["metadata"].get("labels") or {}
            mine = (own.get(labels.DEPLOYMENT), manifest["metadata"].get("namespace", "default"))
            if labels.ROLE not in own or mine != (self.deployment.name, self.deployment.namespace):
                continue
            seen = reading.instance(manifest)
            if not seen.serving or seen.role not in self.spec.roles:
                continue
            if seen.placed:
                node = seen.node or self.by_hostname.get(seen.pinned_node, seen.pinned_node)
                self.present.append(Present(seen.role.value, seen.name, node))
            elif seen.gated:
                self.gated[seen.role].append((reading.demand(manifest),))

    def missing(self) -> tuple[list[tuple[PodDemand, ...]], list[tuple[PodDemand, ...]]]:
        """Instances without a node: those that complete the base gang, and further ones."""
        base: list[tuple[PodDemand, ...]] = []
        extra: list[tuple[PodDemand, ...]] = []
        for role, section in self.spec.roles.items():
            there = len({seen.instance for seen in self.present if seen.role == role.value})
            wanted = section.initial_replicas
            waiting = self.gated[role][: max(0, wanted - there)]
            taken = {pod.owner for pods in waiting for pod in pods} | {seen.instance for seen in self.present}
            numbers = (number for number in range(wanted + len(taken)))
            names = (instance_name(group_name(self.deployment.name, role), str(number)) for number in numbers)
            fresh = (name for name in names if name not in taken)
            waiting += [self._render(role, next(fresh)) for _ in range(wanted - there - len(waiting))]
            gap = max(0, min(section.base_instances, wanted) - there)
            base += waiting[:gap]
            extra += waiting[gap:]
        return base, extra

    def _render(self, role: Role, name: str) -> tuple[PodDemand, ...]:
        """The pods of an instance that does not exist yet, as the operator would make them."""
        section = self.spec.roles[role]
        group = read_group(
            {
                "apiVersion": "disagg.dev/v1alpha1",
                "kind": "DisaggGroup",
                "metadata": {"name": group_name(self.deployment.name, role), "uid": "none"},
                "spec": {"deployment": self.deployment.name, "role": role.value, "replicas": 1},
            }
        )
        manifest = pod(self.deployment, group, NewInstance(name=name, role=role, gang=name), around=self.around)
        manifest["metadata"]["uid"] = name
        whole = reading.demand(manifest)
        value = self.cluster.priorities.get(section.template.priority_class_name or "", 0)
        return parts(section, replace(whole, priority=value))

    def home(self) -> str | None:
        level = self.spec.placement.required_level or self.spec.placement.levels[0]
        found = home_of(self.present, self.nodes, level)
        return None if found is None else found[1]

    def request(self, pods: Sequence[PodDemand], later: Sequence[PodDemand] = ()) -> GangRequest:
        home = self.home()
        return gang_request(self.spec, pods, present=self.present, within=home, prefer=home, later=later)

    def place(self, pods: tuple[PodDemand, ...], *, base: bool, later: Sequence[PodDemand] = ()) -> GangOutcome:
        """Plan one gang, and put it on the cluster where it fits."""
        outcome = plan(self.request(pods, later), self.snapshot)
        if isinstance(outcome, Placed):
            where = outcome.nodes
            uses = [PodUse(item.uid, where[item.uid].name, tuple(item.requests.items())) for item in pods]
            self.snapshot = self.snapshot.without(set(outcome.victims)).with_more(uses)
            self.present += [Present(item.role, item.owner, where[item.uid].name, item.stage) for item in pods]
        return GangOutcome(tuple(item.name for item in pods), base, outcome)


def rehearse(deployment: DisaggDeployment, cluster: Cluster, *, around: Surroundings, moves: bool = False) -> Rehearsal:
    """Place what is missing of a deployment. ``moves``: also look for moves of our pods that would make room."""
    stage = _Stage(deployment, cluster, around)
    base, extra = stage.missing()
    gangs: list[GangOutcome] = []
    before = stage.snapshot
    if base:
        later = [item for pods in extra for item in pods]
        gangs.append(stage.place(tuple(item for pods in base for item in pods), base=True, later=later))
    scheduled = all(isinstance(gang.outcome, Placed) for gang in gangs)
    if scheduled:
        for pods in extra:
            before = before if any(isinstance(gang.outcome, NoRoom) for gang in gangs) else stage.snapshot
            gangs.append(stage.place(pods, base=False))
    refused = next((gang for gang in gangs if isinstance(gang.outcome, NoRoom)), None)
    waiting = [name for gang in gangs if isinstance(gang.outcome, NoRoom) for name in gang.pods]
    if not scheduled:
        waiting += [item.name for pods in extra for item in pods]
    found = None
    if moves and refused is not None:
        demands = {item.name: item for pods in (*base, *extra) for item in pods}
        request = stage.request([demands[name] for name in refused.pods])
        found = defragment(before, movable(cluster), gang=request)
    return _report(stage, gangs, tuple(waiting), refused, found)


def _report(
    stage: _Stage,
    gangs: Sequence[GangOutcome],
    waiting: tuple[str, ...],
    refused: GangOutcome | None,
    moves: Defragmentation | None,
) -> Rehearsal:
    assignments: dict[str, str] = {}
    victims: list[str] = []
    for gang in gangs:
        if isinstance(gang.outcome, Placed):
            nodes = list(gang.outcome.nodes.values())
            assignments |= {name: node.name for name, node in zip(gang.pods, nodes, strict=True)}
            victims += gang.outcome.victims
    names = {manifest["metadata"].get("uid"): _qualified(manifest) for manifest in stage.cluster.pods}
    levels = measured_levels(stage.spec)
    home = home_of(stage.present, stage.nodes, levels[0])
    if refused is not None and isinstance(refused.outcome, NoRoom):
        lack = refused.outcome
        reason, message, missing, best = lack.reason, lack.message, lack.missing, lack.best_domain
    else:
        reason = Reason.GANG_PLACED if gangs else Reason.GANG_BOUND
        message = describe(stage.present, stage.nodes, levels[0]) or "no instance is wanted"
        if gangs:
            message += f"; {'the base gang' if gangs[0].base else 'the first'}: {gangs[0].outcome.message}"
        missing, best = {}, None
    return Rehearsal(
        placed=not waiting,
        assignments=assignments,
        waiting=waiting,
        domain=None if home is None else home[1],
        level=None if home is None else home[0],
        score=placement_score(stage.present, stage.nodes, levels),
        reason=reason,
        message=message,
        missing=missing,
        best_domain=best,
        victims=tuple(names.get(uid, uid) for uid in victims),
        bound_hit=any(gang.outcome.bound_hit for gang in gangs),
        gangs=tuple(gangs),
        moves=moves,
    )


def _qualified(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return f"{metadata.get('namespace', 'default')}/{metadata.get('name')}"


def movable(cluster: Cluster) -> tuple[Movable, ...]:
    """Instances of ours that run: the only pods that we would ever move. Our pin is no demand of theirs."""
    found: list[Movable] = []
    for manifest in cluster.pods:
        metadata, spec = manifest["metadata"], manifest.get("spec", {})
        notes = metadata.get("annotations") or {}
        if labels.ROLE not in (metadata.get("labels") or {}) or not spec.get("nodeName"):
            continue
        if not reading.instance(manifest).alive:
            continue
        wants = reading.demand(manifest)
        if PLACED_AT in notes:
            free = {key: value for key, value in wants.node_selector.items() if key != labels.HOSTNAME}
            wants = replace(wants, node_selector=free)
        wants = replace(wants, name=_qualified(manifest))
        found.append(Movable(pod=wants, node=spec["nodeName"], level=notes.get(labels.DOMAIN_KEY) or None))
    return tuple(found)
