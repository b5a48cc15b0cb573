"""Reconcile of a DisaggDeployment: observe → desired → diff → apply → conditions.

The same function for an event, a resync and a test. It keeps nothing between two calls but what the placer's ledger
holds; whatever it needs to know it reads. An error on the way does not keep the status from being written: it becomes a
condition, and the queue tries again.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from disagg_contract import labels
from disagg_crds import (
    Assignment,
    ConditionType,
    DeploymentStatus,
    DisaggDeployment,
    DisaggGroup,
    Reason,
    Role,
    SpecError,
    find_condition,
    group_name,
    read_deployment,
    read_group,
    router_name,
)
from disagg_engine.catalogue import Catalogue
from disagg_operator.core.actions import Obstacle
from disagg_operator.core.breach import Breach, find_breach, remains
from disagg_operator.core.conditions import Facts, Failure
from disagg_operator.core.decide import decide
from disagg_operator.core.fit import Fit, check_fit
from disagg_operator.core.fleet import Counts, Instance, Observed, RoleTarget, Target, count
from disagg_operator.core.gangs import Gang, GangState, gangs, overdue
from disagg_operator.core.groups import decide_group, revert_message
from disagg_operator.core.placement import NoRoom, Present
from disagg_operator.core.status import (
    OWN,
    PLANNERS,
    Note,
    PlacementFacts,
    deployment_status,
    desired_replicas,
    transitions,
)
from disagg_operator.core.target import build_target, deployment_revision
from disagg_operator.errors import ApiError, Conflict, Forbidden
from disagg_operator.render.budgets import disruption_budgets
from disagg_operator.render.configs import Surroundings, needs_planner
from disagg_operator.render.groups import group as render_group
from disagg_operator.render.planners import planner_objects
from disagg_operator.render.policies import network_policies
from disagg_operator.render.reading import instance, router_view
from disagg_operator.render.services import router_endpoint, router_objects
from disagg_operator.shell.kube import children
from disagg_operator.shell.kube.api import Api, Object
from disagg_operator.shell.kube.drains import Drains
from disagg_operator.shell.kube.events import Recorder
from disagg_operator.shell.kube.invalid import invalid_status
from disagg_operator.shell.kube.metrics import Metrics
from disagg_operator.shell.kube.placing import Placer
from disagg_operator.shell.kube.pods import Pods
from disagg_operator.shell.kube.resources import APP_DEPLOYMENTS, DEPLOYMENTS, GROUPS, PODS
from disagg_operator.shell.kube.tokens import TokenSecrets

log = logging.getLogger(__name__)

DRAIN_SECONDS = 1.0
"""How often draining workers are asked."""
RETRY_SECONDS = 15.0
"""How often a refused creation is tried again: a quota may be raised without any event."""
NO_ROOM_SECONDS = 30.0
"""How often a waiting gang is tried again; mostly it is woken by a change of nodes or pods."""


@dataclass(slots=True, kw_only=True)
class Pass:
    """One reconcile in progress: what was read, and what came of it."""

    document: Object
    deployment: DisaggDeployment
    owner: str
    fit: Fit
    is_lost: Callable[[str], bool]
    groups: dict[Role, DisaggGroup] = field(default_factory=dict)
    replicas: dict[Role, int] = field(default_factory=dict)
    pods: dict[str, Object] = field(default_factory=dict)
    orphans: list[Object] = field(default_factory=list)
    retiring: dict[Role, DisaggGroup] = field(default_factory=dict)
    obstacle: Obstacle | None = None
    drained: frozenset[str] = frozenset()
    live: children.Live = field(default_factory=dict)
    no_room: NoRoom | None = None
    late: int = 0
    unaffordable: int = 0
    token_due: float | None = None
    failure: Failure | None = None
    notes: list[Note] = field(default_factory=list)

    def instances(self) -> tuple[Instance, ...]:
        """Ours, and those of groups that are gone: they hold GPUs until Kubernetes has deleted them."""
        mine = [self._read(pod) for pod in self.pods.values()]
        return (*mine, *(replace(self._read(pod), terminating=True) for pod in self.orphans))

    def members(self) -> tuple[Instance, ...]:
        """Those of roles that the spec has."""
        return tuple(item for item in self.instances() if item.role in self.deployment.spec.roles)

    def _read(self, pod: Object) -> Instance:
        node = pod["spec"].get("nodeName", "")
        lost = bool(node) and self.is_lost(node)
        return instance(pod, drained=pod["metadata"]["uid"] in self.drained, lost=lost)


class DeploymentReconciler:
    """Call it with namespace and name; it returns seconds until it wants to be called again, or None."""

    def __init__(
        self,
        api: Api,
        *,
        placer: Placer,
        recorder: Recorder,
        drains: Drains,
        tokens: TokenSecrets,
        around: Surroundings,
        catalogue: Catalogue,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._placer = placer
        self._recorder = recorder
        self._drains = drains
        self._tokens = tokens
        self._around = around
        self._catalogue = catalogue
        self._metrics = metrics
        self._clock = clock
        self._pods = Pods(api, drains, around=around)
        self.waiting: set[tuple[str, str]] = set()
        """Deployments with a gang that found no room; woken when room appears."""

    async def __call__(self, namespace: str, name: str) -> float | None:
        self.waiting.discard((namespace, name))
        document = await self._api.find(DEPLOYMENTS, name, namespace=namespace)
        if document is None or document["metadata"].get("deletionTimestamp"):
            # Owner references let Kubernetes delete the rest.
            self._placer.forget(f"{namespace}/{name}")
            self._metrics.forget(namespace, name)
            self._drains.forget(namespace, name)
            return None
        try:
            deployment = read_deployment(document)
        except SpecError as error:
            await self._refuse(document, error)
            return None
        work = Pass(
            document=document,
            deployment=deployment,
            owner=f"{namespace}/{name}",
            fit=check_fit(deployment.spec, self._catalogue),
            is_lost=self._placer.is_lost,
        )
        problem: ApiError | None = None
        try:
            await self._groups(work)
            await self._read_pods(work)
            if work.fit.fits:
                await self._token(work)
                await self._children(work)
                await self._instances(work)
                await self._place(work)
        except Conflict:
            raise
        except ApiError as error:
            problem = error
            reason = Reason.FORBIDDEN if isinstance(error, Forbidden) else Reason.RECONCILE_FAILED
            work.failure = Failure(reason, str(error))
        again = await self._conclude(work)
        if problem is not None:
            raise problem
        return again

    # Groups

    async def _groups(self, work: Pass) -> None:
        deployment = work.deployment
        found = await self._api.objects(
            GROUPS, namespace=deployment.namespace, selector=children.selector(deployment.name)
        )
        live = {item["metadata"]["name"]: item for item in found}
        for role, section in deployment.spec.roles.items():
            name = group_name(deployment.name, role)
            item = live.pop(name, None)
            if item is not None and item["metadata"].get("deletionTimestamp"):
                # It comes back once it is gone.
                continue
            if item is not None:
                children.must_be_free(item | {"kind": GROUPS.kind}, deployment)
            decision = decide_group(
                section,
                live=None if item is None else item["spec"]["replicas"],
                remembered=desired_replicas(deployment.status, role),
            )
            if item is None or decision.create or decision.revert:
                manifest = render_group(deployment, role, decision.replicas, version=self._around.version)
                item = await self._api.apply(GROUPS, manifest, namespace=deployment.namespace)
            if decision.by_hand:
                work.notes.append(Note("Warning", "ScaleReverted", revert_message(name, decision)))
            work.groups[role] = read_group(item)
            work.replicas[role] = decision.replicas
        for item in live.values():
            if children.is_owned(item, deployment.metadata.uid) and not item["metadata"].get("deletionTimestamp"):
                # Its role left the spec; its instances serve until those of the others do.
                work.retiring[Role(item["spec"]["role"])] = read_group(item)

    # Token, router and planner

    async def _token(self, work: Pass) -> None:
        """Before the pods that mount it."""
        deployment = work.deployment
        kept = await self._tokens.keep(deployment)
        self._drains.know(deployment.namespace, deployment.name, kept.tokens)
        work.token_due = kept.again_seconds
        work.notes += kept.notes

    async def _children(self, work: Pass) -> None:
        deployment = work.deployment
        live = await children.observe(self._api, deployment)
        wanted = router_objects(deployment, around=self._around)
        wanted += disruption_budgets(deployment, version=self._around.version)
        wanted += network_policies(deployment, around=self._around)
        planned = needs_planner(deployment)
        if planned:
            wanted += planner_objects(deployment, around=self._around)
        work.live = live
        work.live = await children.converge(self._api, deployment, wanted, live)
        if not planned and any(condition.type in PLANNERS for condition in deployment.status.conditions):
            # A planner that is gone cannot take back what it said; in its name nothing is said any more.
            await self._apply_status(work.document, {}, manager=labels.PLANNER_FIELD_MANAGER)

    # Instances

    async def _read_pods(self, work: Pass) -> None:
        deployment = work.deployment
        owners = {group.metadata.uid for group in (*work.groups.values(), *work.retiring.values())}
        found = await self._api.objects(
            PODS, namespace=deployment.namespace, selector=children.selector(deployment.name)
        )
        serving = [pod for pod in found if labels.ROLE in pod["metadata"]["labels"]]
        by_name = {group.name: group for group in work.groups.values()}
        adopted = False
        for pod in serving:
            group = by_name.get(pod["metadata"]["labels"].get(labels.GROUP_LABEL, ""))
            if group is not None and children.is_free(pod):
                await self._pods.adopt(pod, group)
                adopted = True
        if adopted:
            await self._read_pods(work)
            return
        work.pods = {
            pod["metadata"]["name"]: pod for pod in serving if any(children.is_owned(pod, uid) for uid in owners)
        }
        work.orphans = [pod for pod in serving if pod["metadata"]["name"] not in work.pods]

    def _target(self, work: Pass) -> Target:
        replicas = {
            role: work.replicas.get(role, desired_replicas(work.deployment.status, role) or 0)
            for role in work.deployment.spec.roles
        }
        target = build_target(work.deployment, replicas, image=self._around.image)
        return replace(target, retiring={role: self._leaving(work, role) for role in work.retiring})

    def _leaving(self, work: Pass, role: Role) -> RoleTarget:
        """A role that left the spec: its pods alone still tell how long a drain may take."""
        graces = (
            float(pod["spec"].get("terminationGracePeriodSeconds", 0))
            for pod in work.pods.values()
            if pod["metadata"]["labels"][labels.ROLE] == role.value
        )
        return RoleTarget(role=role, replicas=0, base=0, gpus=0, drain_seconds=max(graces, default=0.0))

    async def _instances(self, work: Pass) -> None:
        if set(work.groups) != set(work.deployment.spec.roles):
            return
        work.drained = await self._drains.ask(work.pods.values())
        now = self._clock()
        target = self._target(work)
        await self._terminate(work, target, now)
        instances = work.instances()
        if _may_remove(target, instances):
            instances = self._placer.weighed(instances, work.deployment.spec)
        decision = decide(target, Observed(now, instances, no_room=_found_no_room(work.deployment.status)))
        work.unaffordable, work.obstacle = decision.unaffordable, decision.obstacle
        done = await self._pods.apply(
            decision.actions, deployment=work.deployment, groups=work.groups, pods=work.pods, now=now
        )
        work.failure = done.failure
        work.notes += done.notes
        if done.changed:
            await self._read_pods(work)
        for role, group in tuple(work.retiring.items()):
            if not any(item.role is role and item.alive for item in work.instances()):
                await self._api.delete(
                    GROUPS, group.name, namespace=work.deployment.namespace, uid=group.metadata.uid or ""
                )
                del work.retiring[role]

    async def _terminate(self, work: Pass, target: Target, now: float) -> None:
        """Tear down what is left of a gang that has been broken for too long."""
        observed = Observed(now, work.instances())
        breach = find_breach(target, observed, work.deployment.status)
        if breach is None or breach.due(now) > 0:
            return
        rest = remains(observed)
        work.notes.append(Note("Warning", "GangTerminated", f"{len(rest)} instances are placed anew: {breach.message}"))
        self._metrics.placement("gang-terminated")
        for item in rest:
            await self._api.delete(PODS, item.name, namespace=work.deployment.namespace, uid=item.uid)
        await self._read_pods(work)

    # Placement

    async def _place(self, work: Pass) -> None:
        blind = await self._placer.ready()
        target = self._target(work)
        await self._give_back(work, target)
        state = self._gangs(work, target)
        key = (work.deployment.namespace, work.deployment.name)
        if state.gangs:
            # Before the snapshot is taken: room that appears from then on wakes it.
            self.waiting.add(key)
            if blind is not None:
                work.no_room = NoRoom(Reason.FORBIDDEN, blind)
        present = self._present(work, target)
        for gang in state.gangs if blind is None else ():
            outcome = await self._placer.place(
                work.owner,
                work.deployment,
                gang,
                work.pods,
                present=present,
                later=_later(work, gang),
                announce=lambda assignments: self._announce(work, assignments),
            )
            if isinstance(outcome, NoRoom):
                work.no_room = outcome
                self._metrics.placement("no-room")
                continue
            self._metrics.placement("placed")
            present += tuple(Present(i.role.value, i.name, outcome.nodes[i.uid].name) for i in gang.instances)
            where = f" in {outcome.domain.value}" if outcome.domain.value else ""
            names = ", ".join(f"{item.name} on {outcome.nodes[item.uid].name}" for item in gang.instances[:8])
            why = f"; {outcome.message}" if outcome.message else ""
            work.notes.append(Note("Normal", "GangPlaced", f"{len(gang.instances)} pinned{where}: {names}{why}"))
        if work.no_room is None:
            self.waiting.discard(key)
            self._placer.content(work.owner)
        if state.gangs:
            await self._read_pods(work)

    async def _give_back(self, work: Pass, target: Target) -> None:
        for attempt in overdue(target, Observed(self._clock(), work.instances())):
            self._placer.give_back(work.owner, attempt)
            self._metrics.placement("bind-timeout")
            for member in attempt:
                await self._api.delete(PODS, member.name, namespace=work.deployment.namespace, uid=member.uid)
            work.late += len(attempt)
        if work.late:
            await self._read_pods(work)

    async def _announce(self, work: Pass, assignments: tuple[Assignment, ...]) -> None:
        status = work.deployment.status
        if status.placement.assignments == assignments:
            return
        placement = status.placement.model_copy(update={"assignments": assignments})
        await self._write_status(work, status.model_copy(update={"placement": placement, "conditions": _own(status)}))

    def _present(self, work: Pass, target: Target) -> tuple[Present, ...]:
        revisions = {role: section.revision for role, section in target.roles.items()}
        return self._placer.present(work.members(), revisions)

    def _gangs(self, work: Pass, target: Target) -> GangState:
        return gangs(target, Observed(self._clock(), work.instances()))

    # Status

    async def _conclude(self, work: Pass) -> float | None:
        deployment, target = work.deployment, self._target(work)
        instances = work.instances()
        counts = {role: count(section, instances) for role, section in target.roles.items()}
        state = self._gangs(work, target)
        level = deployment.spec.placement.required_level or deployment.spec.placement.levels[0]
        present = self._present(work, target)
        home = self._placer.home(present, level)
        score, where = self._placer.score(present, deployment.spec)
        breach = find_breach(target, Observed(self._clock(), instances), deployment.status)
        if state.base_scheduled:
            self._placer.succeeded(work.owner)
        router = await self._router(work)
        facts = Facts(
            roles=target.roles,
            counts=counts,
            router=router_view(router, desired=deployment.spec.router.replicas),
            gang=state,
            fit=work.fit,
            domain=home.domain if home is not None else None,
            no_room=work.no_room,
            late=work.late,
            unaffordable=work.unaffordable,
            failure=work.failure,
            bind_deadline_seconds=deployment.spec.placement.bind_deadline_seconds,
            obstacle=work.obstacle,
            paused=target.paused,
            breach=breach,
            retiring=sum(1 for item in instances if item.role in work.retiring and item.alive),
            retiring_ready=sum(1 for item in instances if item.role in work.retiring and item.serving and item.ready),
            levels=self._placer.levels(deployment.spec),
        )
        gated = {item.uid for item in instances if item.gated}
        announced = deployment.status.placement.assignments
        half_patched = any(item.uid in gated for item in announced)
        status = deployment_status(
            facts,
            placement=PlacementFacts(
                domain=home.domain if home is not None else None,
                level=home.level if home is not None else None,
                score=score,
                message=where,
                excluded=self._placer.excluded(work.owner),
                assignments=announced if half_patched else (),
            ),
            previous=deployment.status,
            generation=deployment.metadata.generation,
            revision=deployment_revision(deployment, image=self._around.image),
            endpoint=router_endpoint(deployment),
            now=self._clock(),
        )
        before = deployment.status.model_copy(update={"conditions": _own(deployment.status)})
        if status.to_dict() != before.to_dict():
            await self._write_status(work, status)
        for note in (*work.notes, *transitions(before, status)):
            await self._recorder.post(work.document, note)
        self._metrics.replicas(deployment.namespace, deployment.name, counts)
        return self._again(work, counts, instances, breach)

    async def _router(self, work: Pass) -> Object | None:
        name = router_name(work.deployment.name)
        known = work.live.get((APP_DEPLOYMENTS.kind, name))
        if known is not None or work.fit.fits:
            return known
        return await self._api.find(APP_DEPLOYMENTS, name, namespace=work.deployment.namespace)

    def _again(
        self, work: Pass, counts: Mapping[Role, Counts], instances: tuple[Instance, ...], breach: Breach | None
    ) -> float | None:
        """Seconds until something is due that no event announces."""
        due: list[float] = []
        if breach is not None:
            due.append(max(DRAIN_SECONDS, breach.due(self._clock())))
        if work.retiring or any(number.draining for number in counts.values()):
            due.append(DRAIN_SECONDS)
        deadline = work.deployment.spec.placement.bind_deadline_seconds
        now = self._clock()
        for item in instances:
            if item.alive and item.placed_at is not None and not item.scheduled:
                due.append(max(0.5, item.placed_at + deadline - now))
        if work.no_room is not None:
            due.append(self._placer.wait(work.owner) or NO_ROOM_SECONDS)
        if work.failure is not None:
            due.append(RETRY_SECONDS)
        if work.token_due is not None:
            due.append(work.token_due)
        if set(work.groups) != set(work.deployment.spec.roles) or work.late:
            due.append(DRAIN_SECONDS)
        return min(due) if due else None

    async def _write_status(self, work: Pass, status: DeploymentStatus) -> None:
        await self._apply_status(work.document, status.to_dict())
        self._metrics.status_written()

    async def _apply_status(
        self, document: Object, status: Object, *, manager: str = labels.OPERATOR_FIELD_MANAGER
    ) -> None:
        metadata = document["metadata"]
        body = {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "status": status,
        }
        await self._api.apply(DEPLOYMENTS, body, namespace=metadata["namespace"], subresource="status", manager=manager)

    async def _refuse(self, document: Object, error: SpecError) -> None:
        """A spec that the API server let pass and this version does not understand."""
        before, after = invalid_status(document, error, now=self._clock())
        if after.to_dict() != before.to_dict():
            await self._apply_status(document, after.to_dict())
        for note in transitions(before, after):
            await self._recorder.post(document, note)


def _found_no_room(status: DeploymentStatus) -> bool:
    """Whether the base gang found no room when it was last tried."""
    known = find_condition(status.conditions, ConditionType.GANG_SCHEDULED)
    return known is not None and known.status == "False" and known.reason in NO_ROOM


NO_ROOM = frozenset(
    (Reason.INSUFFICIENT_CAPACITY, Reason.NO_ELIGIBLE_NODES, Reason.UNKNOWN_TOPOLOGY_KEY, Reason.SEARCH_BOUND_HIT)
)


def _later(work: Pass, gang: Gang) -> list[Object]:
    """Gated pods that follow a base gang into its domain."""
    members = {item.uid for item in gang.instances}
    waiting = (item for item in work.members() if item.serving and item.gated and item.uid not in members)
    return [work.pods[item.name] for item in waiting if item.name in work.pods] if gang.base else []


def _may_remove(target: Target, instances: tuple[Instance, ...]) -> bool:
    """Whether some instance may have to go, so that it matters which."""
    serving = [item for item in instances if item.serving]
    return any(
        sum(1 for item in serving if item.role == role) > section.replicas
        or any(item.role == role and item.revision != section.revision for item in serving)
        for role, section in target.roles.items()
    )


def _own(status: DeploymentStatus) -> tuple[object, ...]:
    return tuple(condition for condition in status.conditions if condition.type in OWN)
