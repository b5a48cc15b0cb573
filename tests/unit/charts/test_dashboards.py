"""Dashboards ask for series that somebody exports, by labels that they carry."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disagg_contract import metrics

FOLDER = Path(__file__).resolve().parents[3] / "charts" / "disagg" / "dashboards"
DASHBOARDS = sorted(FOLDER.glob("*.json"))
SERIES = {
    name: metric
    for metric in metrics.ALL
    for name in (
        [metric.bucket, metric.sum, metric.count] if metric.kind is metrics.Kind.HISTOGRAM else [metric.series]
    )
}
SCRAPE_LABELS = {metrics.SCRAPE_NAMESPACE, metrics.SCRAPE_POD, metrics.SCRAPE_DEPLOYMENT, metrics.SCRAPE_ROLE}
SELECTOR = re.compile(r"(?P<series>[a-z_:]+)\{(?P<matchers>[^}]*)\}")
MATCHER = re.compile(r'(?P<label>[a-z_]+)(=|!=|=~|!~)"(?P<value>[^"]*)"')
CLOSED_SETS = {
    "slo": set(metrics.SloMet),
    "outcome": set(metrics.Outcome),
    "role": set(metrics.ROLES),
    "state": set(metrics.OPERATOR_REPLICA_STATES),
}


@pytest.fixture(params=DASHBOARDS, ids=[path.stem for path in DASHBOARDS])
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.param.read_text(encoding="utf-8"))
    return found


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (
        variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"
    )


def test_there_are_dashboards() -> None:
    assert [path.stem for path in DASHBOARDS] == ["overview"]


def test_every_series_is_one_that_a_program_exports(dashboard: dict[str, Any]) -> None:
    for query in queries(dashboard):
        named = set(re.findall(r"\b(?:disagg|vllm)[a-z_:]*_[a-z_]+\b", query)) - SCRAPE_LABELS
        assert named, query
        assert named <= set(SERIES), query


def test_every_selector_uses_labels_and_values_of_its_series(dashboard: dict[str, Any]) -> None:
    for query in queries(dashboard):
        for found in SELECTOR.finditer(query):
            metric = SERIES[found["series"]]
            for matcher in MATCHER.finditer(found["matchers"]):
                assert matcher["label"] in SCRAPE_LABELS | set(metric.labels), query
                if matcher["label"] in CLOSED_SETS and "$" not in matcher["value"]:
                    assert set(matcher["value"].split("|")) <= CLOSED_SETS[matcher["label"]], query


def test_every_query_is_about_one_deployment(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            for found in SELECTOR.finditer(target["expr"]):
                assert '"$namespace"' in found["matchers"], target["expr"]
                assert '"$deployment"' in found["matchers"], target["expr"]


@pytest.mark.parametrize("phase", ["TTFT", "TPOT"])
def test_latencies_are_drawn_against_their_slo(phase: str) -> None:
    panels = json.loads((FOLDER / "overview.json").read_text(encoding="utf-8"))["panels"]
    (panel,) = [panel for panel in panels if panel["title"] == f"{phase} against its SLO"]
    assert [target["legendFormat"] for target in panel["targets"]] == ["p50", "p90", "p99", "SLO"]


def test_panels_have_ids_of_their_own_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_panels_say_what_they_show_and_ask_the_chosen_data_source(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["description"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
