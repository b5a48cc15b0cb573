"""Scores, sentences, who fragments most, and moves that make room."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_contract.labels import GPU_CLIQUE, GPU_RESOURCE, HOSTNAME
from disagg_crds import DisaggDeployment, Role
from disagg_operator.core.actions import Delete, Drain
from disagg_operator.core.decide import decide
from disagg_operator.core.fleet import Instance, Observed, RoleTarget, Target
from disagg_operator.core.placement import (
    GangRequest,
    Movable,
    NodeView,
    Placed,
    PodDemand,
    PodUse,
    Present,
    Snapshot,
    Spread,
    defragment,
    describe,
    fragmenting,
    placement_score,
    plan,
)
from disagg_operator.core.placement.policy import asked_levels, gang_request, measured_levels, parts
from disagg_operator.core.ranking import removal_rank

PREFILL, DECODE, WORKER = "prefill", "decode", "worker"


def node(name: str, rack: str = "r", gpus: int = 8) -> NodeView:
    return NodeView(
        name=name, labels={HOSTNAME: name, GPU_CLIQUE: rack}, allocatable={GPU_RESOURCE: gpus, "cpu": 8000, "pods": 110}
    )


def demand(name: str, gpus: int = 1) -> PodDemand:
    return PodDemand(uid=name, name=name, role=DECODE, requests={GPU_RESOURCE: gpus})


def use(uid: str, at: str, gpus: int = 1) -> PodUse:
    return PodUse(uid, at, ((GPU_RESOURCE, gpus),))


NODES = {name: node(name, rack) for name, rack in (("a1", "a"), ("a2", "a"), ("b1", "b"))}


def test_the_score_is_the_share_of_pairs_whose_kv_stays_inside() -> None:
    together = [Present(PREFILL, "p", "a1"), Present(DECODE, "d", "a2"), Present(DECODE, "e", "a1")]
    assert placement_score(together, NODES, [GPU_CLIQUE]) == 1.0
    assert placement_score(together, NODES, [HOSTNAME]) == 0.5
    assert placement_score(together, NODES, [GPU_CLIQUE, HOSTNAME]) == 0.75
    apart = [Present(PREFILL, "p", "a1"), Present(DECODE, "d", "b1")]
    assert placement_score(apart, NODES, [GPU_CLIQUE]) == 0.0
    assert placement_score([*apart, Present(DECODE, "e", "a1")], NODES, [GPU_CLIQUE]) == 0.5
    assert placement_score([], NODES, [GPU_CLIQUE]) is None, "what is nowhere has no score"
    assert placement_score([Present(PREFILL, "p", "gone"), Present(DECODE, "d", "gone")], NODES, [GPU_CLIQUE]) == 0.0


def test_colocated_instances_are_scored_by_not_crossing_a_domain() -> None:
    spanning = [Present(WORKER, "w", "a1"), Present(WORKER, "w", "b1"), Present(WORKER, "v", "a1")]
    assert placement_score(spanning, NODES, [GPU_CLIQUE]) == 0.5
    crossing = [Present(PREFILL, "p", "a1"), Present(PREFILL, "p", "b1"), Present(DECODE, "d", "a1")]
    assert placement_score(crossing, NODES, [GPU_CLIQUE]) == 0.0, "part of its KV leaves the domain"


@given(homes=st.lists(st.tuples(st.sampled_from([PREFILL, DECODE]), st.sampled_from(sorted(NODES))), min_size=1))
def test_scores_lie_between_0_and_1_and_ignore_order(homes: list[tuple[str, str]]) -> None:
    pods = [Present(role, str(number), at) for number, (role, at) in enumerate(homes)]
    score = placement_score(pods, NODES, [GPU_CLIQUE, HOSTNAME])
    assert score is not None
    assert 0 <= score <= 1
    assert placement_score(pods[::-1], NODES, [GPU_CLIQUE, HOSTNAME]) == score
    if len({NODES[at].labels[GPU_CLIQUE] for _, at in homes}) == 1:
        assert placement_score(pods, NODES, [GPU_CLIQUE]) == 1.0


def test_a_sentence_says_what_is_where() -> None:
    inside = [Present(DECODE, "d", "a2"), Present(PREFILL, "p", "a1"), Present(DECODE, "e", "a1")]
    assert (
        describe(inside, NODES, GPU_CLIQUE) == "1 prefill on a1; 2 decode on a1, a2; all in a (nvidia.com/gpu.clique)"
    )
    mixed = [*inside, Present(DECODE, "f", "b1")]
    assert describe(mixed, NODES, GPU_CLIQUE).endswith(
        "3 of 4 instances in a (nvidia.com/gpu.clique), the others elsewhere"
    )
    many = [Present(DECODE, str(number), f"n{number}") for number in range(9)]
    assert "n5 and 3 more" in describe(many, {f"n{n}": node(f"n{n}") for n in range(9)}, GPU_CLIQUE)
    assert describe([], NODES, GPU_CLIQUE) == ""


def test_the_pod_that_leaves_the_largest_hole_fragments_most() -> None:
    snapshot = Snapshot.take(NODES.values(), [use("x", "a1"), use("y", "a2"), use("z", "a2", 6)])
    pods = {"x": ("a1", {GPU_RESOURCE: 1}), "y": ("a2", {GPU_RESOURCE: 1}), "lost": ("gone", {GPU_RESOURCE: 1})}
    assert fragmenting(pods, snapshot, level=GPU_CLIQUE, home=None) == {"x": 8, "y": 2}
    outside = {"y": ("a2", {GPU_RESOURCE: 1}), "w": ("b1", {GPU_RESOURCE: 1})}
    amounts = fragmenting(outside, Snapshot.take(NODES.values(), [use("y", "a2")]), level=GPU_CLIQUE, home="a")
    assert amounts["w"] > amounts["y"], "one outside of the deployment's domain goes first"


def test_victims_go_in_the_documented_order(make_instance: Callable[..., Instance]) -> None:
    gated = make_instance(state="gated")
    pinned, starting = make_instance(state="pinned"), make_instance(state="bound")
    old = make_instance(revision="r0")
    scattered = make_instance(fragments=8, created_at=1.0)
    older, newest = make_instance(fragments=2, created_at=2.0), make_instance(fragments=2, created_at=3.0)
    going = make_instance(terminating=True)
    fleet = (older, newest, scattered, old, starting, pinned, gated, going)
    ranked = sorted(fleet[:-1], key=lambda item: removal_rank(item, "r1"))
    assert ranked == [gated, pinned, starting, old, scattered, newest, older]
    role = RoleTarget(role=Role.DECODE, replicas=3, base=1, gpus=1, revision="r1")
    actions = decide(Target(deployment="chat", roles={Role.DECODE: role}), Observed(0.0, fleet)).actions
    assert [item.instance for item in actions if isinstance(item, Delete | Drain)] == [gated, pinned, starting, old]


def test_moves_make_room_for_a_gang_that_asked() -> None:
    rooms = Snapshot.take([node("x", gpus=4), node("y", gpus=4)], [use("m", "x"), use("n", "y", 2)])
    wanted = GangRequest(pods=(demand("big", 4),), required=GPU_CLIQUE)
    movable = [Movable(pod=demand("m"), node="x", level=GPU_CLIQUE)]
    found = defragment(rooms, movable, gang=wanted)
    assert (found.enough, found.emptied) == (True, ("x",))
    assert [(move.name, move.source, move.target) for move in found.moves] == [("m", "x", "y")]
    assert defragment(rooms, movable, gang=wanted, most=0).enough is False
    assert defragment(rooms, [], gang=wanted).moves == ()
    small = GangRequest(pods=(demand("s", 2),), required=GPU_CLIQUE)
    assert defragment(rooms, movable, gang=small).moves == (), "it fits as it is"
    apart = Snapshot.take([node("x", "a", 4), node("y", "b", 4)], [use("m", "x"), use("n", "y", 2)])
    assert defragment(apart, movable, gang=wanted).enough is False, "nobody leaves the domain of its deployment"


clusters = st.lists(st.lists(st.integers(1, 4), max_size=2), min_size=2, max_size=5)


@settings(max_examples=100)
@given(loads=clusters, fixed=st.sets(st.integers(0, 12)))
def test_moves_never_overbook_and_only_empty_nodes(loads: list[list[int]], fixed: set[int]) -> None:
    nodes = [node(f"n{index}") for index in range(len(loads))]
    pods = [(f"p{index}-{k}", f"n{index}", gpus) for index, load in enumerate(loads) for k, gpus in enumerate(load)]
    snapshot = Snapshot.take(nodes, [use(*pod) for pod in pods])
    movable = [Movable(pod=demand(uid, gpus), node=at) for n, (uid, at, gpus) in enumerate(pods) if n not in fixed]
    found = defragment(snapshot, movable)
    where = {uid: at for uid, at, _ in pods}
    sizes = {uid: gpus for uid, _, gpus in pods}
    for move in found.moves:
        assert where[move.uid] == move.source
        where[move.uid] = move.target
        held = Counter[str]()
        for uid, at in where.items():
            held[at] += sizes[uid]
        assert all(amount <= 8 for amount in held.values()), "each pod finds its room free when its turn comes"
    assert not set(found.emptied) & set(where.values())
    before = len({at for _, at, _ in pods})
    assert len(set(where.values())) <= before - len(found.emptied)


def test_the_spec_becomes_a_request(make_deployment: Callable[..., DisaggDeployment]) -> None:
    gpu = {"type": "h100"}
    spread = {"level": HOSTNAME, "most": 2}
    spec = make_deployment(
        prefill={"replicas": 1, "gpu": gpu, "placement": {"required": "rack", "spread": spread}},
        decode={"replicas": 1, "gpu": gpu, "placement": {"required": "", "instanceWithin": "rack"}},
        placement={
            "levels": ["zone", "rack", HOSTNAME],
            "preferred": "rack",
            "stagePairing": "preferred",
            "preemption": "lowerPriority",
        },
    ).spec
    request = gang_request(spec, [demand("d")], within="z1")
    assert (request.required, request.preferred, request.within, request.preemption) == ("zone", "rack", "z1", True)
    assert request.pairing.value == "preferred"
    assert set(request.rules) == {PREFILL, DECODE}
    assert request.rules[PREFILL].spread == Spread(HOSTNAME, 2)
    assert (request.rules[DECODE].required, request.rules[DECODE].instance) == (None, "rack")
    assert measured_levels(spec) == ("zone", "rack")
    assert asked_levels(spec) == ("zone", "rack", HOSTNAME)
    free = make_deployment(placement={"required": ""}).spec
    assert gang_request(free, [demand("d")], within="cluster").within is None
    assert gang_request(free, [demand("d")]).rules == {}
    assert measured_levels(free) == (GPU_CLIQUE,)


def test_an_instance_is_cut_into_pods_of_equal_gpus(make_deployment: Callable[..., DisaggDeployment]) -> None:
    role = {"replicas": 1, "gpu": {"type": "h100"}, "parallelism": {"tensor": 8, "pipeline": 4}, "gpusPerPod": 4}
    section = make_deployment(prefill=role).spec.roles[Role.PREFILL]
    whole = replace(demand("p", 32), requests={GPU_RESOURCE: 32, "cpu": 100})
    pods = parts(section, whole)
    assert [pod.name for pod in pods] == [f"p-{index}" for index in range(8)]
    assert {(pod.owner, pod.requests[GPU_RESOURCE], pod.requests["cpu"]) for pod in pods} == {("p", 4, 100)}
    assert [pod.stage for pod in pods] == [0, 0, 1, 1, 2, 2, 3, 3]
    outcome = plan(GangRequest(pods=pods, required=GPU_CLIQUE), Snapshot.take([node(f"n{n}") for n in range(4)], []))
    assert isinstance(outcome, Placed)
    assert Counter(found.name for found in outcome.nodes.values()) == {f"n{n}": 2 for n in range(4)}
