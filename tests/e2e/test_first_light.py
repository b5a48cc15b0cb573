"""From ``kubectl apply`` to streamed tokens, on real pods."""

import csv
import json
from pathlib import Path

import openai
import pytest

from disagg_contract import labels
from tests.support.kube import Kube, Object, wait_until, wait_until_cleared
from tests.support.lag import LagWatch
from tests.support.serving import example, image, load_report, pods, port_forward, post, start_load

PROMPT = "Write a short story about a lighthouse keeper who counts the ships that never came back. " * 6


def gpu_blocker(name: str, node: str, gpus: int) -> Object:
    """A pod of somebody else's that holds GPUs of one node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {labels.HOSTNAME: node},
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "hold",
                    "image": image(),
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-c", "import signal; signal.pause()"],
                    "resources": {"limits": {labels.GPU_RESOURCE: str(gpus)}},
                }
            ],
        },
    }


def gpu_nodes(kube: Kube) -> dict[str, tuple[str, int]]:
    """NVLink domain and GPUs of every node that has some."""
    found = {}
    for node in kube.items("nodes"):
        gpus = int(node["status"]["allocatable"].get(labels.GPU_RESOURCE, 0))
        if gpus:
            found[node["metadata"]["name"]] = (node["metadata"]["labels"][labels.GPU_CLIQUE], gpus)
    return found


def free_gpus(kube: Kube, node: str) -> int:
    """GPUs of a node that no pod holds, whoever it belongs to."""
    pods_there = json.loads(kube("get", "pods", "-A", "-o", "json", f"--field-selector=spec.nodeName={node}"))["items"]
    held = sum(
        int(container.get("resources", {}).get("requests", {}).get(labels.GPU_RESOURCE, 0))
        for pod in pods_there
        if pod["status"]["phase"] not in ("Succeeded", "Failed")
        for container in pod["spec"]["containers"]
    )
    return gpu_nodes(kube)[node][1] - held


def hold_all_but(kube: Kube, node: str, left: int) -> None:
    free = free_gpus(kube, node)
    if free > left:
        kube.apply(gpu_blocker(f"hold-{node}", node, free - left))
        kube("wait", "pod", f"hold-{node}", "--for=condition=Ready", "--timeout=60s")


def test_gang_lies_in_one_domain_and_serves(serving: Kube) -> None:
    """The other domain has room for a part of the gang, and gets none of it."""
    wait_until_cleared(serving)
    nodes = gpu_nodes(serving)
    tight, roomy = sorted(nodes)[:2]
    assert nodes[tight][0] != nodes[roomy][0]
    hold_all_but(serving, tight, 1)
    serving.apply(example("chat-13b"))
    serving.expect_condition("dd", "chat-13b", "Ready")

    placed = pods(serving, "chat-13b")
    assert {p["metadata"]["labels"][labels.ROLE] for p in placed} == {"prefill", "decode"}
    assert {p["spec"]["nodeName"] for p in placed} == {roomy}
    assert {p["metadata"]["labels"][labels.NVLINK_DOMAIN] for p in placed} == {nodes[roomy][0]}
    table = serving("get", "dd,dg")
    assert "chat-13b" in table
    assert nodes[roomy][0] in serving("get", "dd", "chat-13b", "-o", "json")

    with port_forward(serving, "svc/chat-13b-router") as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list()] == ["opt-13b"]
        chunks = list(
            client.chat.completions.create(
                model="opt-13b",
                messages=[{"role": "user", "content": PROMPT}],
                max_tokens=24,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert text
        assert chunks[-1].usage is not None
        assert 0 < chunks[-1].usage.completion_tokens <= 24
        whole = client.chat.completions.create(
            model="opt-13b", messages=[{"role": "user", "content": PROMPT}], max_tokens=24
        )
        assert whole.choices[0].message.content == text


@pytest.mark.parametrize("tokens", [1, 2, 17])
def test_ap2_disaggregated_text_equals_colocated_text(pair: Kube, tokens: int) -> None:
    body = {"model": "opt-13b", "prompt": PROMPT, "max_tokens": tokens, "seed": 7, "ignore_eos": True}
    answers = []
    for deployment in ("chat-13b", "colocated-13b"):
        with port_forward(pair, f"svc/{deployment}-router") as url:
            answers.append(post(f"{url}/v1/completions", body | {"return_token_ids": True}))
    assert [a["usage"]["completion_tokens"] for a in answers] == [tokens, tokens], answers
    assert answers[0]["choices"][0]["token_ids"] == answers[1]["choices"][0]["token_ids"]
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]


@pytest.fixture(scope="module")
def pair(release: Kube, module_namespace: Kube) -> Kube:
    """The same model disaggregated and colocated."""
    module_namespace.apply(example("chat-13b"), example("colocated-13b"))
    for name in ("chat-13b", "colocated-13b"):
        module_namespace.expect_condition("dd", name, "Ready")
    return module_namespace


def test_real_trace_without_errors_or_truncations(serving: Kube, data: Path | None, lag: LagWatch) -> None:
    """200 requests of the Azure conversation trace, or of the built-in one with its statistics."""
    lag.watch(serving, "chat-8b")
    serving.apply(example("chat-8b"))
    serving.expect_condition("dd", "chat-8b", "Ready")
    files = None
    trace = "builtin:azure-conv"
    if data:
        with (data / "traces" / "AzureLLMInferenceTrace_conv.csv").open() as lines:
            rows = [row for _, row in zip(range(201), csv.reader(lines), strict=False)]
        files = {"trace.csv": "\n".join(",".join(row) for row in rows) + "\n"}
        trace = "/files/trace.csv"
    start_load(
        serving,
        "azure",
        "--url=http://chat-8b-router:8000",
        f"--trace={trace}",
        "--limit=200",
        "--rate-scale=2",
        files=files,
    )
    report = load_report(serving, "azure", timeout_seconds=240)
    assert report["requests"] == 200, report
    assert report["completed"] == 200, report
    assert report["errors"] == 0, report
    assert report["truncated"] == 0, report


def test_one_gpu_short_binds_nothing_and_says_what_is_missing(serving: Kube) -> None:
    wait_until_cleared(serving)
    nodes = gpu_nodes(serving)
    for node in nodes:
        hold_all_but(serving, node, 1)
    serving.apply(example("chat-13b"))
    found = serving.expect_condition("dd", "chat-13b", "GangScheduled", "False")
    assert labels.GPU_RESOURCE in found["message"], found
    assert any(domain in found["message"] for domain, _ in nodes.values()), found
    waiting = wait_until(lambda: pods(serving, "chat-13b"), "gated pods exist", timeout_seconds=60)
    assert [p["spec"].get("nodeName") for p in waiting] == [None] * len(waiting)
    assert all({"name": labels.SCHEDULING_GATE} in p["spec"]["schedulingGates"] for p in waiting)
    assert "GPU" in serving("describe", "dd", "chat-13b") or labels.GPU_RESOURCE in serving(
        "describe", "dd", "chat-13b"
    )

    serving("delete", "pod", f"hold-{sorted(nodes)[0]}")
    serving.expect_condition("dd", "chat-13b", "Ready")


def test_an_image_that_cannot_be_pulled_is_named(serving: Kube) -> None:
    serving.apply(example("colocated-13b", engine__image="nowhere.invalid/nothing:1"))

    def ready() -> str:
        message: str = (serving.condition("dd", "colocated-13b", "Ready") or {}).get("message", "")
        return message

    wait_until(
        lambda: "image nowhere.invalid/nothing:1 cannot be pulled" in ready(),
        "Ready says which image",
        timeout_seconds=90,
        show=lambda: serving.explain("dd", "colocated-13b"),
    )


def test_delete_leaves_nothing(serving: Kube) -> None:
    before = json.loads(serving("get", "all,sa,role,rolebinding,cm,secret,dd,dg,lease", "-o", "json"))["items"]
    serving.apply(example("chat-13b"))
    serving.expect_condition("dd", "chat-13b", "Ready")
    serving("delete", "dd", "chat-13b", "--wait=true")

    def left() -> list[str]:
        now = json.loads(serving("get", "all,sa,role,rolebinding,cm,secret,dd,dg,lease", "-o", "json"))["items"]
        known = {(o["kind"], o["metadata"]["name"]) for o in before}
        return [f"{o['kind']}/{o['metadata']['name']}" for o in now if (o["kind"], o["metadata"]["name"]) not in known]

    wait_until(lambda: not left(), "everything is gone", timeout_seconds=120, show=lambda: str(left()))


def test_deleted_pods_come_back(serving: Kube) -> None:
    serving.apply(example("chat-13b"))
    serving.expect_condition("dd", "chat-13b", "Ready")
    victim = pods(serving, "chat-13b", "decode")[0]["metadata"]
    serving("delete", "pod", victim["name"], "--wait=false")

    def replaced() -> bool:
        now = pods(serving, "chat-13b", "decode")
        return bool(now) and all(p["metadata"]["uid"] != victim["uid"] and p["spec"].get("nodeName") for p in now)

    wait_until(replaced, "a new decode pod", timeout_seconds=120, show=lambda: serving.explain("dd", "chat-13b"))
    serving.expect_condition("dd", "chat-13b", "Ready")
