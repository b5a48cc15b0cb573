"""Conditions about updates, breaches, quotas and levels, and what they are computed from."""

from collections.abc import Callable, Sequence

import pytest

from disagg_crds import ConditionType, DeploymentStatus, DisaggDeployment, Reason, Role, find_condition
from disagg_operator.core.actions import Obstacle
from disagg_operator.core.breach import Breach
from disagg_operator.core.conditions import Facts, Failure, Levels
from disagg_operator.core.fit import Fit
from disagg_operator.core.fleet import Instance, Observed, RoleTarget, RouterView, Target, count
from disagg_operator.core.gangs import gangs
from disagg_operator.core.placement import NoRoom
from disagg_operator.core.status import PlacementFacts, deployment_status, transitions
from disagg_operator.core.target import compatibility, role_revision
from disagg_operator.render.budgets import disruption_budgets
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.instances import NewInstance, pod

Make = Callable[..., Instance]
MakeDeployment = Callable[..., DisaggDeployment]


def status(
    instances: Sequence[Instance], *, decode: int = 1, revision: str = "r1", **given: object
) -> DeploymentStatus:
    roles = {
        Role.PREFILL: RoleTarget(role=Role.PREFILL, replicas=1, base=1, gpus=1, revision=revision),
        Role.DECODE: RoleTarget(role=Role.DECODE, replicas=decode, base=1, gpus=1, revision=revision),
    }
    fields: dict[str, object] = {
        "router": RouterView(desired=1, current=1, ready=1, updated=1),
        "fit": Fit(True, Reason.FITS, "it fits"),
        "levels": Levels((), False),
        **given,
    }
    facts = Facts(
        roles=roles,
        counts={role: count(target, instances) for role, target in roles.items()},
        gang=gangs(Target(deployment="chat", roles=roles), Observed(0.0, tuple(instances))),
        **fields,  # type: ignore[arg-type]
    )
    return deployment_status(
        facts,
        placement=PlacementFacts(),
        previous=DeploymentStatus(),
        generation=1,
        revision="r",
        endpoint=None,
        now=0.0,
    )


def said(found: DeploymentStatus, kind: ConditionType) -> tuple[str, str, str]:
    condition = find_condition(found.conditions, kind)
    assert condition is not None
    return condition.status, condition.reason, condition.message


@pytest.fixture
def both(make_instance: Make) -> list[Instance]:
    return [make_instance(Role.PREFILL), make_instance(Role.DECODE)]


def test_nothing_is_in_the_way_of_a_deployment_that_runs(both: list[Instance]) -> None:
    found = status(both)
    assert said(found, ConditionType.UPDATE_BLOCKED)[:2] == ("False", "UpToDate")
    assert said(found, ConditionType.MIN_AVAILABLE_BREACHED)[:2] == ("False", "MinimumAvailable")
    assert said(found, ConditionType.QUOTA_EXCEEDED)[:2] == ("False", "WithinQuota")
    assert said(found, ConditionType.TOPOLOGY_KNOWN)[:2] == ("True", "LabelsFound")


def test_an_update_without_room_is_blocked_and_says_what_would_help(both: list[Instance], make_instance: Make) -> None:
    obstacle = Obstacle(Reason.NO_SURGE, "set spec.decode.update.maxSurge to 1")
    found = status(both, revision="r2", obstacle=obstacle)
    assert said(found, ConditionType.UPDATE_BLOCKED) == ("True", "NoSurge", obstacle.message)
    assert "NoSurge" in {note.reason for note in transitions(DeploymentStatus(), found)}
    lack = NoRoom(Reason.INSUFFICIENT_CAPACITY, "1 GPU needed, 0 free", "rack-1", {"nvidia.com/gpu": 1})
    surge = make_instance(Role.DECODE, "gated", revision="r2")
    stuck = said(status([*both, surge], revision="r2", no_room=lack), ConditionType.UPDATE_BLOCKED)
    assert stuck[:2] == ("True", "InsufficientCapacity")
    assert "1 GPU needed, 0 free" in stuck[2]
    leaving = make_instance(Role.DECODE, draining_since=1.0)
    moving = said(status([*both, surge, leaving], revision="r2", no_room=lack), ConditionType.UPDATE_BLOCKED)
    assert moving[:2] == ("False", "Updating"), "room comes free by itself"


def test_an_update_that_cannot_be_made_is_blocked_too(both: list[Instance]) -> None:
    quota = status(both, revision="r2", failure=Failure(Reason.QUOTA_EXCEEDED, "exceeded quota: gpus"))
    assert said(quota, ConditionType.UPDATE_BLOCKED)[:2] == ("True", "QuotaExceeded")
    big = status(both, revision="r2", fit=Fit(False, Reason.INSUFFICIENT_GPU_MEMORY, "too big"))
    assert said(big, ConditionType.UPDATE_BLOCKED)[:2] == ("True", "InsufficientGpuMemory")
    lost = status(both, revision="r2", failure=Failure(Reason.RECONCILE_FAILED, "etcd is slow"))
    assert said(lost, ConditionType.UPDATE_BLOCKED)[:2] == ("False", "Updating")


def test_a_paused_update_is_neither_blocked_nor_done(both: list[Instance]) -> None:
    found = status(both, revision="r2", paused=True)
    for kind in (ConditionType.READY, ConditionType.PROGRESSING, ConditionType.UPDATE_BLOCKED):
        assert said(found, kind)[:2] == ("False", "Paused")
    assert said(status(both, paused=True), ConditionType.READY)[0] == "True", "nothing is held back"


def test_a_breach_is_said_while_it_lasts(both: list[Instance]) -> None:
    breach = Breach({Role.DECODE: (1, 2)}, 0.0, 60.0)
    kind, reason, message = said(status(both, breach=breach), ConditionType.MIN_AVAILABLE_BREACHED)
    assert (kind, reason) == ("True", "MembersLost")
    assert message.startswith("decode: 1 of at least 2 are placed; if that lasts for 60 s")


def test_a_quota_has_a_condition_of_its_own(both: list[Instance]) -> None:
    found = status(both, failure=Failure(Reason.QUOTA_EXCEEDED, "spec.decode: exceeded quota: gpus"))
    assert said(found, ConditionType.QUOTA_EXCEEDED)[0] == "True"
    forbidden = status(both, failure=Failure(Reason.FORBIDDEN, "no right"))
    assert said(forbidden, ConditionType.QUOTA_EXCEEDED)[0] == "False"


def test_a_level_that_no_node_carries_is_unknown_only_where_it_was_asked_for(both: list[Instance]) -> None:
    asked = said(status(both, levels=Levels(("example.com/rack",), True)), ConditionType.TOPOLOGY_KNOWN)
    assert asked[:2] == ("False", "UnknownTopologyKey")
    assert "example.com/rack" in asked[2]
    default = said(status(both, levels=Levels(("nvidia.com/gpu.clique",), False)), ConditionType.TOPOLOGY_KNOWN)
    assert default[:2] == ("True", "NotApplicable")
    assert said(status(both, levels=None), ConditionType.TOPOLOGY_KNOWN)[0] == "Unknown"


def test_what_retires_keeps_the_deployment_available(make_instance: Make) -> None:
    starting = [make_instance(Role.PREFILL, "bound"), make_instance(Role.DECODE, "bound")]
    assert said(status(starting, retiring_ready=1), ConditionType.AVAILABLE)[:2] == ("True", "Updating")
    assert said(status(starting), ConditionType.AVAILABLE)[0] == "False"
    serving = [make_instance(Role.PREFILL), make_instance(Role.DECODE)]
    found = status(serving, retiring=1, retiring_ready=1)
    assert said(found, ConditionType.READY)[:2] == ("False", "Updating"), "it is done when they are gone"
    assert said(found, ConditionType.PROGRESSING)[:2] == ("True", "Updating")


def test_what_may_change_without_a_new_partner(make_deployment: MakeDeployment) -> None:
    gpu = {"type": "a100-80gb"}
    first = make_deployment()
    resources = {"replicas": 1, "gpu": gpu, "template": {"resources": {"requests": {"cpu": "2"}}}}
    tensor = {"replicas": 1, "gpu": gpu, "parallelism": {"tensor": 2}}
    for change in ({"prefill": resources}, {"prefill": tensor}, {"engine": {"image": "disagg:next"}}):
        other = make_deployment(**change)
        assert compatibility(other) == compatibility(first)
        assert role_revision(other, Role.PREFILL, image="a") != role_revision(first, Role.PREFILL, image="a")
    for change in (
        {"model": "opt-6.7b"},
        {"engine": {"simulated": {"blockTokens": 32}}},
        {"engine": {"image": "disagg:next", "kvFormat": "fp8"}},
    ):
        other = make_deployment(**change)
        assert compatibility(other) != compatibility(first)
        for role in (Role.PREFILL, Role.DECODE):
            assert role_revision(other, role, image="a") != role_revision(first, role, image="a")


def test_replicas_and_bounds_change_no_revision(make_deployment: MakeDeployment) -> None:
    gpu = {"type": "a100-80gb"}
    other = make_deployment(
        prefill={"replicas": 3, "gpu": gpu, "minAvailable": 2, "update": {"maxSurge": 2}}, gpuBudget=99, paused=True
    )
    assert role_revision(other, Role.PREFILL, image="a") == role_revision(make_deployment(), Role.PREFILL, image="a")


def test_each_role_that_must_stay_has_a_disruption_budget(make_deployment: MakeDeployment) -> None:
    gpu = {"type": "a100-80gb"}
    deployment = make_deployment(prefill={"replicas": 3, "minAvailable": 2, "gpu": gpu})
    budgets = {item["metadata"]["name"]: item for item in disruption_budgets(deployment)}
    assert {name: item["spec"]["minAvailable"] for name, item in budgets.items()} == {
        "chat-prefill": 2,
        "chat-decode": 1,
    }
    matched = budgets["chat-prefill"]["spec"]["selector"]["matchLabels"]
    assert matched == {"disagg.dev/deployment": "chat", "disagg.dev/role": "prefill", "disagg.dev/leader": "true"}
    assert budgets["chat-prefill"]["metadata"]["ownerReferences"][0]["uid"] == "uid-of-chat"
    free = make_deployment(prefill={"replicas": 3, "minAvailable": 0, "gpu": gpu})
    assert [item["metadata"]["name"] for item in disruption_budgets(free)] == ["chat-decode"]


def test_pods_leave_a_lost_node_when_the_spec_says(
    make_deployment: MakeDeployment, make_group: Callable[..., object]
) -> None:
    def tolerations(**spec: object) -> list[tuple[str, object]]:
        new = NewInstance(name="chat-prefill-x", role=Role.PREFILL, gang="chat")
        manifest = pod(make_deployment(**spec), make_group(), new, around=Surroundings())  # type: ignore[arg-type]
        return [(item.get("key", "*"), item.get("tolerationSeconds")) for item in manifest["spec"]["tolerations"]]

    away, silent = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
    assert tolerations() == [(away, 60), (silent, 60)]
    assert tolerations(placement={"nodeLossSeconds": 5}) == [(away, 5), (silent, 5)]
    own = {"key": away, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 900}
    role = {"replicas": 1, "gpu": {"type": "a100-80gb"}, "template": {"tolerations": [own]}}
    assert tolerations(prefill=role) == [(away, 900), (silent, 60)]
    everything = role | {"template": {"tolerations": [{"operator": "Exists"}]}}
    assert tolerations(prefill=everything) == [("*", None)]
