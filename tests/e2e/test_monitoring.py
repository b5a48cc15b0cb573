"""The first dashboard has answers: its queries against the chart's Prometheus while a deployment serves."""

from __future__ import annotations

import json
import math
import urllib.parse
from pathlib import Path
from typing import Any

from disagg_contract import metrics
from tests.e2e.conftest import CHART
from tests.support.kube import Helm, Kube, wait_until
from tests.support.serving import example, start_load, stop_load

DASHBOARD: dict[str, Any] = json.loads((CHART / "dashboards" / "overview.json").read_text(encoding="utf-8"))


def ask(release: Kube, query: str) -> list[float]:
    """Values of an instant query, asked through the API server."""
    path = f"/api/v1/namespaces/{release.namespace}/services/disagg-prometheus:9090/proxy/api/v1/query"
    answer = json.loads(release.raw(f"{path}?query={urllib.parse.quote(query)}"))
    assert answer["status"] == "success", answer
    return [float(series["value"][1]) for series in answer["data"]["result"]]


def test_every_query_of_the_dashboard_has_an_answer(release: Kube, serving: Kube) -> None:
    serving.apply(example("chat-13b", planner__intervalSeconds=5))
    serving.expect_condition("dd", "chat-13b", "Ready")
    start_load(
        serving,
        "watched",
        "--url=http://chat-13b-router:8000",
        "--trace=builtin:chat?rate=2&seconds=300&lengths=fixed",
    )

    def filled(query: str) -> str:
        values = {"$namespace": serving.namespace, "$deployment": "chat-13b", "$__rate_interval": "30s"}
        for name, value in values.items():
            query = query.replace(name, value)
        return query

    queries = {
        filled(target["expr"]): panel["title"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
    }
    assert len(queries) > 30
    unanswered = set(queries)

    def all_answered() -> bool:
        for query in sorted(unanswered):
            values = ask(release, query)
            if values and all(math.isfinite(value) for value in values):
                unanswered.discard(query)
        return not unanswered

    try:
        wait_until(all_answered, "every query has an answer", timeout_seconds=120, show=lambda: "\n".join(unanswered))
        selector = f'{metrics.SCRAPE_NAMESPACE}="{serving.namespace}",{metrics.SCRAPE_DEPLOYMENT}="chat-13b"'
        (slo,) = ask(release, f"max({metrics.PLANNER_SLO_TTFT.series}{{{selector}}})")
        assert slo == example("chat-13b")["spec"]["slo"]["ttftSeconds"]
        roles = ask(release, f"count by ({metrics.SCRAPE_ROLE}) (up{{{selector}}} == 1)")
        assert len(roles) == 4, "prefill, decode, router and planner are scraped"
    finally:
        stop_load(serving, "watched")


def test_helm_test_passes(release: Kube, kubeconfig: Path) -> None:
    answer = Helm(kubeconfig, release.namespace)("test", "disagg", "--timeout=120s")
    assert "Succeeded" in answer
