"""Rules of roles: levels, instances that span nodes, spreads, paired stages; each against an exhaustive search."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_contract.labels import GPU_CLIQUE, GPU_RESOURCE, HOSTNAME
from disagg_crds import Reason
from disagg_operator.core.placement import (
    GangRequest,
    NodeView,
    NoRoom,
    Pairing,
    Placed,
    PodDemand,
    PodUse,
    Present,
    RoleRule,
    Snapshot,
    Spread,
    plan,
)

RACK, ZONE = "rack", "zone"
PREFILL, DECODE = "prefill", "decode"


def node(name: str, *, gpus: int = 8, rack: str = "r", zone: str = "z", **extra: object) -> NodeView:
    labels = {HOSTNAME: name, RACK: rack, ZONE: zone, GPU_CLIQUE: rack}
    return NodeView(name=name, labels=labels, allocatable={GPU_RESOURCE: gpus, "pods": 110}, **extra)  # type: ignore[arg-type]


def pod(
    name: str, role: str = DECODE, gpus: int = 1, *, instance: str = "", stage: int = 0, **more: object
) -> PodDemand:
    fields = {"requests": {GPU_RESOURCE: gpus}, **more}
    return PodDemand(uid=name, name=name, role=role, instance=instance, stage=stage, **fields)  # type: ignore[arg-type]


def instance(name: str, role: str, *, pods: int, gpus: int = 8, stages: int = 1) -> tuple[PodDemand, ...]:
    """An instance of several pods, dealt to its stages in order."""
    return tuple(
        pod(f"{name}-{index}", role, gpus, instance=name, stage=index * stages // pods) for index in range(pods)
    )


def cluster(nodes: Sequence[NodeView], uses: Sequence[PodUse] = ()) -> Snapshot:
    return Snapshot.take(nodes, uses)


def placed(outcome: Placed | NoRoom) -> dict[str, str]:
    assert isinstance(outcome, Placed), outcome
    return {uid: found.name for uid, found in outcome.nodes.items()}


def refused(outcome: Placed | NoRoom) -> NoRoom:
    assert isinstance(outcome, NoRoom), outcome
    return outcome


def test_an_instance_of_320_gpus_is_one_gang_of_its_pods() -> None:
    whole = instance("d", DECODE, pods=40)
    racks = [node(f"n{rack}-{index}", rack=f"r{rack}") for rack in range(3) for index in range(18)]
    rooms = cluster([*racks, *(node(f"big-{index}", rack="big") for index in range(40))])
    where = placed(plan(GangRequest(pods=whole, required=RACK), rooms))
    assert {name.split("-")[0] for name in where.values()} == {"big"}
    assert len(set(where.values())) == 40
    result = refused(plan(GangRequest(pods=whole, required=RACK), cluster(racks)))
    assert result.missing == {GPU_RESOURCE: 320 - 144}
    assert "320 nvidia.com/gpu needed, 144 free" in result.message


def test_each_instance_stays_in_a_domain_while_the_gang_does_not() -> None:
    gang = (*instance("a", DECODE, pods=3), *instance("b", DECODE, pods=3), *instance("c", DECODE, pods=2))
    rooms = cluster([node(f"n{rack}-{index}", rack=f"r{rack}") for rack in range(2) for index in range(4)])
    request = GangRequest(pods=gang, required=ZONE, rules={DECODE: RoleRule(instance=RACK)})
    # Eight nodes, eight pods: a and b can't both lie in racks of four together with c, wherever c goes.
    assert "each instance of decode in one domain of rack" in refused(plan(request, rooms)).message
    where = placed(plan(replace(request, pods=gang[:6]), rooms))
    racks = [{where[item.uid].split("-")[0] for item in gang[:6] if item.instance == name} for name in "ab"]
    assert all(len(found) == 1 for found in racks)


def test_a_lost_pod_of_an_instance_comes_back_beside_the_others() -> None:
    lost = (pod("a-2", gpus=8, instance="a"),)
    rooms = cluster([node("n0", rack="r0"), node("n1", rack="r1"), node("m0", rack="r1", gpus=4)])
    rules = {DECODE: RoleRule(instance=RACK)}
    there = (Present(DECODE, "a", "m0"),)
    assert placed(plan(GangRequest(pods=lost, required=ZONE, rules=rules), rooms)) == {"a-2": "n0"}
    assert placed(plan(GangRequest(pods=lost, required=ZONE, rules=rules, present=there), rooms)) == {"a-2": "n1"}


def test_roles_have_levels_of_their_own() -> None:
    gang = tuple(pod(f"{role[0]}{index}", role, 4) for role in (PREFILL, DECODE) for index in range(4))
    rooms = cluster([node(f"n{rack}-{index}", rack=f"r{rack}") for rack in range(2) for index in range(3)])
    apart = {PREFILL: RoleRule(required=RACK), DECODE: RoleRule(required=RACK)}
    where = placed(plan(GangRequest(pods=gang, required=ZONE, rules=apart), rooms))
    for role in (PREFILL, DECODE):
        assert len({where[item.uid].split("-")[0] for item in gang if item.role == role}) == 1
    more = tuple(pod(f"p{index}", PREFILL, 4) for index in range(7))
    result = refused(plan(GangRequest(pods=more, required=ZONE, rules=apart), rooms))
    assert (
        "but not with all of prefill in one domain of rack: 28 nvidia.com/gpu needed in one, 24 free" in result.message
    )
    assert result.missing == {GPU_RESOURCE: 4}
    soft = {PREFILL: RoleRule(preferred=RACK)}
    outcome = plan(GangRequest(pods=more, required=ZONE, rules=soft), rooms)
    assert isinstance(outcome, Placed)
    assert outcome.given_up == ("the levels that roles prefer",)
    assert "given up for it: the levels that roles prefer" in outcome.message


def test_prefill_and_decode_on_different_gpus() -> None:
    big: dict[str, Any] = {"node_selector": {"gpu": "h100"}}
    small: dict[str, Any] = {"node_selector": {"gpu": "a100"}, "requests": {"amd.com/gpu": 2}}
    gang = (pod("p", PREFILL, 4, **big), pod("d", DECODE, **small))
    left = replace(node("h"), labels={HOSTNAME: "h", ZONE: "z", "gpu": "h100"})
    right = replace(
        node("a"), labels={HOSTNAME: "a", ZONE: "z", "gpu": "a100"}, allocatable={"amd.com/gpu": 4, "pods": 9}
    )
    assert placed(plan(GangRequest(pods=gang, required=ZONE), cluster([left, right]))) == {"p": "h", "d": "a"}
    poor = replace(right, allocatable={"amd.com/gpu": 1, "pods": 9})
    result = refused(plan(GangRequest(pods=gang, required=ZONE), cluster([left, poor])))
    assert result.missing == {"amd.com/gpu": 1}


def test_paired_stages_share_nodes() -> None:
    gang = (*instance("p", PREFILL, pods=2, gpus=4, stages=2), *instance("d", DECODE, pods=2, gpus=2, stages=2))
    rooms = cluster([node("n0", gpus=6), node("n1", gpus=6), node("n2", gpus=8)])
    where = placed(plan(GangRequest(pods=gang, required=RACK, pairing=Pairing.REQUIRED), rooms))
    assert where["p-0"] == where["d-0"]
    assert where["p-1"] == where["d-1"]
    tight = cluster([node("n0", gpus=4), node("n1", gpus=4), node("n2", gpus=4)])
    strict = GangRequest(pods=gang, required=RACK, pairing=Pairing.REQUIRED)
    result = refused(plan(strict, tight))
    assert "no node has room left for p-0 with d-0" in result.message
    loose = plan(replace(strict, pairing=Pairing.PREFERRED), tight)
    assert isinstance(loose, Placed)
    assert loose.given_up == ("the pairing of stages",)


def test_three_prefills_and_two_decodes_make_two_partnerships() -> None:
    gang = (*(pod(f"p{n}", PREFILL, 2) for n in range(3)), *(pod(f"d{n}", DECODE, 2) for n in range(2)))
    rooms = cluster([node("n0", gpus=6), node("n1", gpus=4)])
    where = placed(plan(GangRequest(pods=gang, required=RACK, pairing=Pairing.REQUIRED), rooms))
    assert where["p0"] == where["p2"] == where["d0"]
    assert where["p1"] == where["d1"]


def test_a_later_instance_joins_partners_that_are_placed() -> None:
    rooms = cluster([node("n0"), node("n1"), node("n2", gpus=1)])
    there = (Present(DECODE, "d", "n1"), Present(PREFILL, "p", "n0"))
    request = GangRequest(pods=(pod("q", PREFILL),), required=RACK, pairing=Pairing.REQUIRED, present=there)
    assert placed(plan(request, rooms)) == {"q": "n1"}
    assert placed(plan(replace(request, pairing=Pairing.NONE), rooms)) == {"q": "n2"}


def test_a_spread_has_a_bound_or_is_as_even_as_can_be() -> None:
    gang = tuple(pod(f"d{n}") for n in range(4))
    rooms = cluster([node("n0", gpus=3), node("n1"), node("n2")])
    packed = placed(plan(GangRequest(pods=gang, required=RACK), rooms))
    assert sorted(list(packed.values()).count(name) for name in set(packed.values())) == [1, 3]
    even = GangRequest(pods=gang, required=RACK, rules={DECODE: RoleRule(spread=Spread(HOSTNAME))})
    counts = sorted(list(placed(plan(even, rooms)).values()).count(name) for name in ("n0", "n1", "n2"))
    assert counts == [1, 1, 2]
    bounded = replace(even, rules={DECODE: RoleRule(spread=Spread(HOSTNAME, 1))})
    assert len(set(placed(plan(replace(bounded, pods=gang[:3]), rooms)).values())) == 3
    result = refused(plan(bounded, rooms))
    assert "with at most 1 decode instances in one domain of kubernetes.io/hostname" in result.message
    crowded = cluster([node("n0", gpus=4), node("n1", gpus=0)])
    assert set(placed(plan(even, crowded)).values()) == {"n0"}, "that is as even as can be there"


def test_pg9_a_spread_as_wide_as_the_cluster_leaves_room_for_the_replacement_of_an_old_revision() -> None:
    rooms = cluster(
        [node(f"n{n}", gpus=2) for n in range(3)], [PodUse(f"u{n}", f"n{n}", ((GPU_RESOURCE, 1),)) for n in range(3)]
    )
    old = tuple(Present(DECODE, f"old-{n}", f"n{n}", current=False) for n in range(3))
    rules = {DECODE: RoleRule(spread=Spread(HOSTNAME, 1))}
    request = GangRequest(pods=(pod("new"),), required=RACK, rules=rules, present=old)
    placed(plan(request, rooms))
    same = tuple(replace(item, current=True) for item in old)
    assert "at most 1 decode" in refused(plan(replace(request, present=same), rooms)).message


def test_a_base_gang_goes_where_its_further_instances_fit_too() -> None:
    rooms = cluster([node("n0", gpus=4, rack="a"), node("n1", gpus=6, rack="b"), node("n2", rack="c")])
    base, later = tuple(pod(f"d{n}") for n in range(3)), tuple(pod(f"e{n}") for n in range(3))
    alone = GangRequest(pods=base, required=RACK)
    assert set(placed(plan(alone, rooms)).values()) == {"n0"}
    outcome = plan(replace(alone, later=later), rooms)
    assert set(placed(outcome)) == {"d0", "d1", "d2"}, "only the gang itself is placed"
    assert set(placed(outcome).values()) == {"n1"}
    assert "after 1 fuller one without room, and its 3 further pods too" in outcome.message
    many = plan(replace(alone, later=tuple(pod(f"e{n}") for n in range(9))), rooms)
    assert set(placed(many).values()) == {"n0"}, "nothing holds them all, so the gang goes where it would alone"
    assert "no domain has room for its 9 further pods too" in many.message
    assert set(placed(plan(replace(alone, later=later, within="c"), rooms)).values()) == {"n2"}
    lost = refused(plan(replace(alone, pods=tuple(pod(f"d{n}") for n in range(9)), later=later), rooms))
    assert lost.missing == {GPU_RESOURCE: 1}, "what is missing is of the gang, not of those that follow"


def test_a_rule_about_an_unknown_level_says_so() -> None:
    rules = {DECODE: RoleRule(required="rock")}
    result = refused(
        plan(
            GangRequest(pods=(pod("a", gpus=8), pod("b", gpus=8)), required=ZONE, rules=rules),
            cluster([node("x"), node("y")]),
        )
    )
    assert result.reason is Reason.UNKNOWN_TOPOLOGY_KEY
    assert "no node has the label rock" in result.message


def test_groups_of_different_roles_are_not_taken_for_each_other() -> None:
    """Both have an instance of two equal pods with a rack to choose, but one of them is bound to a single node."""
    gang = (*instance("d", DECODE, pods=2, gpus=1), pod("p", PREFILL), *instance("q", PREFILL, pods=2, gpus=1))
    rules = {
        PREFILL: RoleRule(required=HOSTNAME, instance=RACK, spread=Spread(RACK, 2)),
        DECODE: RoleRule(required=RACK, instance=RACK, spread=Spread(RACK, 2)),
    }
    rooms = cluster([node("n0", gpus=3, rack="b"), node("n1", gpus=4, rack="a"), node("n2", gpus=4, rack="b")])
    where = placed(plan(GangRequest(pods=gang, rules=rules), rooms))
    assert len({where[name] for name in ("p", "q-0", "q-1")}) == 1


@dataclass(frozen=True)
class Case:
    nodes: tuple[NodeView, ...]
    request: GangRequest


@st.composite
def cases(draw: st.DrawFn) -> Case:
    nodes = tuple(
        node(
            f"n{index}",
            gpus=draw(st.integers(0, 4)),
            rack=draw(st.sampled_from("ab")),
            zone=draw(st.sampled_from("yz")),
        )
        for index in range(draw(st.integers(1, 4)))
    )
    pods: list[PodDemand] = []
    for number in range(draw(st.integers(1, 3))):
        role, gpus = draw(st.sampled_from([PREFILL, DECODE])), draw(st.integers(1, 3))
        for stage in range(draw(st.integers(1, 2))):
            pods.append(pod(f"i{number}-{stage}", role, gpus, instance=f"i{number}", stage=stage))
    levels = st.sampled_from([None, RACK, HOSTNAME])
    spreads = st.one_of(st.none(), st.builds(Spread, st.sampled_from([RACK, HOSTNAME]), st.integers(1, 2)))
    rules = {
        role: RoleRule(required=draw(levels), instance=draw(levels), spread=draw(spreads)) for role in (PREFILL, DECODE)
    }
    pairing = draw(st.sampled_from([Pairing.NONE, Pairing.REQUIRED]))
    required = draw(st.sampled_from([None, ZONE]))
    return Case(nodes, GangRequest(pods=tuple(pods), required=required, rules=rules, pairing=pairing))


def assignments(case: Case) -> Iterator[dict[str, NodeView]]:
    """Every assignment that obeys all amounts and rules."""
    pods = case.request.pods
    for choice in product(case.nodes, repeat=len(pods)):
        where = {item.uid: found for item, found in zip(pods, choice, strict=True)}
        if obeys(case, where):
            yield where


def obeys(case: Case, where: dict[str, NodeView]) -> bool:
    request = case.request
    for found in case.nodes:
        load = sum(item.requests[GPU_RESOURCE] for item in request.pods if where[item.uid] == found)
        if load > found.allocatable[GPU_RESOURCE]:
            return False
    if request.required and len({found.labels[request.required] for found in where.values()}) > 1:
        return False
    for role, rule in request.rules.items():
        mine = [item for item in request.pods if item.role == role]
        if rule.required and len({where[item.uid].labels[rule.required] for item in mine}) > 1:
            return False
        for owner in {item.owner for item in mine}:
            own = {where[item.uid].labels[rule.instance] for item in mine if rule.instance and item.owner == owner}
            if len(own) > 1:
                return False
        if rule.spread is not None and rule.spread.most is not None:
            homes = {(where[item.uid].labels[rule.spread.level], item.owner) for item in mine}
            if any(sum(1 for home, _ in homes if home == place) > rule.spread.most for place, _ in homes):
                return False
    return request.pairing is Pairing.NONE or paired(request, where)


def paired(request: GangRequest, where: dict[str, NodeView]) -> bool:
    """Instances dealt in turn to as many partnerships as the rarer role has instances; a stage shares a node."""
    owners = {role: list(dict.fromkeys(p.owner for p in request.pods if p.role == role)) for role in (PREFILL, DECODE)}
    number = min(map(len, owners.values()))
    homes: dict[tuple[int, int], set[str]] = {}
    for item in request.pods if number else ():
        homes.setdefault((owners[item.role].index(item.owner) % number, item.stage), set()).add(where[item.uid].name)
    return all(len(found) == 1 for found in homes.values())


@settings(max_examples=400)
@given(case=cases())
def test_a_gang_with_rules_is_placed_exactly_when_an_exhaustive_search_can(case: Case) -> None:
    outcome = plan(case.request, cluster(case.nodes))
    possible = next(assignments(case), None)
    assert isinstance(outcome, Placed) == (possible is not None), possible
    assert outcome == plan(case.request, cluster(tuple(reversed(case.nodes)))), "equal inputs give equal answers"
    if isinstance(outcome, Placed):
        assert obeys(case, outcome.nodes)
        assert not outcome.bound_hit
    else:
        assert outcome.message
        assert outcome.reason is not Reason.SEARCH_BOUND_HIT
