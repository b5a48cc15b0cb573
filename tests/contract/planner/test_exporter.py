"""The planner's own metrics and its server."""

from __future__ import annotations

import math
from typing import Any

import aiohttp
import pytest

from disagg_contract import metrics
from disagg_contract.labels import Role
from disagg_contract.listening import ListenError
from disagg_contract.metrics import Metric
from disagg_planner.core.decision import Decision, Reason, RoleDecision
from disagg_planner.core.observation import Observation
from disagg_planner.core.settings import Settings
from disagg_planner.core.signals import Problem, ProblemKind
from disagg_planner.core.state import Assessment
from disagg_planner.shell import server
from disagg_planner.shell.exporter import Exporter

PLANNER = [metric for metric in metrics.ALL if metric.name.startswith("disagg_planner_")]


@pytest.fixture
def exporter() -> Exporter:
    return Exporter(Settings(slo_ttft_seconds=0.25, slo_tpot_seconds=0.1))


def value(exporter: Exporter, metric: Metric, **labels: str) -> float | None:
    return exporter.registry.get_sample_value(metric.series, labels)


@pytest.mark.parametrize("metric", PLANNER, ids=lambda metric: metric.name)
def test_pm6_every_series_exists_before_the_first_decision(exporter: Exporter, metric: Metric) -> None:
    values = {"result": metrics.PLANNER_RESULTS, "phase": metrics.PLANNER_PHASES, "role": ("prefill", "decode")}
    for label in metric.labels:
        for one in values[label]:
            assert value(exporter, metric, **{label: one}) is not None
    if not metric.labels:
        assert value(exporter, metric) is not None


def test_pm11_two_planners_in_one_process_count_apart(exporter: Exporter) -> None:
    exporter.count("applied")
    assert value(Exporter(Settings()), metrics.PLANNER_DECISIONS, result="applied") == 0
    assert value(exporter, metrics.PLANNER_DECISIONS, result="applied") == 1


def test_what_is_unknown_is_nan_and_never_zero(exporter: Exporter) -> None:
    problem = Problem(ProblemKind.STALE, "old")
    seen = Observation(at_seconds=0, window_seconds=30, problem=problem)
    held = RoleDecision(role=Role.DECODE, current=3, needed=None, target=3, reason=Reason.HOLD_METRICS_STALE)
    exporter.show(
        Decision(
            at_seconds=0,
            roles={Role.DECODE: held},
            assessment=Assessment(observation=seen, problem=problem),
            decode_k=1.5,
        )
    )
    rate = value(exporter, metrics.PLANNER_OBSERVED_RATE)
    assert rate is not None
    assert math.isnan(rate)
    assert value(exporter, metrics.PLANNER_HOLDING) == 1
    assert value(exporter, metrics.PLANNER_WANTED, role="decode") == 3
    assert value(exporter, metrics.PLANNER_CORRECTION, phase="decode") == 1.5


async def test_health_and_metrics_are_served(exporter: Exporter) -> None:
    healthy = True
    runner, port = await server.start(server.build_app(exporter, lambda: healthy), host="127.0.0.1", port=0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get("/health") as answer:
            assert answer.status == 200
        async with session.get("/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert "disagg_planner_decisions_total" in await answer.text()
        healthy = False
        async with session.get("/health") as answer:
            assert answer.status == 503
    await runner.cleanup()


async def test_a_port_in_use_names_its_flag(exporter: Exporter, serve: Any) -> None:
    from aiohttp import web

    taken = int((await serve(web.Application())).rpartition(":")[2])
    with pytest.raises(ListenError, match="is in use; choose another with --port"):
        await server.start(server.build_app(exporter, lambda: True), host="127.0.0.1", port=taken)
