"""An update under load, on real pods: no request is lost, and no prefill is paired with a decode of another format."""

import json

from disagg_contract.labels import PAIRING
from tests.support.kube import Kube, wait_until
from tests.support.lag import LagWatch
from tests.support.serving import example, load_report, pods, start_load


def pairings(kube: Kube) -> set[str]:
    return {pod["metadata"]["labels"][PAIRING] for pod in pods(kube, "chat-13b")}


def test_kv9_an_incompatible_update_under_load_loses_no_request(serving: Kube, lag: LagWatch) -> None:
    lag.watch(serving, "chat-13b")
    one = {"replicas": 1, "gpu": {"type": "a100-80gb"}}
    serving.apply(example("chat-13b", prefill=one, decode=one))
    serving.expect_condition("dd", "chat-13b", "Ready")
    (before,) = pairings(serving)
    start_load(
        serving,
        "steady",
        "--url=http://chat-13b-router:8000",
        "--trace=builtin:chat?rate=2&seconds=35&lengths=fixed&cv=0.2",
    )
    wait_until(
        lambda: (serving.get("pod", "steady") or {}).get("status", {}).get("phase") == "Running",
        "load runs",
        timeout_seconds=60,
    )
    # Blocks of another size: what the old instances hold the new ones cannot read.
    change = json.dumps({"spec": {"engine": {"simulated": {"blockTokens": 32}}}})
    serving("patch", "dd", "chat-13b", "--type=merge", f"--patch={change}")
    wait_until(
        lambda: before not in pairings(serving),
        "all instances are new",
        timeout_seconds=120,
        show=lambda: serving.explain("dd", "chat-13b"),
    )
    lag.read()
    serving.expect_condition("dd", "chat-13b", "Ready")
    report = load_report(serving, "steady", timeout_seconds=120)
    assert report["errors"] == 0, report
    assert report["completed"] == report["requests"], report
