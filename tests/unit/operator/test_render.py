"""Manifests against golden files, and rules that hold for each of them.

``DISAGG_UPDATE_GOLDEN=1`` writes the files anew; look at the difference before committing it.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_contract.config import PlannerConfig, RouterConfig, WorkerConfig
from disagg_contract.labels import GPU_RESOURCE, SCHEDULING_GATE, worker_selector
from disagg_contract.settings import parse
from disagg_crds import DisaggDeployment, DisaggGroup, Role
from disagg_operator.render.commands import Places, planner_command, router_command, worker_command
from disagg_operator.render.configs import Surroundings, needs_planner
from disagg_operator.render.groups import group
from disagg_operator.render.instances import NewInstance, group_selector, instance_name, pod
from disagg_operator.render.patches import mark_draining, pin, unmark_draining
from disagg_operator.render.planners import planner_objects
from disagg_operator.render.rights import OPERATOR_RULES, PLANNER_RULES, ROUTER_RULES
from disagg_operator.render.services import router_endpoint, router_objects

GOLDEN = Path(__file__).parent / "golden"
AROUND = Surroundings(image="disagg:0.1.0", prometheus_url="http://prometheus.monitoring:9090", version="0.1.0")
PLACES = Places(
    program=("disagg",), discovery_file="/run/d.json", control_url="http://127.0.0.1:1", router_url="http://127.0.0.1:2"
)
Make = Callable[..., DisaggDeployment]
MakeGroup = Callable[..., DisaggGroup]

RICH = {
    "prefill": {
        "replicas": 2,
        "gpu": {"type": "h100", "resourceName": "nvidia.com/gpu"},
        "parallelism": {"tensor": 2, "pipeline": 2},
        "batching": {"policy": "chunked", "chunkTokens": 256, "maxSequences": 64},
        "template": {
            "labels": {"team": "search"},
            "annotations": {"note": "x"},
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}},
            "env": [{"name": "POD_NAME", "value": "mine"}],
            "priorityClassName": "high",
            "terminationGracePeriodSeconds": 30,
        },
    },
    "link": {"type": "infiniband", "bandwidthBytesPerSecond": 25e9},
    "router": {"replicas": 2, "policy": "least-loaded", "serviceType": "NodePort", "port": 80},
    "planner": {"intervalSeconds": 5, "mode": "advisory", "predictor": "constant"},
    "gpuBudget": 24,
    "engine": {"image": "other:1", "simulated": {"timeScale": 10, "debugEndpoints": True}},
}


def documents(make: Make, make_group: MakeGroup) -> Iterator[tuple[str, Any]]:
    for name, spec in (("plain", {}), ("rich", RICH)):
        deployment = make(**spec)
        new = NewInstance(name=instance_name("chat-prefill", "x7k2p"), role=Role.PREFILL, gang="chat")
        yield f"{name}-pod", pod(deployment, make_group(), new, around=AROUND)
        yield f"{name}-group", group(deployment, Role.PREFILL, 2, version="0.1.0")
        yield f"{name}-router", router_objects(deployment, around=AROUND)
        yield f"{name}-planner", planner_objects(deployment, around=AROUND)


def test_manifests_equal_the_golden_files(make_deployment: Make, make_group: MakeGroup) -> None:
    for name, document in documents(make_deployment, make_group):
        path = GOLDEN / f"{name}.yaml"
        text = yaml.safe_dump_all(document if isinstance(document, list) else [document], sort_keys=True)
        if os.environ.get("DISAGG_UPDATE_GOLDEN"):
            path.write_text(text)
        assert path.read_text() == text, f"{path.name} differs; DISAGG_UPDATE_GOLDEN=1 writes it anew"


def pod_specs(make: Make, make_group: MakeGroup) -> Iterator[dict[str, Any]]:
    for _, document in documents(make, make_group):
        for item in document if isinstance(document, list) else [document]:
            if item["kind"] == "Pod":
                yield item["spec"]
            elif item["kind"] == "Deployment":
                yield item["spec"]["template"]["spec"]


def test_every_pod_meets_the_restricted_standard(make_deployment: Make, make_group: MakeGroup) -> None:
    specs = list(pod_specs(make_deployment, make_group))
    assert len(specs) == 6
    for spec in specs:
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "livenessProbe" in container


def test_flags_are_read_back_by_the_programs(make_deployment: Make, make_group: MakeGroup) -> None:
    kinds = {"worker": WorkerConfig, "router": RouterConfig, "planner": PlannerConfig}
    seen = set()
    for spec in pod_specs(make_deployment, make_group):
        (container,) = spec["containers"]
        seen.add(container["name"])
        config = parse(kinds[container["name"]], container["args"], {})
        assert config.model == "opt-13b"
        if isinstance(config, PlannerConfig):
            assert config.prometheus_url == AROUND.prometheus_url
            assert (config.prefill_scaling, config.decode_scaling) == (False, True)
            assert (config.decode_min, config.decode_max) == (1, 4)
    assert seen == set(kinds)


def test_the_pod_is_gated_and_takes_its_gpus(make_deployment: Make, make_group: MakeGroup) -> None:
    new = NewInstance(name="chat-prefill-a", role=Role.PREFILL, gang="chat")
    manifest = pod(make_deployment(**RICH), make_group(), new, around=AROUND)
    assert manifest["spec"]["schedulingGates"] == [{"name": SCHEDULING_GATE}]
    container = manifest["spec"]["containers"][0]
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "4Gi", GPU_RESOURCE: "4"}
    assert container["resources"]["limits"] == {"memory": "4Gi", GPU_RESOURCE: "4"}
    assert {"name": "POD_NAME", "value": "mine"} in container["env"]
    probes = {container[kind]["httpGet"]["path"] for kind in ("startupProbe", "readinessProbe")}
    assert container["livenessProbe"]["httpGet"]["path"] not in probes
    own = manifest["metadata"]["labels"]
    for selector in (worker_selector("chat"), group_selector("chat", "chat-prefill")):
        for term in selector.split(","):
            if "=" in term:
                key, _, value = term.partition("=")
                assert own[key] == value


def test_grace_of_the_worker_ends_before_it_is_killed(make_deployment: Make, make_group: MakeGroup) -> None:
    new = NewInstance(name="chat-prefill-a", role=Role.PREFILL, gang="chat")
    manifest = pod(make_deployment(**RICH), make_group(), new, around=AROUND)
    config = parse(WorkerConfig, manifest["spec"]["containers"][0]["args"], {})
    assert 0 < config.grace_seconds < manifest["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("length", [4, 40, 63])
def test_op15_names_are_valid_and_distinct(make_deployment: Make, make_group: MakeGroup, length: int) -> None:
    names: list[str] = []
    for last in "ab":
        deployment = make_deployment("x" * (length - 1) + last)
        found = [item["metadata"]["name"] for item in router_objects(deployment, around=AROUND)]
        found += [item["metadata"]["name"] for item in planner_objects(deployment, around=AROUND)]
        groups = [group(deployment, role, 1)["metadata"]["name"] for role in deployment.spec.roles]
        found += groups + [instance_name(owner, suffix) for owner in groups for suffix in ("aaaaa", "bbbbb")]
        assert all(len(name) <= 63 and name[-1].isalnum() for name in found)
        names += sorted(set(found))
    assert len(names) == len(set(names))


def test_a_planner_is_needed_only_where_it_may_scale(make_deployment: Make) -> None:
    fixed = {"replicas": 1, "gpu": {"type": "h100"}}
    assert needs_planner(make_deployment())
    assert not needs_planner(make_deployment(decode=fixed))
    external = {"autoscaling": {"mode": "external", "min": 1, "max": 2}, "gpu": {"type": "h100"}}
    assert not needs_planner(make_deployment(decode=external))


def test_commands_carry_the_same_settings_as_pods(make_deployment: Make) -> None:
    deployment = make_deployment(**RICH)
    worker = worker_command(deployment, Role.PREFILL, port=7, kv_port=8, places=PLACES, around=AROUND)
    assert worker[:2] == ["disagg", "worker"]
    config = parse(WorkerConfig, worker[2:], {})
    assert (config.host, config.port, config.kv_port, config.tensor) == ("127.0.0.1", 7, 8, 2)
    command = router_command(deployment, port=9, grace_seconds=8.0, places=PLACES, around=AROUND)
    router = parse(RouterConfig, command[2:], {})
    assert (router.discovery_file, router.port, router.grace_seconds) == ("/run/d.json", 9, 8.0)
    planner = parse(PlannerConfig, planner_command(deployment, port=10, places=PLACES, around=AROUND)[2:], {})
    assert (planner.control_url, planner.router_url) == (PLACES.control_url, PLACES.router_url)


def test_pinning_is_one_patch_that_removes_only_our_gate() -> None:
    patch = pin(hostname="h1", gang="chat", domain_key="nvidia.com/gpu.clique", domain="d" * 70, placed_at=1.5)
    assert patch["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "h1"}
    assert patch["spec"]["schedulingGates"] == [{"$patch": "delete", "name": SCHEDULING_GATE}]
    assert len(patch["metadata"]["labels"]["disagg.dev/nvlink-domain"]) <= 63


def test_a_drain_mark_can_be_taken_away() -> None:
    assert set(unmark_draining()["metadata"]["labels"]) == set(mark_draining(since=1.0)["metadata"]["labels"])


def test_hc4_the_operator_holds_every_right_that_it_grants() -> None:
    held = {(r.group, resource, verb) for r in OPERATOR_RULES for resource in r.resources for verb in r.verbs}
    granted = [*ROUTER_RULES, *PLANNER_RULES]
    wanted = {(r.group, resource, verb) for r in granted for resource in r.resources for verb in r.verbs}
    assert wanted <= held
    assert not any("*" in part for right in held for part in right)


def test_the_endpoint_is_the_service(make_deployment: Make) -> None:
    assert router_endpoint(make_deployment()) == "http://chat-router.team:8000"
