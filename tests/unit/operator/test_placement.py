"""Gang placement on small clusters, and its invariants on random ones."""

from collections import Counter
from collections.abc import Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_contract.labels import GPU_CLIQUE, GPU_RESOURCE, HOSTNAME
from disagg_crds import Reason
from disagg_operator.core.placement import (
    GangRequest,
    Ledger,
    Line,
    NodeView,
    NoRoom,
    Placed,
    PodDemand,
    PodUse,
    Snapshot,
    Taint,
    Tolerance,
    plan,
)
from disagg_operator.core.placement.packing import Item, pack


def node(name: str, domain: str | None = "a", *, gpus: int = 4, **fields: object) -> NodeView:
    labels = {HOSTNAME: name} | ({GPU_CLIQUE: domain} if domain else {})
    allocatable = {GPU_RESOURCE: gpus, "cpu": 8000, "memory": 32 << 30, "pods": 110}
    return NodeView(name=name, labels=labels, **{"allocatable": allocatable, **fields})  # type: ignore[arg-type]


def pods(*gpus: int, **fields: object) -> tuple[PodDemand, ...]:
    return tuple(
        PodDemand(
            uid=f"uid-{index}",
            name=f"pod-{index}",
            role="decode",
            requests={GPU_RESOURCE: count, "cpu": 100},
            **fields,  # type: ignore[arg-type]
        )
        for index, count in enumerate(gpus)
    )


def gang(*gpus: int, **fields: object) -> GangRequest:
    return GangRequest(pods=pods(*gpus), **{"required": GPU_CLIQUE, **fields})  # type: ignore[arg-type]


def used(name: str, gpus: int, uid: str = "") -> PodUse:
    return PodUse(uid or f"on-{name}", name, ((GPU_RESOURCE, gpus),))


def placed(outcome: Placed | NoRoom) -> Placed:
    assert isinstance(outcome, Placed), outcome
    return outcome


def refused(outcome: Placed | NoRoom) -> NoRoom:
    assert isinstance(outcome, NoRoom), outcome
    return outcome


def test_the_fullest_domain_that_holds_the_whole_gang_wins() -> None:
    nodes = [node("a1"), node("a2"), node("b1", "b"), node("b2", "b"), node("c1", "c")]
    snapshot = Snapshot.take(nodes, [used("b1", 3), used("c1", 3)])
    result = placed(plan(gang(1, 1, 1), snapshot))
    assert result.domain.value == "b", "c has room for a part only, a is emptier"
    assert placed(plan(gang(1), snapshot)).domain.value == "c"


def test_pg2_three_of_four_slots_free_places_nothing_and_says_so() -> None:
    snapshot = Snapshot.take([node("a1"), node("b1", "b", gpus=2)], [used("a1", 1)])
    result = refused(plan(gang(1, 1, 1, 1), snapshot))
    assert result.reason is Reason.INSUFFICIENT_CAPACITY
    assert result.best_domain == "a"
    assert result.missing == {GPU_RESOURCE: 1}
    assert "4 nvidia.com/gpu needed, 3 free" in result.message


def test_a_sum_that_does_not_pack_is_no_room() -> None:
    snapshot = Snapshot.take([node("a1"), node("a2"), node("a3")], [used(name, 2) for name in ("a1", "a2", "a3")])
    result = refused(plan(gang(4), snapshot))
    assert result.missing == {GPU_RESOURCE: 4}
    assert "no node has room left for pod-0" in result.message


def test_pg3_a_gang_that_cannot_fit_does_not_stop_one_that_can() -> None:
    snapshot = Snapshot.take([node("a1", gpus=8)], [])
    refused(plan(gang(*[1] * 9), snapshot))
    placed(plan(gang(1, 1), snapshot))


def test_terminating_pods_still_hold_their_gpus() -> None:
    # A use is a use until the pod is gone; the reader of pods never looks at the deletion time.
    refused(plan(gang(4), Snapshot.take([node("a1")], [used("a1", 1, "terminating")])))


def test_a_pinned_pod_counts_on_the_node_with_its_hostname() -> None:
    reservation = PodUse("u", "", ((GPU_RESOURCE, 1),), "a1")
    refused(plan(gang(4), Snapshot.take([node("a1")], [reservation])))


def test_an_instance_larger_than_every_node_is_refused_as_such() -> None:
    result = refused(plan(gang(16), Snapshot.take([node("a1", gpus=8), node("a2", gpus=8)], [])))
    assert result.reason is Reason.INSUFFICIENT_CAPACITY
    assert "needs 16 nvidia.com/gpu on one node" in result.message
    assert "the largest has 8" in result.message
    assert result.missing == {GPU_RESOURCE: 8}


def test_other_resources_count_too() -> None:
    memory = tuple(PodDemand(uid=f"u{n}", name=f"p{n}", role="decode", requests={"memory": 20 << 30}) for n in range(2))
    result = refused(plan(GangRequest(pods=memory, required=GPU_CLIQUE), Snapshot.take([node("a1")], [])))
    assert result.missing == {"memory": 8 << 30}
    crowded = node("a1", allocatable={GPU_RESOURCE: 8, "cpu": 8000, "pods": 1})
    assert refused(plan(gang(1, 1), Snapshot.take([crowded], []))).missing == {"pods": 1}


def test_unusable_nodes_are_left_out() -> None:
    cordoned = node("a1", schedulable=False)
    tainted = node("a2", taints=(Taint("gpu", "yes"),))
    soft = node("a3", taints=(Taint("hot", effect="PreferNoSchedule"),))
    assert placed(plan(gang(1), Snapshot.take([cordoned, tainted, soft], []))).nodes["uid-0"].name == "a3"
    result = refused(plan(gang(1), Snapshot.take([cordoned, tainted], [])))
    assert result.reason is Reason.NO_ELIGIBLE_NODES
    tolerant = GangRequest(
        pods=pods(1, tolerations=(Tolerance("gpu", "Exists"),), node_selector={HOSTNAME: "a2"}), required=GPU_CLIQUE
    )
    assert placed(plan(tolerant, Snapshot.take([cordoned, tainted, soft], []))).nodes["uid-0"].name == "a2"


def test_a_node_without_the_label_is_a_domain_of_its_own() -> None:
    snapshot = Snapshot.take([node("x", None), node("y", None)], [])
    assert placed(plan(gang(2, 2), snapshot)).domain.key == HOSTNAME
    result = refused(plan(gang(4, 4), snapshot))
    assert result.reason is Reason.UNKNOWN_TOPOLOGY_KEY
    assert GPU_CLIQUE in result.message


def test_levels_required_preferred_and_none() -> None:
    nodes = [node("a1"), node("a2"), node("b1", "b"), node("b2", "b")]
    snapshot = Snapshot.take(nodes, [used("b1", 2), used("b2", 2)])
    assert placed(plan(gang(2, 2), snapshot)).domain.value == "b"
    assert placed(plan(gang(2, 2, preferred=HOSTNAME), snapshot)).domain.key == HOSTNAME
    anywhere = placed(plan(gang(4, 4, 2, 2, required=None), snapshot))
    assert {found.name for found in anywhere.nodes.values()} == {"a1", "a2", "b1", "b2"}


def test_a_deployment_stays_in_its_domain() -> None:
    snapshot = Snapshot.take([node("a1", gpus=8), node("b1", "b", gpus=1)], [])
    assert placed(plan(gang(1, within="a"), snapshot)).domain.value == "a"
    assert refused(plan(gang(2, within="b"), snapshot)).best_domain == "b"
    assert placed(plan(gang(1, excluded=frozenset({"b"})), snapshot)).domain.value == "a"
    everything = refused(plan(gang(1, excluded=frozenset({"a", "b"})), snapshot))
    assert "left out for now: a, b" in everything.message


def test_the_search_finds_what_first_fit_misses() -> None:
    # First-fit decreasing puts 6 and 3 together, then no bin takes the last 4.
    free = ((10,), (10,))
    items = [Item((size,), (0, 1)) for size in (6, 4, 4, 3, 3)]
    packing = pack(items, free)
    assert packing.bins is not None
    assert [sum(item.size[0] for item, bin_ in zip(items, packing.bins, strict=True) if bin_ == b) for b in (0, 1)] == [
        10,
        10,
    ]


def test_the_search_says_when_its_bound_was_hit() -> None:
    items = [Item((size,), tuple(range(6))) for size in (7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 5, 5, 4, 4, 4, 4)]
    packing = pack(items, ((15,),) * 6, step_limit=3)
    assert packing.bound_hit
    assert packing.bins is None


def test_promises_bridge_the_lag_of_the_watch() -> None:
    ledger = Ledger()
    ledger.promise([used("a1", 3, "p1")], now=0.0)
    snapshot = Snapshot.take([node("a1")], ledger.outstanding(now=1.0))
    refused(plan(gang(2), snapshot))
    ledger.withdraw(["p1"])
    assert ledger.outstanding(now=2.0) == ()
    ledger.promise([used("a1", 3, "p2")], now=0.0)
    assert ledger.outstanding(now=61.0) == ()


def test_a_domain_that_failed_is_left_out_longer_each_time() -> None:
    ledger = Ledger(first_back_off_seconds=10, longest_back_off_seconds=25)
    assert ledger.failed("team/chat", "a", now=0.0) == 10.0
    assert ledger.excluded("team/chat", now=9.0) == {"a"}
    assert ledger.excluded("team/other", now=9.0) == frozenset()
    assert ledger.excluded("team/chat", now=10.0) == frozenset()
    assert ledger.failed("team/chat", "a", now=10.0) == 30.0
    assert ledger.failed("team/chat", "a", now=30.0) == 55.0
    assert ledger.wait("team/chat", now=40.0) == 15.0
    ledger.bound("team/chat")
    assert ledger.excluded("team/chat", now=31.0) == frozenset()


def test_pg3_a_large_gang_is_not_starved_by_a_stream_of_small_ones() -> None:
    line = Line(aging_seconds=60)
    small, large = gang(1, 1), gang(*[1] * 9)
    eight = Snapshot.take([node("a1", gpus=8)], [])
    line.refused("large", large, refused(plan(large, eight)), eight, now=0.0)
    assert line.held("small", now=1000.0) == frozenset(), "it could never fit, so nothing is kept for it"
    eleven = Snapshot.take([node("a1", gpus=8), node("a2", gpus=3), node("b1", "b", gpus=2)], [used("a1", 4)])
    line.refused("large", large, refused(plan(large, eleven)), eleven, now=1010.0)
    assert line.held("large", now=1020.0) == frozenset()
    assert line.held("small", now=1020.0) == {"a"}, "it has waited since 0"
    elsewhere = GangRequest(pods=small.pods, required=GPU_CLIQUE, excluded=line.held("small", now=1020.0))
    assert placed(plan(elsewhere, eleven)).domain.value == "b"
    inside = GangRequest(pods=small.pods, required=GPU_CLIQUE, within="a", excluded=line.held("small", now=1020.0))
    assert "kept for a gang that waits longer" in refused(plan(inside, eleven)).message
    free = Snapshot.take([node("a1", gpus=8), node("a2", gpus=3)], [used("a1", 2)])
    placed(plan(large, free))
    line.leave("large")
    assert line.held("small", now=1020.0) == frozenset()


def test_pg3_who_waits_longer_goes_first() -> None:
    line = Line(aging_seconds=60)
    snapshot = Snapshot.take([node("a1")], [used("a1", 1)])
    for owner, now in (("first", 0.0), ("second", 10.0)):
        line.refused(owner, gang(4), refused(plan(gang(4), snapshot)), snapshot, now=now)
    assert line.held("second", now=100.0) == {"a"}
    assert line.held("first", now=100.0) == frozenset()
    assert line.held("newcomer", now=50.0) == frozenset(), "not before the time has come"


clusters = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=5
)
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)


def build(cluster: Sequence[tuple[str | None, int, int]]) -> Snapshot:
    nodes = [node(f"n{index}", domain, gpus=gpus) for index, (domain, gpus, _) in enumerate(cluster)]
    return Snapshot.take(nodes, [used(f"n{index}", taken) for index, (_, _, taken) in enumerate(cluster)])


def packs(sizes: Sequence[int], rooms: Sequence[int]) -> bool:
    """Exhaustive oracle for one domain."""
    for choice in product(range(len(rooms)), repeat=len(sizes)):
        load = Counter[int]()
        for size, room in zip(sizes, choice, strict=True):
            load[room] += size
        if all(load[index] <= room for index, room in enumerate(rooms)):
            return True
    return False


@settings(max_examples=150)
@given(cluster=clusters, sizes=sizes)
def test_a_gang_is_placed_whole_without_overcommit_exactly_when_it_packs(
    cluster: list[tuple[str | None, int, int]], sizes: list[int]
) -> None:
    snapshot = build(cluster)
    rooms: dict[str, list[int]] = {}
    for index, (domain, gpus, taken) in enumerate(cluster):
        rooms.setdefault(domain or f"n{index}", []).append(max(0, gpus - taken))
    possible = any(packs(sizes, room) for room in rooms.values())
    outcome = plan(gang(*sizes), snapshot)
    assert isinstance(outcome, Placed) == possible
    assert outcome == plan(gang(*sizes), build(list(cluster))), "equal inputs give equal answers"
    if isinstance(outcome, Placed):
        assert set(outcome.nodes) == {f"uid-{index}" for index in range(len(sizes))}
        load = Counter[str]()
        for index, size in enumerate(sizes):
            load[outcome.nodes[f"uid-{index}"].name] += size
        assert all(count <= snapshot.free[name][GPU_RESOURCE] for name, count in load.items())
        assert len({found.labels.get(GPU_CLIQUE) or found.name for found in outcome.nodes.values()}) == 1


@given(domains=st.integers(1, 4), nodes=st.integers(1, 3), gpus=st.integers(1, 4))
def test_one_capacity_short_places_nothing(domains: int, nodes: int, gpus: int) -> None:
    snapshot = Snapshot.take([node(f"{d}-{n}", f"d{d}", gpus=gpus) for d in range(domains) for n in range(nodes)], [])
    room = nodes * gpus
    placed(plan(gang(*[1] * room), snapshot))
    result = refused(plan(gang(*[1] * (room + 1)), snapshot))
    assert result.missing == {GPU_RESOURCE: 1}


mixed = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5)


@settings(max_examples=200)
@given(sizes=mixed, bins=mixed, data=st.data())
def test_packing_agrees_with_exhaustive_search(
    sizes: list[tuple[int, int]], bins: list[tuple[int, int]], data: st.DataObject
) -> None:
    subsets = st.sets(st.integers(0, len(bins) - 1)).map(lambda found: tuple(sorted(found)))
    items = [Item(size, data.draw(subsets)) for size in sizes]
    packing = pack(items, bins)
    possible = any(
        all(
            sum(items[i].size[axis] for i in range(len(items)) if choice[i] == b) <= room[axis]
            for b, room in enumerate(bins)
            for axis in (0, 1)
        )
        for choice in product(*(item.bins for item in items))
    )
    assert (packing.bins is not None) == possible
    assert not packing.bound_hit
