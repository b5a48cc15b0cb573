"""Placement of gangs on the live cluster.

Planning and the promise in the ledger happen in one step of the event loop, so two gangs never get the same GPU from
this process. Then each pod is pinned by one patch. An operator that dies between two of these patches finds the rest in
the deployment's status and finishes it; one that dies before the first has changed nothing.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from disagg_contract.labels import HOSTNAME
from disagg_crds import Assignment, DisaggDeployment, Placement
from disagg_operator.core.conditions import Levels
from disagg_operator.core.fleet import Instance
from disagg_operator.core.gangs import Gang
from disagg_operator.core.placement import (
    GangRequest,
    Ledger,
    Line,
    NodeView,
    NoRoom,
    Placed,
    PodDemand,
    PodUse,
    plan,
)
from disagg_operator.core.placement.domains import carries, domain_of
from disagg_operator.errors import ApiError, Conflict, NotFound
from disagg_operator.render import reading
from disagg_operator.render.patches import pin
from disagg_operator.shell.kube.api import STRATEGIC, Api, Object
from disagg_operator.shell.kube.cluster import ClusterView
from disagg_operator.shell.kube.resources import PODS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Home:
    """Where the placed instances of a deployment are. ``score``: share of them in that domain."""

    domain: str
    level: str
    score: float


class Placer:
    """Places gangs of all deployments; ``ledger`` and ``view`` are shared by them."""

    def __init__(self, api: Api, view: ClusterView, ledger: Ledger, *, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._view = view
        self._ledger = ledger
        self._line = Line()
        self._clock = clock

    async def ready(self) -> str | None:
        """Wait until the view of the cluster is complete. Returns why it never will be, if that is so."""
        await self._view.synced()
        return self._view.blind

    def is_lost(self, node: str) -> bool:
        """Whether a node is known to be gone, or not to be heard of."""
        return self._view.is_lost(node)

    def levels(self, placement: Placement) -> Levels | None:
        """Whether nodes carry the labels that a placement names; None before the nodes are known."""
        nodes = tuple(self._view.nodes.values())
        if not nodes:
            return None
        named = dict.fromkeys(key for key in (placement.required_level, placement.preferred_level) if key)
        asked = bool(placement.required or placement.preferred) or placement.levels != Placement().levels
        return Levels(tuple(key for key in named if not carries(nodes, key)), asked)

    def home(self, instances: Iterable[Instance], level: str | None) -> Home | None:
        """The domain most placed instances are in, at ``level``; None while none is placed."""
        by_hostname = {node.hostname: node for node in self._view.nodes.values()}
        places: Counter[tuple[str, str]] = Counter()
        for instance in instances:
            node = self._view.nodes.get(instance.node) or by_hostname.get(instance.pinned_node)
            if instance.serving and instance.placed and node is not None:
                places[domain_of(node, level or "")] += 1
        if not places:
            return None
        (key, value), most = min(places.items(), key=lambda item: (-item[1], item[0]))
        return Home(value, key, round(most / places.total(), 3))

    async def place(
        self,
        owner: str,
        deployment: DisaggDeployment,
        gang: Gang,
        pods: Mapping[str, Object],
        *,
        within: str | None,
        announce: Callable[[tuple[Assignment, ...]], Awaitable[None]],
    ) -> Placed | NoRoom:
        """Pin every pod of the gang, or none. ``announce`` stores the assignment before the first patch."""
        manifests = [pods[instance.name] for instance in gang.instances]
        demands = tuple(reading.demand(manifest) for manifest in manifests)
        placement = deployment.spec.placement
        now = self._clock()
        request = GangRequest(
            pods=demands,
            required=placement.required_level,
            preferred=placement.preferred_level,
            within=within,
            excluded=self._excluded(owner, gang, within, now),
        )
        snapshot = self._view.snapshot(now=now)
        outcome = self._finish(request, deployment, now) or plan(request, snapshot)
        if isinstance(outcome, NoRoom):
            self._line.refused(owner, request, outcome, snapshot, now=now)
            return outcome
        self._line.leave(owner)
        nodes = outcome.nodes
        self._ledger.promise(
            (PodUse(pod.uid, nodes[pod.uid].name, tuple(pod.requests.items())) for pod in demands), now=now
        )
        try:
            if len(manifests) > 1:
                await announce(
                    tuple(Assignment(uid=pod.uid, pod=pod.name, node=nodes[pod.uid].name) for pod in demands)
                )
            await asyncio.gather(*(self._pin(pod, gang, outcome, now) for pod in manifests))
        except ApiError:
            # What was not pinned is no longer promised; what was, the watch will show.
            self._ledger.withdraw(pod.uid for pod in demands)
            raise
        log.info("%s: pinned gang %s of %d in %s", owner, gang.name, len(manifests), outcome.domain.value)
        return outcome

    def _excluded(self, owner: str, gang: Gang, within: str | None, now: float) -> frozenset[str]:
        """Domains left out: those that failed this deployment, and those kept for one that waits longer.

        What is missing of a base gang that has its domain already goes there whatever else waits.
        """
        if within is None:
            return self._ledger.excluded(owner, now=now) | self._line.held(owner, now=now)
        return frozenset() if gang.base else self._line.held(owner, now=now)

    def _finish(self, request: GangRequest, deployment: DisaggDeployment, now: float) -> Placed | None:
        """The rest of an assignment that was announced and only partly written, if its nodes still have room."""
        announced = {item.uid: item.node for item in deployment.status.placement.assignments}
        if not announced or any(pod.uid not in announced for pod in request.pods):
            return None
        nodes = {uid: self._view.nodes.get(node) for uid, node in announced.items()}
        pods: list[PodDemand] = []
        for pod in request.pods:
            node = nodes[pod.uid]
            if node is None:
                return None
            pods.append(replace(pod, node_selector={**pod.node_selector, HOSTNAME: node.hostname}))
        outcome = plan(replace(request, pods=tuple(pods)), self._view.snapshot(now=now))
        return outcome if isinstance(outcome, Placed) else None

    async def _pin(self, pod: Object, gang: Gang, outcome: Placed, now: float) -> None:
        metadata = pod["metadata"]
        node: NodeView = outcome.nodes[metadata["uid"]]
        patch = pin(
            hostname=node.hostname,
            gang=gang.name,
            domain_key=outcome.domain.key,
            domain=outcome.domain.value,
            placed_at=now,
        )
        try:
            await self._api.patch(
                PODS, metadata["name"], patch, namespace=metadata["namespace"], content_type=STRATEGIC
            )
        except (NotFound, Conflict):
            # It was deleted meanwhile: its replacement is the next pass's business.
            self._ledger.withdraw([metadata["uid"]])

    def give_back(self, owner: str, instances: Sequence[Instance]) -> None:
        """A gang missed its deadline: forget its promises and leave its domain out for a while.

        The domain comes from the pods' label: the node may have vanished, which would explain why they are not bound.
        """
        now = self._clock()
        self._ledger.withdraw(instance.uid for instance in instances)
        for domain in sorted({instance.domain for instance in instances if instance.domain}):
            until = self._ledger.failed(owner, domain, now=now)
            log.warning("%s: domain %s is left out for %.0f s", owner, domain, until - now)

    def succeeded(self, owner: str) -> None:
        """The base gang is bound."""
        self._ledger.bound(owner)

    def content(self, owner: str) -> None:
        """Nothing of it waits any more."""
        self._line.leave(owner)

    def excluded(self, owner: str) -> tuple[str, ...]:
        return tuple(sorted(self._ledger.excluded(owner, now=self._clock())))

    def wait(self, owner: str) -> float | None:
        """Seconds until a domain that is left out may be tried again."""
        return self._ledger.wait(owner, now=self._clock())

    def forget(self, owner: str) -> None:
        self._ledger.forget(owner)
        self._line.leave(owner)
