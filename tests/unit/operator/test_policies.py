"""NetworkPolicies and disruption budgets of a deployment."""

from collections.abc import Callable
from typing import Any

from disagg_crds import DisaggDeployment, DisaggGroup, Role
from disagg_operator.render.budgets import disruption_budgets
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.instances import NewInstance, pod
from disagg_operator.render.planners import planner_deployment
from disagg_operator.render.policies import network_policies
from disagg_operator.render.services import router_deployment

Make = Callable[..., DisaggDeployment]
AROUND = Surroundings(network_policies=True, trusted_namespaces=("disagg-system", "monitoring"))


def chosen(selector: dict[str, Any], own: dict[str, str]) -> bool:
    equal = all(own.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    exist = all(item["key"] in own for item in selector.get("matchExpressions", []))
    return equal and exist


def own_labels(deployment: DisaggDeployment, group: DisaggGroup) -> dict[str, dict[str, str]]:
    new = NewInstance(name="chat-prefill-a", role=Role.PREFILL, gang="chat")
    return {
        "worker": pod(deployment, group, new, around=AROUND)["metadata"]["labels"],
        "router": router_deployment(deployment, around=AROUND)["spec"]["template"]["metadata"]["labels"],
        "planner": planner_deployment(deployment, around=AROUND)["spec"]["template"]["metadata"]["labels"],
    }


def test_none_are_made_unless_asked_for(make_deployment: Make) -> None:
    assert network_policies(make_deployment(), around=Surroundings()) == []


def test_each_policy_is_about_one_part(make_deployment: Make, make_group: Callable[..., DisaggGroup]) -> None:
    deployment = make_deployment()
    parts = own_labels(deployment, make_group())
    found = [
        [part for part, own in parts.items() if chosen(policy["spec"]["podSelector"], own)]
        for policy in network_policies(deployment, around=AROUND)
    ]
    assert found == [["router"], ["worker"], ["planner"]]


def test_workers_listen_to_their_own_deployment_only(
    make_deployment: Make, make_group: Callable[..., DisaggGroup]
) -> None:
    deployment = make_deployment()
    parts = own_labels(deployment, make_group())
    others = own_labels(make_deployment("other"), make_group())
    among, front = network_policies(deployment, around=AROUND)[1]["spec"]["ingress"]
    assert "ports" not in among
    (peers,) = [peer["podSelector"] for peer in among["from"]]
    assert [part for part, own in parts.items() if chosen(peers, own)] == ["worker"]
    assert not any(chosen(peers, own) for own in others.values())

    router, trusted = front["from"]
    assert [part for part, own in parts.items() if chosen(router["podSelector"], own)] == ["router"]
    assert not any(chosen(router["podSelector"], own) for own in others.values())
    assert "namespaceSelector" not in router
    assert trusted["namespaceSelector"]["matchExpressions"][0]["values"] == ["disagg-system", "monitoring"]
    assert [port["port"] for port in front["ports"]] == ["http"]


def test_without_trusted_namespaces_only_routers_come_in(make_deployment: Make) -> None:
    around = Surroundings(network_policies=True)
    _, workers, planner = network_policies(make_deployment(), around=around)
    assert len(workers["spec"]["ingress"][1]["from"]) == 1
    assert planner["spec"]["ingress"] == []


def test_several_routers_go_one_by_one(make_deployment: Make) -> None:
    names = {"chat-prefill": {"minAvailable": 1}, "chat-decode": {"minAvailable": 1}}

    def bounds(**spec: Any) -> dict[str, dict[str, int]]:
        return {
            item["metadata"]["name"]: {k: v for k, v in item["spec"].items() if k in ("minAvailable", "maxUnavailable")}
            for item in disruption_budgets(make_deployment(**spec))
        }

    assert bounds() == names
    assert bounds(router={"replicas": 2}) == {**names, "chat-router": {"maxUnavailable": 1}}


def test_pull_secrets_go_with_the_operators_image(
    make_deployment: Make, make_group: Callable[..., DisaggGroup]
) -> None:
    around = Surroundings(image="private/disagg:1", image_pull_secrets=("registry",))
    new = NewInstance(name="chat-prefill-a", role=Role.PREFILL, gang="chat")
    secrets = [{"name": "registry"}]

    def of_worker(**spec: Any) -> Any:
        return pod(make_deployment(**spec), make_group(), new, around=around)["spec"].get("imagePullSecrets")

    assert of_worker() == secrets
    assert of_worker(engine={"image": "mine:1"}) is None
    assert of_worker(engine={"image": "mine:1", "imagePullSecrets": ["own"]}) == [{"name": "own"}]
    for manifest in (
        router_deployment(make_deployment(), around=around),
        planner_deployment(make_deployment(), around=around),
    ):
        assert manifest["spec"]["template"]["spec"]["imagePullSecrets"] == secrets
