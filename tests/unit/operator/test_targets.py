"""Targets for Prometheus: pods that serve metrics, with the labels of the contract."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from disagg_operator.errors import ApiError
from disagg_operator.shell.targets import TargetsConfig, keep, main, scrape_targets, write

Document = Mapping[str, Any]


def pod(name: str, *, ip: str | None = "10.0.0.1", phase: str = "Running", port: str = "http") -> Document:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": {"disagg.dev/deployment": "chat", "app.kubernetes.io/component": "decode"},
        },
        "spec": {
            "containers": [
                {"ports": [{"name": port, "containerPort": 8000}, {"name": "kv-transfer", "containerPort": 5600}]},
                {},
            ]
        },
        "status": {"phase": phase, **({"podIP": ip} if ip else {})},
    }


def test_a_pod_that_serves_metrics_is_a_target_with_the_contract_s_labels() -> None:
    assert scrape_targets([pod("a")]) == [
        {
            "targets": ["10.0.0.1:8000"],
            "labels": {"namespace": "team", "pod": "a", "disagg_deployment": "chat", "disagg_role": "decode"},
        }
    ]


def test_planners_serve_on_a_port_called_metrics() -> None:
    assert scrape_targets([pod("planner", port="metrics")])[0]["targets"] == ["10.0.0.1:8000"]


@pytest.mark.parametrize("gone", [pod("a", ip=None), pod("a", phase="Succeeded"), pod("a", port="web")])
def test_pods_without_address_life_or_port_are_none(gone: Document) -> None:
    assert scrape_targets([gone]) == []


def test_ipv6_addresses_are_bracketed() -> None:
    assert scrape_targets([pod("a", ip="fd00::1")])[0]["targets"] == ["[fd00::1]:8000"]


def test_order_does_not_depend_on_the_answer() -> None:
    assert scrape_targets([pod("b"), pod("a")]) == scrape_targets([pod("a"), pod("b")])


def test_only_news_are_written(tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    entries = scrape_targets([pod("a")])
    assert write(file, entries)
    assert json.loads(file.read_text()) == entries
    assert not write(file, entries)
    assert write(file, [])
    assert [path.name for path in tmp_path.iterdir()] == ["pods.json"]


def test_targets_stay_while_the_api_server_is_silent(tmp_path: Path) -> None:
    stopped = threading.Event()
    answers: list[list[Document] | None] = [[pod("a")], None, [pod("a"), pod("b")]]
    seen: list[int] = []
    file = tmp_path / "pods.json"

    class Pods:
        def list(self) -> Iterable[Document]:
            seen.append(len(json.loads(file.read_text())) if file.exists() else 0)
            answer = answers.pop(0)
            if not answers:
                stopped.set()
            if answer is None:
                raise ApiError("503")
            return answer

    keep(Pods(), TargetsConfig(file=str(file), interval_seconds=0.001), stopped)
    assert seen == [0, 1, 1]
    assert len(json.loads(file.read_text())) == 2


def test_wrong_settings_end_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--interval-seconds=never"]) == 2
    assert "--interval-seconds=never: use a number" in capsys.readouterr().err
