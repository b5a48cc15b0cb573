"""What must hold while nobody watches."""

from tests.support.kube import Kube, wait_until
from tests.support.serving import example, history, pods, replicas


def scale_operator(release: Kube, count: int) -> None:
    release("scale", "deployment/disagg-operator", f"--replicas={count}")
    release("rollout", "status", "deployment/disagg-operator", "--timeout=120s")
    if not count:
        wait_until(
            lambda: not release.items("pods", "app.kubernetes.io/component=operator"),
            "the operator is gone",
            timeout_seconds=90,
        )


def test_op12_deletable_while_the_operator_is_down(release: Kube, serving: Kube) -> None:
    serving.apply(example("chat-13b"))
    serving.expect_condition("dd", "chat-13b", "Ready")
    scale_operator(release, 0)
    try:
        serving("delete", "dd", "chat-13b", "--wait=true", "--timeout=60s")
        wait_until(
            lambda: not serving.items("pods") and not serving.items("dg"),
            "Kubernetes collects what belonged to it",
            timeout_seconds=120,
            show=lambda: serving("get", "all,dg", check=False),
        )
    finally:
        scale_operator(release, 1)


def test_op14_what_changed_meanwhile_is_repaired_on_return(release: Kube, serving: Kube) -> None:
    serving.apply(example("chat-8b"))
    serving.expect_condition("dd", "chat-8b", "Ready")
    scale_operator(release, 0)
    try:
        serving("scale", "dg/chat-8b-decode", "--replicas=1")
        serving("delete", "pod", pods(serving, "chat-8b", "prefill")[0]["metadata"]["name"], "--wait=true")
        assert {len(pods(serving, "chat-8b", "prefill")) for _ in history(lambda: None, seconds=3)} == {1}
    finally:
        scale_operator(release, 1)
    wait_until(
        lambda: replicas(serving, "chat-8b-decode") == 2 and len(pods(serving, "chat-8b", "prefill")) == 2,
        "replicas as the spec says",
        timeout_seconds=120,
        show=lambda: serving.explain("dd", "chat-8b"),
    )
    serving.expect_condition("dd", "chat-8b", "Ready")
    assert "ScaleReverted" in [e["reason"] for e in serving.events("chat-8b-decode") + serving.events("chat-8b")]
