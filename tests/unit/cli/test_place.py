"""`disagg place`: a dry run on what kubectl printed."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_cli.main import main
from disagg_contract.labels import GPU_CLIQUE, GPU_RESOURCE, HOSTNAME

Captured = pytest.CaptureFixture[str]
Object = dict[str, Any]
TWO = {"replicas": 2, "minAvailable": 2, "gpu": {"type": "h100"}}
"""A role of two instances that are placed together."""


def node(name: str, gpus: int, rack: str = "rack-1", **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME: name, GPU_CLIQUE: rack}},
        "spec": spec,
        "status": {
            "allocatable": {GPU_RESOURCE: str(gpus), "cpu": "32", "memory": "256Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, at: str, gpus: int = 1, *, labels: Object | None = None, **spec: Any) -> Object:
    resources = {"limits": {GPU_RESOURCE: str(gpus)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": labels or {}},
        "spec": {"nodeName": at, "containers": [{"name": "c", "resources": resources}], **spec},
        "status": {"phase": "Running"},
    }


def deployment(**spec: Any) -> Object:
    given = {"model": "opt-13b", "slo": {"ttftSeconds": 0.25, "tpotSeconds": 0.1}, "prefill": TWO, "decode": TWO}
    metadata = {"name": "chat", "namespace": "team"}
    return {"apiVersion": "disagg.dev/v1alpha1", "kind": "DisaggDeployment", "metadata": metadata, "spec": given | spec}


@pytest.fixture
def place(tmp_path: Path, capsys: Captured) -> Callable[..., tuple[int, Object]]:
    """Run the command on objects; the exit status and the JSON."""

    def run(items: list[Object], wanted: Object, *flags: str) -> tuple[int, Object]:
        nodes, spec = tmp_path / "cluster.json", tmp_path / "dd.yaml"
        nodes.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        spec.write_text(yaml.safe_dump(wanted))
        status = main(["place", "--nodes", str(nodes), "--deployment", str(spec), "--json", *flags])
        return status, json.loads(capsys.readouterr().out)

    return run


Place = Callable[..., tuple[int, Object]]


def test_a_gang_goes_to_the_fullest_domain_that_takes_it(place: Place) -> None:
    items = [node("a", 8), node("b", 5, "rack-2"), pod("other", "b"), node("c", 3, "rack-3")]
    status, found = place(items, deployment())
    assert (status, found["placed"], found["domain"], found["level"]) == (0, True, "rack-2", GPU_CLIQUE)
    assert found["assignments"] == {f"chat-{role}-{n}": "b" for role in ("prefill", "decode") for n in range(2)}
    assert (found["score"], found["missing"], found["waiting"], found["reason"]) == (1.0, {}, [], "GangPlaced")
    assert "all in rack-2 (nvidia.com/gpu.clique)" in found["message"]
    assert "the fullest of 3 domains that takes all of it, after 1 fuller one without room" in found["message"]


def test_pg2_one_short_places_nothing_and_says_by_how_much(place: Place) -> None:
    status, found = place([node("a", 3), node("b", 2, "rack-2"), pod("x", "b")], deployment())
    assert (status, found["placed"], found["domain"], found["score"]) == (1, False, None, None)
    assert (found["assignments"], found["missing"], found["best_domain"]) == ({}, {GPU_RESOURCE: 1}, "rack-1")
    assert found["reason"] == "InsufficientCapacity"
    assert "4 nvidia.com/gpu needed, 3 free" in found["message"]
    assert len(found["waiting"]) == 4


def test_amounts_are_in_base_units(place: Place) -> None:
    role = {**TWO, "template": {"resources": {"requests": {"cpu": "10500m", "memory": "100Gi"}}}}
    _, found = place([node("a", 8), pod("x", "a", 0)], deployment(prefill=role, decode=role))
    assert found["missing"] == {"cpu": 10.0, "memory": 144 << 30}


def test_extras_follow_the_base_gang_and_may_wait(place: Place) -> None:
    decode = {**TWO, "replicas": 4}
    items = [node("a", 5), node("b", 9, "rack-2"), pod("x", "b", 8)]
    status, found = place(items, deployment(decode=decode))
    assert (status, found["placed"], found["domain"]) == (1, False, "rack-1")
    assert (len(found["assignments"]), found["waiting"]) == (5, ["chat-decode-3"])
    assert [gang["placed"] for gang in found["gangs"]] == [True, True, False]


def test_what_is_placed_already_stays_and_only_the_rest_is_planned(place: Place) -> None:
    def mine(name: str, role: str, **extra: Any) -> Object:
        own = {"disagg.dev/deployment": "chat", "disagg.dev/role": role, "disagg.dev/instance": name}
        return pod(name, "b", labels=own, **extra)

    running = [mine("chat-prefill-x", "prefill"), mine("chat-prefill-y", "prefill"), mine("chat-decode-0", "decode")]
    gated = mine("chat-decode-z", "decode", schedulingGates=[{"name": "disagg.dev/gang"}])
    del gated["spec"]["nodeName"]
    items = [node("a", 1), node("b", 8, "rack-2"), *running, gated]
    status, found = place(items, deployment())
    assert (status, found["assignments"], found["domain"]) == (0, {"chat-decode-z": "b"}, "rack-2")
    status, found = place([*items[:-1], mine("chat-decode-z", "decode")], deployment())
    assert (status, found["placed"], found["assignments"], found["reason"]) == (0, True, {}, "GangBound")


def test_an_instance_that_spans_nodes_is_planned_as_one(place: Place) -> None:
    role = {"replicas": 1, "gpu": {"type": "h100"}, "parallelism": {"tensor": 8, "pipeline": 2}, "gpusPerPod": 8}
    wanted = deployment(prefill=role, decode=role, placement={"stagePairing": "required"})
    sixteen = [node(f"n{n}", 16) for n in range(2)]
    status, found = place([*sixteen, pod("x", "n0", 0)], wanted)
    where = found["assignments"]
    assert (status, len(where)) == (0, 4)
    assert where["chat-prefill-0-0"] == where["chat-decode-0-0"]
    assert where["chat-prefill-0-1"] == where["chat-decode-0-1"]
    status, found = place([*(node(f"n{n}", 8) for n in range(4)), pod("x", "n0", 0)], wanted)
    assert (status, found["assignments"]) == (1, {})
    assert "no node has room left for chat-prefill-0-0 with chat-decode-0-0" in found["message"]


def test_priority_classes_in_the_file_say_who_would_be_evicted(place: Place) -> None:
    high = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    role = {**TWO, "template": {"priorityClassName": "high"}}
    items = [node("a", 4), pod("low", "a", 2), high]
    assert place(items, deployment(prefill=role, decode=role))[1]["missing"] == {GPU_RESOURCE: 2}
    status, found = place(items, deployment(prefill=role, decode=role, placement={"preemption": "lowerPriority"}))
    assert (status, found["evicted"]) == (0, ["team/low"])
    assert "1 pod of lower priority will be evicted" in found["message"]


def test_moves_that_would_make_room(place: Place) -> None:
    own = {"disagg.dev/deployment": "other", "disagg.dev/role": "decode", "disagg.dev/instance": "m"}
    items = [node("a", 4), node("b", 4), pod("m", "a", 1, labels=own), pod("x", "b", 2)]
    wanted = deployment(
        prefill=None, decode=None, worker={**TWO, "replicas": 1, "minAvailable": 1, "parallelism": {"tensor": 4}}
    )
    wanted["spec"] = {key: value for key, value in wanted["spec"].items() if value is not None}
    status, found = place(items, wanted, "--moves")
    assert status == 1
    assert found["moves"] == {"enough": True, "moves": [{"pod": "team/m", "from": "a", "to": "b"}]}


def test_yaml_typed_lists_and_standard_input(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = [{key: value for key, value in item.items() if key != "kind"} for item in (node("a", 4), node("b", 4))]
    text = yaml.safe_dump_all([{"kind": "NodeList", "items": bare}, pod("x", "a", 4)])
    spec = tmp_path / "dd.yaml"
    spec.write_text(yaml.safe_dump(deployment()))
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["place", "--nodes", "-", "--deployment", str(spec)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "placement score 1 of 1 in rack-1" in out
    assert "  chat-prefill-0  b" in out


def test_a_person_gets_sentences(tmp_path: Path, capsys: Captured) -> None:
    nodes, spec = tmp_path / "nodes.json", tmp_path / "dd.yaml"
    nodes.write_text(json.dumps({"kind": "List", "items": [node("a", 1), node("b", 8, unschedulable=True)]}))
    spec.write_text(yaml.safe_dump(deployment()))
    assert main(["place", "--nodes", str(nodes), "--deployment", str(spec)]) == 1
    out, err = capsys.readouterr()
    assert "team/chat on 2 nodes (1 ready and not cordoned)" in out
    assert "not placed (InsufficientCapacity)" in out
    assert "missing: 3 nvidia.com/gpu in rack-1" in out
    assert "waiting: chat-prefill-0, chat-prefill-1, chat-decode-0, chat-decode-1" in out
    assert "holds no pods: every node counts as empty" in err


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ("", "holds no nodes; write it with: kubectl get nodes,pods -A -o json"),
        ("just a word", "found str where a Kubernetes object is expected"),
        ("{", "is neither JSON nor YAML"),
        ("kind: Node\nmetadata: {name: a}\nstatus: {allocatable: {cpu: many}}", "Node a is not as the API server"),
        ("kind: Node\nstatus: {}", "it lacks 'metadata'"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, capsys: Captured, nodes: str, problem: str) -> None:
    cluster, spec = tmp_path / "cluster", tmp_path / "dd.yaml"
    cluster.write_text(nodes)
    spec.write_text(yaml.safe_dump(deployment()))
    assert main(["place", "--nodes", str(cluster), "--deployment", str(spec)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert problem in err


def test_bad_deployments_are_refused_by_name(tmp_path: Path, capsys: Captured) -> None:
    cluster, spec = tmp_path / "cluster", tmp_path / "dd.yaml"
    cluster.write_text(json.dumps(node("a", 1)))
    for text, problem in (
        (yaml.safe_dump_all([deployment(), deployment()]), "holds 2 deployments (chat, chat)"),
        (yaml.safe_dump(deployment(placement={"required": "row"})), "required must be one of levels"),
    ):
        spec.write_text(text)
        assert main(["place", "--nodes", str(cluster), "--deployment", str(spec)]) == 2
        assert problem in capsys.readouterr().err
    assert main(["place", "--nodes", str(tmp_path / "none"), "--deployment", str(spec)]) == 2
