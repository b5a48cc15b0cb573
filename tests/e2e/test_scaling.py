"""The planner on real pods: scale by load, and by the latency that is observed.

Lengths are fixed at 755 input and 200 output tokens, so the numbers follow from the time model: one OPT-13B instance on
an A100 prefills 9.6 such prompts a second, and decodes about 7 such requests a second within a TPOT of 0.1 s. 3 req/s
need one instance of each, 12 need two.
"""

import re
from pathlib import Path

from disagg_contract import metrics, ports
from tests.support.kube import Kube, Object, wait_until
from tests.support.serving import example, load_report, pods, replicas, slow_down, start_load, stop_load

INTERVAL_SECONDS = 10


def chat(**changes: object) -> Object:
    return example(
        "chat-13b",
        planner__intervalSeconds=INTERVAL_SECONDS,
        planner__scaleDownStabilizationSeconds=2 * INTERVAL_SECONDS,
        prefill__autoscaling={"mode": "planner", "min": 1, "max": 3, "initial": 1},
        decode__autoscaling={"mode": "planner", "min": 1, "max": 3, "initial": 1},
        **changes,
    )


def load(kube: Kube, name: str, rate: float, seconds: int) -> None:
    start_load(
        kube,
        name,
        "--url=http://chat-13b-router:8000",
        f"--trace=builtin:chat?rate={rate}&seconds={seconds}&lengths=fixed",
    )


def fleet(kube: Kube) -> tuple[int, int]:
    return replicas(kube, "chat-13b-prefill"), replicas(kube, "chat-13b-decode")


def decisions(kube: Kube) -> int:
    """Decisions of the planner so far."""
    (planner,) = pods(kube, "chat-13b", "planner")
    text = kube.pod_get(planner["metadata"]["name"], ports.METRICS_PATH, port=ports.PLANNER_METRICS)
    found = re.findall(rf"^{metrics.PLANNER_DECISIONS.series}\{{.*\}} ([0-9.e+]+)$", text, re.MULTILINE)
    return int(sum(float(value) for value in found))


def reasons(kube: Kube) -> list[str]:
    return [event["reason"] for event in kube.events("chat-13b")]


def expect_fleet(kube: Kube, prefill: int, decode: int, *, timeout_seconds: float) -> None:
    wait_until(
        lambda: fleet(kube)[0] >= prefill and fleet(kube)[1] >= decode,
        f"at least {prefill}P{decode}D",
        timeout_seconds=timeout_seconds,
        show=lambda: f"{fleet(kube)}\n{kube.explain('dd', 'chat-13b')}",
    )


def test_load_scales_both_phases_up_and_down_again(serving: Kube) -> None:
    serving.apply(chat())
    serving.expect_condition("dd", "chat-13b", "Ready")
    load(serving, "light", 3, 600)
    serving.expect_condition("dd", "chat-13b", "MetricsAvailable")
    seen = decisions(serving) + 3
    wait_until(lambda: decisions(serving) >= seen, "three decisions", timeout_seconds=90)
    assert fleet(serving) == (1, 1), serving.explain("dd", "chat-13b")

    stop_load(serving, "light")
    load(serving, "heavy", 12, 75)
    start = decisions(serving)
    expect_fleet(serving, 2, 2, timeout_seconds=90)
    # The change falls inside an interval, which the first decision still sees in part.
    assert decisions(serving) - start <= 3, serving.explain("dd", "chat-13b")
    assert fleet(serving) == (2, 2)
    wait_until(
        lambda: len(pods(serving, "chat-13b")) == 4,
        "2P2D in pods",
        timeout_seconds=60,
        show=lambda: serving.explain("dd", "chat-13b"),
    )
    report = load_report(serving, "heavy", timeout_seconds=180)
    assert report["errors"] == 0, report
    wait_until(
        lambda: sum(fleet(serving)) < 4,
        "fewer instances once the load has gone",
        timeout_seconds=120,
        show=lambda: serving.explain("dd", "chat-13b"),
    )


def test_slow_decode_is_scaled_for_its_tpot(serving: Kube, tmp_path: Path) -> None:
    """At a constant 4 req/s the TPOT is about 26 ms; a third of the speed lost puts it above 40."""
    serving.apply(
        chat(slo={"ttftSeconds": 2.5, "tpotSeconds": 0.04, "attainment": 0.9}, engine__simulated__debugEndpoints=True)
    )
    expect_reason_after_slowdown(serving, "decode", "TPOTAboveSLO", tmp_path)


def test_slow_prefill_is_scaled_for_its_ttft(serving: Kube, tmp_path: Path) -> None:
    """At a constant 4 req/s the TTFT is about 0.14 s; a third of the speed lost puts it above 0.25."""
    serving.apply(chat(engine__simulated__debugEndpoints=True))
    expect_reason_after_slowdown(serving, "prefill", "TTFTAboveSLO", tmp_path)


def expect_reason_after_slowdown(kube: Kube, role: str, reason: str, folder: Path) -> None:
    kube.expect_condition("dd", "chat-13b", "Ready")
    load(kube, "steady", 4, 600)
    kube.expect_condition("dd", "chat-13b", "MetricsAvailable")
    seen = decisions(kube) + 3
    wait_until(lambda: decisions(kube) >= seen, "three decisions", timeout_seconds=90)
    assert fleet(kube) == (1, 1), kube.explain("dd", "chat-13b")
    assert reason not in reasons(kube)

    slow_down(kube, "chat-13b", role, 1.5, folder)
    expect_fleet(kube, *((2, 1) if role == "prefill" else (1, 2)), timeout_seconds=120)
    wait_until(
        lambda: reason in reasons(kube), f"an Event {reason}", timeout_seconds=15, show=lambda: str(reasons(kube))
    )
    other = fleet(kube)[1 if role == "prefill" else 0]
    assert other == 1, kube.explain("dd", "chat-13b")
    stop_load(kube, "steady")
