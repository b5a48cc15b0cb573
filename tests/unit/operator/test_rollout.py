"""Rolling updates: who goes when, how many come first, and what keeps an update from moving."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_crds import Reason, Role
from disagg_operator.core.actions import CancelDrain, Create, Decision, Delete, Drain
from disagg_operator.core.decide import decide
from disagg_operator.core.fleet import Instance, Observed, RoleTarget, Target

Make = Callable[..., Instance]
P, D = Role.PREFILL, Role.DECODE


def section(role: Role, replicas: int = 1, **fields: object) -> RoleTarget:
    given: dict[str, object] = {"base": min(1, replicas), "gpus": 1, "revision": "r2", "pairing": "k2", **fields}
    return RoleTarget(role=role, replicas=replicas, drain_seconds=30, **given)  # type: ignore[arg-type]


def target(*roles: RoleTarget, budget: int | None = None, paused: bool = False) -> Target:
    return Target(deployment="chat", roles={r.role: r for r in roles}, gpu_budget=budget, paused=paused)


@dataclass
class Fleet:
    """A fleet that does what is decided: new instances are ready a step later, drained ones are gone a step later."""

    target: Target
    instances: list[Instance] = field(default_factory=list)
    now: float = 0.0
    history: list[tuple[Instance, ...]] = field(default_factory=list)
    decision: Decision = field(default_factory=Decision)

    def add(self, role: Role, number: int, revision: str = "r1", pairing: str = "k1") -> "Fleet":
        self.instances += [self._new(role, revision, pairing, ready=True) for _ in range(number)]
        return self

    def _new(self, role: Role, revision: str, pairing: str, *, ready: bool = False) -> Instance:
        self.now += 0.001
        name = f"{role.value}-{self.now:.3f}"
        return Instance(
            name=name,
            uid=name,
            role=role,
            gpus=1,
            created_at=self.now,
            revision=revision,
            pairing=pairing,
            gated=not ready,
            ready=ready,
            node="a" if ready else "",
            pinned_node="a" if ready else "",
        )

    def step(self) -> bool:
        """Whether anything was decided or is still under way."""
        self.decision = decide(self.target, Observed(self.now, tuple(self.instances)))
        self.now += 1.0
        moving = [i for i in self.instances if i.terminating or i.draining or (i.serving and not i.ready)]
        kept = [i for i in self.instances if not i.terminating]
        kept = [replace(i, drained=True) if i.draining else replace(i, **_up()) for i in kept]
        by_uid = {i.uid: i for i in kept}
        for action in self.decision.actions:
            if isinstance(action, Create):
                role = self.target.roles[action.role]
                new = self._new(action.role, role.revision, role.pairing)
                by_uid[new.uid] = new
            elif isinstance(action, Drain):
                by_uid[action.instance.uid] = replace(action.instance, draining_since=self.now)
            elif isinstance(action, CancelDrain):
                by_uid[action.instance.uid] = replace(action.instance, draining_since=None, drained=False)
            elif action.instance.uid in by_uid:
                by_uid[action.instance.uid] = replace(action.instance, terminating=True)
        self.instances = list(by_uid.values())
        self.history.append(tuple(self.instances))
        return bool(self.decision.actions or moving)

    def settle(self, most: int = 300) -> "Fleet":
        for _ in range(most):
            if not self.step():
                return self
        raise AssertionError("it never comes to rest")

    def revisions(self, role: Role) -> list[str]:
        return [i.revision for i in self.instances if i.role is role and i.serving]


def _up() -> dict[str, object]:
    return {"gated": False, "pinned_node": "a", "node": "a", "ready": True}


def ready(instances: Iterable[Instance], role: Role) -> list[Instance]:
    return [i for i in instances if i.role is role and i.serving and i.ready]


def useful(instances: Iterable[Instance], role: Role) -> int:
    """Ready instances that have a ready partner to exchange KV with."""
    pairings = {i.pairing for i in ready(instances, D if role is P else P)}
    return sum(1 for i in ready(instances, role) if i.pairing in pairings)


def held(instances: Iterable[Instance]) -> int:
    return sum(i.gpus for i in instances)


def test_in_place_where_the_base_allows_and_by_surge_where_not() -> None:
    roomy = Fleet(target(section(D, 3, base=1))).add(D, 3).settle()
    assert roomy.revisions(D) == ["r2"] * 3
    assert max(held(moment) for moment in roomy.history) == 4, "one drains while its replacement starts"
    assert min(len(ready(moment, D)) for moment in roomy.history) == 2
    tight = Fleet(target(section(D, 3, base=3))).add(D, 3).settle()
    assert tight.revisions(D) == ["r2"] * 3
    assert min(len(ready(moment, D)) for moment in tight.history) == 3


def test_max_unavailable_and_max_surge_are_bounds() -> None:
    fast = Fleet(target(section(D, 6, base=1, max_unavailable=3))).add(D, 6)
    fast.step()
    assert sum(isinstance(a, Drain) for a in fast.decision.actions) == 3
    fast.settle()
    assert min(len(ready(moment, D)) for moment in fast.history) == 3
    wide = Fleet(target(section(D, 6, max_unavailable=0, max_surge=4))).add(D, 6)
    wide.step()
    assert sum(isinstance(a, Create) for a in wide.decision.actions) == 4
    wide.settle()
    assert min(len(ready(moment, D)) for moment in wide.history) == 6
    assert max(len([i for i in moment if i.serving]) for moment in wide.history) == 10


def test_pg6_an_instance_that_crashed_once_does_not_lower_the_floor(make_instance: Make) -> None:
    """Two ready decode instances, minAvailable 1, one of which ended abnormally before."""
    crashed = make_instance(trouble="its process ended with exit status 1", pairing="k2")
    other = make_instance(pairing="k2")
    fleet = Fleet(target(section(D, 2, base=1)), [crashed, other]).settle()
    assert min(len(ready(moment, D)) for moment in fleet.history) >= 1
    assert fleet.revisions(D) == ["r2", "r2"]


def test_an_instance_that_is_not_ready_holds_the_update_up(make_instance: Make) -> None:
    broken = make_instance(state="bound", revision="r2", pairing="k2")
    old = make_instance(pairing="k2")
    assert decide(target(section(D, 2)), Observed(0.0, (broken, old))).actions == ()


def test_a_compatible_change_moves_each_role_alone() -> None:
    both = target(section(P, pairing="k1"), section(D, pairing="k1", revision="r1"))
    fleet = Fleet(both).add(P, 1).add(D, 1)
    decode = fleet.instances[1]
    fleet.settle()
    assert fleet.revisions(P) == ["r2"]
    assert decode.uid in {i.uid for i in fleet.instances}, "decode did not change"
    assert all(useful(moment, P) and useful(moment, D) for moment in fleet.history)


def test_an_incompatible_change_of_one_and_one_surges_both_or_none() -> None:
    fleet = Fleet(target(section(P), section(D), budget=4)).add(P, 1).add(D, 1)
    fleet.step()
    assert [a.role for a in fleet.decision.actions if isinstance(a, Create)] == [P, D]
    fleet.settle()
    assert fleet.revisions(P) == fleet.revisions(D) == ["r2"]
    assert all(useful(moment, P) and useful(moment, D) for moment in fleet.history)
    poor = Fleet(target(section(P), section(D), budget=3)).add(P, 1).add(D, 1)
    assert not poor.step()
    assert poor.decision.obstacle is not None
    assert poor.decision.obstacle.reason is Reason.GPU_BUDGET_EXCEEDED
    assert "raise it by 1" in poor.decision.obstacle.message
    assert "lower spec.prefill.minAvailable to 0" in poor.decision.obstacle.message


def test_no_surge_allowed_says_what_would_unblock_it() -> None:
    fleet = Fleet(target(section(P), section(D, max_surge=0))).add(P, 1).add(D, 1)
    assert not fleet.step()
    assert fleet.decision.obstacle is not None
    assert fleet.decision.obstacle.reason is Reason.NO_SURGE
    assert "spec.decode.update.maxSurge is 0: set it to 1" in fleet.decision.obstacle.message
    unbound = Fleet(target(section(D, 2, base=1, max_unavailable=0, max_surge=1), budget=2)).add(D, 2)
    assert not unbound.step()
    assert unbound.decision.obstacle is not None
    assert "set spec.decode.update.maxUnavailable to 1" in unbound.decision.obstacle.message


def test_prefill_does_not_start_while_decode_cannot_move() -> None:
    fleet = Fleet(target(section(P, 4), section(D, 1, max_surge=0))).add(P, 4).add(D, 1)
    assert not fleet.step()
    assert fleet.decision.obstacle is not None


def test_a_budget_that_holds_no_replicas_more_blocks_the_update() -> None:
    fleet = Fleet(target(section(D, 4), budget=3)).add(D, 3)
    assert not fleet.step()
    assert fleet.decision.unaffordable == 1
    assert fleet.decision.obstacle is not None
    assert fleet.decision.obstacle.reason is Reason.GPU_BUDGET_EXCEEDED


def test_p_and_d_move_in_proportion() -> None:
    fleet = Fleet(target(section(P, 8), section(D, 2))).add(P, 8).add(D, 2).settle()
    assert set(fleet.revisions(P)) == set(fleet.revisions(D)) == {"r2"}
    for moment in fleet.history:
        gone = {
            role: n - sum(1 for i in moment if i.role is role and i.serving and i.pairing == "k1")
            for role, n in ((P, 8), (D, 2))
        }
        assert gone[P] / 8 < (gone[D] + 1) / 2 + 1 / 8
        assert gone[D] / 2 < (gone[P] + 1) / 8 + 1 / 2


def test_the_last_old_decode_instance_outlives_the_prefill_that_hands_over_to_it() -> None:
    fleet = Fleet(target(section(P), section(D))).add(P, 1).add(D, 1).settle()
    for moment in fleet.history:
        handing_over = [i for i in moment if i.role is P and i.pairing == "k1" and i.alive]
        taking = [i for i in moment if i.role is D and i.pairing == "k1" and i.serving]
        assert taking or not handing_over


def test_paused_leaves_old_instances_and_still_makes_missing_ones() -> None:
    fleet = Fleet(target(section(D, 3), paused=True)).add(D, 2).settle()
    assert sorted(fleet.revisions(D)) == ["r1", "r1", "r2"]
    assert fleet.decision.obstacle is None
    fleet.target = replace(fleet.target, paused=False)
    assert fleet.settle().revisions(D) == ["r2"] * 3


def test_a_rollback_half_way_keeps_the_old_and_takes_the_new_away() -> None:
    fleet = Fleet(target(section(D, 3, base=3))).add(D, 3)
    old = {i.uid for i in fleet.instances}
    for _ in range(3):
        fleet.step()
    assert "r2" in fleet.revisions(D)
    draining = [i for i in fleet.instances if i.draining]
    assert draining
    fleet.target = target(section(D, 3, base=3, revision="r1", pairing="k1"))
    fleet.step()
    assert CancelDrain(draining[0]) in fleet.decision.actions
    fleet.settle()
    assert {i.uid for i in fleet.instances} == old
    assert min(len(ready(moment, D)) for moment in fleet.history) == 3


def test_roles_that_left_serve_until_the_new_ones_do(make_instance: Make) -> None:
    workers = tuple(make_instance(Role.WORKER) for _ in range(2))
    leaving = {Role.WORKER: RoleTarget(role=Role.WORKER, replicas=0, base=0, gpus=1, revision="r1")}
    wanted = replace(target(section(P), section(D), budget=4), retiring=leaving)
    first = decide(wanted, Observed(0.0, workers)).actions
    assert [type(action) for action in first] == [Create, Create]
    starting = tuple(make_instance(role, "bound", revision="r2", pairing="k2") for role in (P, D))
    assert decide(wanted, Observed(1.0, (*workers, *starting))).actions == ()
    up = tuple(replace(i, ready=True) for i in starting)
    assert decide(wanted, Observed(2.0, (*workers, *up))).actions == tuple(
        Drain(i, "its role left the spec") for i in sorted(workers, key=lambda i: -i.created_at)
    )


def test_roles_that_left_go_first_where_they_hold_what_the_new_ones_need(make_instance: Make) -> None:
    workers = tuple(make_instance(Role.WORKER) for _ in range(2))
    leaving = {Role.WORKER: RoleTarget(role=Role.WORKER, replicas=0, base=0, gpus=1, revision="r1")}
    wanted = replace(target(section(P), section(D), budget=3), retiring=leaving)
    first = decide(wanted, Observed(0.0, workers)).actions
    assert [type(action) for action in first] == [Create, Drain, Drain]
    marked = tuple(replace(i, draining_since=0.0, drained=True) for i in workers)
    second = decide(wanted, Observed(1.0, (*marked, make_instance(P, "gated", revision="r2")))).actions
    assert [type(action) for action in second] == [Delete, Delete]
    roomless = replace(wanted, gpu_budget=None)
    gated = tuple(make_instance(role, "gated", revision="r2", pairing="k2") for role in (P, D))
    assert decide(roomless, Observed(0.0, (*workers, *gated))).actions == ()
    drains = decide(roomless, Observed(0.0, (*workers, *gated), no_room=True)).actions
    assert [type(action) for action in drains] == [Drain, Drain]


@st.composite
def sections(draw: st.DrawFn, role: Role) -> RoleTarget:
    replicas = draw(st.integers(1, 5))
    unavailable = draw(st.integers(0, 3))
    surge = draw(st.integers(0, 3) if unavailable else st.integers(1, 3))
    base = draw(st.integers(0, replicas))
    return section(role, replicas, base=base, max_surge=surge, max_unavailable=unavailable)


@settings(max_examples=100, deadline=None)
@given(
    prefill=sections(P), decode=sections(D), spare=st.none() | st.integers(0, 5), pairing=st.sampled_from(["k1", "k2"])
)
def test_any_update_ends_or_says_why_and_never_goes_below_what_is_needed(
    prefill: RoleTarget, decode: RoleTarget, spare: int | None, pairing: str
) -> None:
    roles = [replace(role, pairing=pairing) for role in (prefill, decode)]
    budget = None if spare is None else prefill.replicas + decode.replicas + spare
    fleet = Fleet(target(*roles, budget=budget)).add(P, prefill.replicas).add(D, decode.replicas).settle()
    for moment in fleet.history:
        for role in roles:
            assert len(ready(moment, role.role)) >= role.needed
            assert pairing == "k1" or useful(moment, role.role) >= role.needed
            assert len([i for i in moment if i.role is role.role and i.serving]) <= role.replicas + role.max_surge
        assert budget is None or held(moment) <= budget
    done = set(fleet.revisions(P)) | set(fleet.revisions(D)) == {"r2"}
    assert done or fleet.decision.obstacle is not None
    assert not (done and fleet.decision.obstacle)
    if done:
        assert len(fleet.revisions(P)) == prefill.replicas
        assert len(fleet.revisions(D)) == decode.replicas


changes = st.tuples(
    st.integers(0, 6),  # steps until the next change
    st.sampled_from([("r1", "k1"), ("r2", "k1"), ("r3", "k2"), ("r4", "k3")]),
    st.integers(0, 4),
    st.integers(0, 4),
)


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(changes, min_size=1, max_size=5),
    surge=st.integers(1, 2),
    unavailable=st.integers(0, 2),
    base=st.integers(0, 2),
)
def test_changes_on_the_way_end_in_the_last_of_them(
    steps: list[tuple[int, tuple[str, str], int, int]], surge: int, unavailable: int, base: int
) -> None:
    bounds = {"max_surge": surge, "max_unavailable": unavailable}
    fleet = Fleet(target(section(P, 2), section(D, 2))).add(P, 2).add(D, 2)
    for wait, (revision, pairing), prefill, decode in steps:
        roles = [
            section(role, number, revision=revision, pairing=pairing, base=min(base, number), **bounds)
            for role, number in ((P, prefill), (D, decode))
        ]
        fleet.target = target(*roles)
        for _ in range(wait):
            fleet.step()
    fleet.settle()
    _, (revision, _), prefill, decode = steps[-1]
    assert fleet.revisions(P) == [revision] * prefill
    assert fleet.revisions(D) == [revision] * decode
    assert fleet.decision.obstacle is None
