"""Placement of gangs on the live cluster.

Planning and the promise in the ledger happen in one step of the event loop, so two gangs never get the same GPU from
this process. Then each pod is pinned by one patch. An operator that dies between two of these patches finds the rest in
the deployment's status and finishes it; one that dies before the first has changed nothing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from disagg_contract.labels import HOSTNAME
from disagg_crds import Assignment, DisaggDeployment, DisaggDeploymentSpec, Placement, Role
from disagg_operator.core.conditions import Levels
from disagg_operator.core.fleet import Instance
from disagg_operator.core.gangs import Gang
from disagg_operator.core.placement import (
    GangRequest,
    Ledger,
    Line,
    NodeView,
    NoRoom,
    Pairing,
    Placed,
    PodDemand,
    PodUse,
    Present,
    describe,
    fragmenting,
    home_of,
    placement_score,
    plan,
    unknown_levels,
)
from disagg_operator.core.placement.policy import asked_levels, gang_request, measured_levels
from disagg_operator.errors import ApiError, Conflict, NotFound
from disagg_operator.render import reading
from disagg_operator.render.patches import pin
from disagg_operator.shell.kube.api import STRATEGIC, Api, Object
from disagg_operator.shell.kube.cluster import ClusterView
from disagg_operator.shell.kube.resources import PODS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Home:
    """Where the placed instances of a deployment are: value and label key of the domain that most of them are in."""

    domain: str
    level: str


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

    def levels(self, spec: DisaggDeploymentSpec) -> Levels | None:
        """Whether nodes carry the labels that a placement names; None before the nodes are known."""
        nodes = tuple(self._view.nodes.values())
        if not nodes:
            return None
        placement = spec.placement
        by_roles = any(section.placement.levels for section in spec.roles.values())
        asked = by_roles or bool(placement.required or placement.preferred) or placement.levels != Placement().levels
        return Levels(unknown_levels(nodes, asked_levels(spec)), asked)

    def present(self, instances: Iterable[Instance], revisions: Mapping[Role, str]) -> tuple[Present, ...]:
        """Instances that have a node and count; ``revisions`` are the current ones."""
        by_hostname = {node.hostname: node.name for node in self._view.nodes.values()}
        found: list[Present] = []
        for instance in instances:
            node = instance.node or by_hostname.get(instance.pinned_node, "")
            if instance.serving and instance.placed and node in self._view.nodes:
                current = instance.revision == revisions.get(instance.role, instance.revision)
                found.append(Present(instance.role.value, instance.name, node, current=current))
        return tuple(found)

    def home(self, present: Sequence[Present], level: str | None) -> Home | None:
        """The domain most placed instances are in, at ``level``; None while none is placed."""
        found = home_of(present, self._view.nodes, level or "")
        return None if found is None else Home(found[1], found[0])

    def score(self, present: Sequence[Present], spec: DisaggDeploymentSpec) -> tuple[float | None, str | None]:
        """Placement score of what is placed, and a sentence of what is where; both None while nothing is."""
        levels = measured_levels(spec)
        text = describe(present, self._view.nodes, levels[0]) or None
        return placement_score(present, self._view.nodes, levels), text

    def weighed(self, instances: Iterable[Instance], spec: DisaggDeploymentSpec) -> tuple[Instance, ...]:
        """The instances with how much each fragments the cluster, for the question who goes first."""
        mine = tuple(instances)
        uses = self._view.uses
        bound = {
            item.uid: (item.node, dict(uses[item.uid].requests)) for item in mine if item.node and item.uid in uses
        }
        if not bound:
            return mine
        level = measured_levels(spec)[0]
        home = self.home(self.present(mine, {}), level)
        amounts = fragmenting(
            bound, self._view.snapshot(now=self._clock()), level=level, home=None if home is None else home.domain
        )
        return tuple(replace(item, fragments=amounts.get(item.uid, 0)) for item in mine)

    async def place(
        self,
        owner: str,
        deployment: DisaggDeployment,
        gang: Gang,
        pods: Mapping[str, Object],
        *,
        present: Sequence[Present],
        later: Sequence[Object],
        announce: Callable[[tuple[Assignment, ...]], Awaitable[None]],
    ) -> Placed | NoRoom:
        """Pin every pod of the gang, or none. ``announce`` stores the assignment before the first patch.

        ``present``: what of the deployment has nodes. ``later``: gated pods that will be placed after the gang.
        """
        manifests = [pods[instance.name] for instance in gang.instances]
        demands = tuple(reading.demand(manifest) for manifest in manifests)
        placement = deployment.spec.placement
        now = self._clock()
        home = self.home(present, placement.required_level)
        within = home.domain if home is not None and placement.required_level is not None else None
        near = self.home(present, placement.preferred_level) if placement.preferred_level is not None else home
        request = gang_request(
            deployment.spec,
            demands,
            present=present,
            within=within,
            prefer=None if near is None else near.domain,
            excluded=self._excluded(owner, gang, within, now),
            later=map(reading.demand, later),
        )
        snapshot = self._view.snapshot(now=now)
        outcome = self._finish(request, deployment, now) or plan(request, snapshot)
        if isinstance(outcome, NoRoom):
            self._line.refused(owner, request, outcome, snapshot, now=now)
            return outcome
        self._line.leave(owner)
        nodes = outcome.nodes
        uses = (
            PodUse(pod.uid, nodes[pod.uid].name, tuple(pod.requests.items()), priority=pod.priority) for pod in demands
        )
        self._ledger.promise(uses, now=now)
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
        # The nodes were chosen by all rules; for a part of the gang alone the rules would say something else.
        rest = replace(request, pods=tuple(pods), later=(), rules={}, pairing=Pairing.NONE)
        outcome = plan(rest, self._view.snapshot(now=now))
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
