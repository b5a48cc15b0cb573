"""What nodes and priorities allow: affinity, every resource, preemption; nothing is ever over-booked."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_contract.labels import GPU_CLIQUE, GPU_RESOURCE, HOSTNAME
from disagg_crds import DisaggDeployment, DisaggGroup, Role
from disagg_operator.core.placement import (
    GangRequest,
    NodeView,
    NoRoom,
    Pairing,
    Placed,
    PodDemand,
    PodUse,
    Requirement,
    RoleRule,
    Snapshot,
    Spread,
    Taint,
    Tolerance,
    plan,
    unknown_levels,
)
from disagg_operator.core.placement.policy import gang_request
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.instances import NewInstance, pod
from disagg_operator.render.reading import demand
from disagg_operator.render.services import router_deployment

AROUND = Surroundings(image="disagg:0.1.0")
HUGE = "hugepages-2Mi"


def node(
    name: str, gpus: int = 8, *, rack: str = "r", labels: dict[str, str] | None = None, **amounts: int
) -> NodeView:
    allocatable = {GPU_RESOURCE: gpus, "cpu": 64_000, "memory": 256 << 30, "pods": 110} | amounts
    return NodeView(name=name, labels={HOSTNAME: name, GPU_CLIQUE: rack} | (labels or {}), allocatable=allocatable)


def wants(uid: str, gpus: int = 1, *, role: str = "decode", **fields: Any) -> PodDemand:
    return PodDemand(**{"uid": uid, "name": uid, "role": role, "requests": {GPU_RESOURCE: gpus}, **fields})


def placed(outcome: Placed | NoRoom) -> Placed:
    assert isinstance(outcome, Placed), outcome
    return outcome


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [
        (Requirement("gpu", "In", ("h100", "h200")), True),
        (Requirement("gpu", "In", ("a100",)), False),
        (Requirement("gpu", "NotIn", ("a100",)), True),
        (Requirement("none", "NotIn", ("a100",)), True),
        (Requirement("gpu", "Exists"), True),
        (Requirement("none", "Exists"), False),
        (Requirement("none", "DoesNotExist"), True),
        (Requirement("memory", "Gt", ("79",)), True),
        (Requirement("memory", "Lt", ("80",)), False),
        (Requirement("gpu", "Gt", ("1",)), False),
        (Requirement("none", "Lt", ("1",)), False),
        (Requirement("metadata.name", "In", ("n1",), field=True), True),
        (Requirement("metadata.name", "NotIn", ("n1",), field=True), False),
        (Requirement("gpu", "Like", ("h",)), False),
    ],
)
def test_node_affinity_is_the_schedulers(requirement: Requirement, holds: bool) -> None:
    seen = node("n1", labels={"gpu": "h100", "memory": "80"})
    assert wants("p", node_terms=((requirement,),)).accepts(seen) == holds
    assert wants("p", node_terms=((Requirement("gpu", "DoesNotExist"),), (requirement,))).accepts(seen) == holds, "or"
    assert not wants("p", node_terms=((requirement, Requirement("none", "Exists")),)).accepts(seen), "and"
    assert not wants("p", node_terms=((),)).accepts(seen), "an empty term matches nothing"


def test_room_of_lower_priority_is_no_room_unless_the_gang_may_preempt() -> None:
    full = Snapshot.take(
        [node("n1"), node("n2", rack="s")],
        [
            PodUse("cheap", "n1", ((GPU_RESOURCE, 4),), priority=-5),
            PodUse("same", "n1", ((GPU_RESOURCE, 2),), priority=100),
            PodUse("a", "n2", ((GPU_RESOURCE, 1),), priority=5),
            PodUse("b", "n2", ((GPU_RESOURCE, 1),), priority=3),
            PodUse("c", "n2", ((GPU_RESOURCE, 5),), priority=4),
        ],
    )
    gang = tuple(wants(f"p{index}", 2, priority=100) for index in range(2))
    polite = GangRequest(pods=gang, required=GPU_CLIQUE)
    assert isinstance(plan(polite, full), NoRoom)
    rude = GangRequest(pods=gang, required=GPU_CLIQUE, preemption=True)
    outcome = placed(plan(rude, full))
    assert outcome.domain.value == "r", "the victim of the lowest priority goes"
    assert outcome.victims == ("cheap",)
    assert "1 pod of lower priority will be evicted for it" in outcome.message
    never = tuple(wants(f"p{index}", 2, priority=100, preempts=False) for index in range(2))
    assert isinstance(plan(GangRequest(pods=never, required=GPU_CLIQUE, preemption=True), full), NoRoom)
    only = GangRequest(pods=gang, required=GPU_CLIQUE, preemption=True, excluded=frozenset({"r"}))
    assert placed(plan(only, full)).victims == ("c",), "as few as can be: a and b fit beside the gang"


def test_nobody_is_evicted_where_there_is_room_without() -> None:
    rooms = Snapshot.take([node("n1"), node("n2", rack="s")], [PodUse("low", "n1", ((GPU_RESOURCE, 8),), priority=-1)])
    outcome = placed(plan(GangRequest(pods=(wants("p", 8),), required=GPU_CLIQUE, preemption=True), rooms))
    assert (outcome.nodes["p"].name, outcome.victims) == ("n2", ())
    pending = PodUse("pinned", "", ((GPU_RESOURCE, 8),), "n1", -1)
    alone = Snapshot.take([node("n1")], [pending])
    request = GangRequest(pods=(wants("p", 8),), required=GPU_CLIQUE, preemption=True)
    assert isinstance(plan(request, alone), NoRoom), "what is not bound holds no node that could be taken from it"


def test_unknown_levels_are_named() -> None:
    nodes = [node("n1"), node("n2")]
    assert unknown_levels(nodes, [GPU_CLIQUE, "row", HOSTNAME, "row"]) == ("row",)
    assert unknown_levels([], ["row"]) == ()


amounts = st.fixed_dictionaries(
    {GPU_RESOURCE: st.integers(0, 3), "cpu": st.integers(0, 3), HUGE: st.integers(0, 2), "rdma/ib": st.integers(0, 1)}
)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[NodeView], list[PodUse], GangRequest]:
    names = [f"n{index}" for index in range(draw(st.integers(1, 5)))]
    nodes = [
        NodeView(
            name=name,
            labels={HOSTNAME: name, "rack": draw(st.sampled_from("ab")), "gpu": draw(st.sampled_from(["h", "a"]))},
            allocatable=draw(amounts) | {GPU_RESOURCE: draw(st.integers(0, 6)), "pods": draw(st.integers(0, 4))},
            taints=draw(st.sampled_from([(), (Taint("gpu"),)])),
            schedulable=draw(st.sampled_from([True, True, True, False])),
        )
        for name in names
    ]
    uses = [
        PodUse(
            f"u{index}", draw(st.sampled_from(names)), tuple(draw(amounts).items()), priority=draw(st.integers(0, 2))
        )
        for index in range(draw(st.integers(0, 4)))
    ]
    pods = tuple(
        PodDemand(
            uid=f"p{index}",
            name=f"p{index}",
            role=draw(st.sampled_from(["prefill", "decode"])),
            requests=draw(amounts),
            node_selector=draw(st.sampled_from([{}, {"gpu": "h"}])),
            tolerations=draw(st.sampled_from([(), (Tolerance("gpu", "Exists"),)])),
            priority=draw(st.integers(0, 2)),
        )
        for index in range(draw(st.integers(1, 5)))
    )
    spread = draw(st.sampled_from([None, Spread("rack"), Spread(HOSTNAME, 2)]))
    request = GangRequest(
        pods=pods,
        required=draw(st.sampled_from([None, "rack"])),
        preferred=draw(st.sampled_from([None, HOSTNAME])),
        rules={"decode": RoleRule(preferred=draw(st.sampled_from([None, HOSTNAME])), spread=spread)},
        pairing=draw(st.sampled_from(list(Pairing))),
        preemption=draw(st.booleans()),
    )
    return nodes, uses, request


@settings(max_examples=300)
@given(crowd=crowds())
def test_no_node_is_ever_overbooked(crowd: tuple[list[NodeView], list[PodUse], GangRequest]) -> None:
    nodes, uses, request = crowd
    snapshot = Snapshot.take(nodes, uses)
    outcome = plan(request, snapshot)
    assert outcome == plan(request, Snapshot.take(nodes[::-1], uses[::-1])), "equal inputs give equal answers"
    if isinstance(outcome, NoRoom):
        assert outcome.message
        assert all(value > 0 for value in outcome.missing.values())
        return
    evicted = set(outcome.victims)
    assert request.preemption or not evicted
    assert all(use.priority < min(pod.priority for pod in request.pods) for use in uses if use.uid in evicted)
    left = Snapshot.take(nodes, [use for use in uses if use.uid not in evicted]).free
    for seen in nodes:
        mine = [pod for pod in request.pods if outcome.nodes[pod.uid].name == seen.name]
        assert all(pod.accepts(seen) for pod in mine)
        assert not mine or len(mine) <= left[seen.name].get("pods", 0)
        for resource in (GPU_RESOURCE, "cpu", HUGE, "rdma/ib"):
            load = sum(pod.requests[resource] for pod in mine)
            assert load == 0 or load <= left[seen.name].get(resource, 0)
    if request.required:
        assert len({found.labels[request.required] for found in outcome.nodes.values()}) == 1
    if request.pairing is Pairing.REQUIRED:
        roles = {pod.role for pod in request.pods}
        shared = [{outcome.nodes[pod.uid].name for pod in request.pods if pod.role == role} for role in sorted(roles)]
        assert len(shared) < 2 or shared[0] == shared[1]


def test_pg8_no_placement_option_renders_a_required_affinity_between_roles(
    make_deployment: Callable[..., DisaggDeployment], make_group: Callable[..., DisaggGroup]
) -> None:
    """Placement keeps pods together, not affinity: nothing can wait for itself, and the first pod can always go."""
    strengths = ("none", "preferred", "required")
    spread = {"spread": {"level": HOSTNAME, "most": 1}}
    owns: list[dict[str, Any]] = [{}, {"required": HOSTNAME}, spread, {"instanceWithin": GPU_CLIQUE}]
    for pairing, apart, own in product(strengths, strengths, owns):
        role = {"replicas": 1, "gpu": {"type": "h100"}, "placement": own}
        deployment = make_deployment(
            prefill=role, decode=role, placement={"stagePairing": pairing}, router={"antiAffinity": apart}
        )
        manifests = [
            pod(deployment, make_group(), NewInstance(name=found.value, role=found, gang="chat"), around=AROUND)
            for found in (Role.PREFILL, Role.DECODE)
        ]
        specs = [manifest["spec"] for manifest in manifests]
        specs.append(router_deployment(deployment, around=AROUND)["spec"]["template"]["spec"])
        assert all("podAffinity" not in spec.get("affinity", {}) for spec in specs)
        for manifest in manifests:
            manifest["metadata"]["uid"] = manifest["metadata"]["name"]
        empty = Snapshot.take([node("n1"), node("n2")], [])
        placed(plan(gang_request(deployment.spec, map(demand, manifests)), empty))


def test_pg9_routers_on_nodes_of_their_own_can_be_updated(make_deployment: Callable[..., DisaggDeployment]) -> None:
    """As many replicas as nodes: one more has nowhere to go, so one has to go first."""
    required = router_deployment(make_deployment(router={"replicas": 3, "antiAffinity": "required"}), around=AROUND)
    terms = required["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    assert terms["requiredDuringSchedulingIgnoredDuringExecution"][0]["topologyKey"] == HOSTNAME
    assert required["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    usual = router_deployment(make_deployment(router={"replicas": 3}), around=AROUND)
    assert "preferredDuringSchedulingIgnoredDuringExecution" in str(usual["spec"]["template"]["spec"]["affinity"])
    assert usual["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    none = router_deployment(make_deployment(router={"antiAffinity": "none"}), around=AROUND)
    assert "affinity" not in none["spec"]["template"]["spec"]


def test_affinity_of_a_template_is_rendered_and_read_back(
    make_deployment: Callable[..., DisaggDeployment], make_group: Callable[..., DisaggGroup]
) -> None:
    terms = [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    role = {"replicas": 1, "gpu": {"type": "h100"}, "template": {"affinity": affinity}}
    deployment = make_deployment(prefill=role, router={"template": {"affinity": affinity}})
    manifest = pod(deployment, make_group(), NewInstance(name="p", role=Role.PREFILL, gang="chat"), around=AROUND)
    manifest["metadata"]["uid"] = "u"
    assert demand(manifest).node_terms == ((Requirement("gpu", "In", ("h100",)),),)
    router = router_deployment(deployment, around=AROUND)["spec"]["template"]["spec"]["affinity"]
    assert set(router) == {"nodeAffinity", "podAntiAffinity"}
