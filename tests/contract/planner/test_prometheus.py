"""The Prometheus source over real HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from disagg_planner.core import signals
from disagg_planner.core.signals import ProblemKind, Reading
from disagg_planner.shell import queries
from disagg_planner.shell.prometheus import PrometheusSource, parse_value
from disagg_planner.shell.queries import Target

HERE = Target(namespace="team-a", deployment="chat-13b", model="opt-13b")
POD = {"namespace": "team-a", "disagg_deployment": "chat-13b", "model": "opt-13b"}

Open = Callable[..., Awaitable[PrometheusSource]]


@pytest.fixture
async def source(prom: Any, serve: Any) -> AsyncIterator[Open]:
    opened: list[PrometheusSource] = []

    async def build(url: str = "") -> PrometheusSource:
        opened.append(
            PrometheusSource(
                url=url or await serve(prom.app()),
                target=HERE,
                window_seconds=30.0,
                time_scale=2.0,
                timeout_seconds=5.0,
            )
        )
        return opened[-1]

    yield build
    for one in opened:
        await one.close()


def samples(prom: Any, series: str, before: float, after: float, **labels: str) -> None:
    prom.before.append((series, POD | labels, before))
    prom.after.append((series, POD | labels, after))


def problem(reading: Reading) -> ProblemKind | None:
    return reading.problem.kind if reading.problem is not None else None


async def test_a_window(prom: Any, source: Open) -> None:
    samples(prom, "disagg_router_requests_started_total", 100, 460, pod="router-0")
    samples(prom, "disagg_router_requests_started_total", 0, 40, pod="router-1")
    samples(prom, "disagg_worker_busy_seconds_total", 5, 25, disagg_role="prefill", pod="p-0")
    samples(prom, "disagg_worker_busy_seconds_total", 5, 30, disagg_role="decode", pod="d-0")
    for le, before, after in (("0.25", 3, 8), ("0.1", 1, 2), ("+Inf", 3, 10)):
        samples(prom, "disagg_router_ttft_seconds_bucket", before, after, le=le, pod="router-0")
    reading = await (await source()).read(1000.0)
    assert reading.problem is None
    assert reading.increases == {
        signals.STARTED.key: 400.0,
        signals.PREFILL_BUSY.key: 20.0,
        signals.DECODE_BUSY.key: 25.0,
    }
    assert reading.buckets[signals.TTFT_BUCKET.key] == ((0.1, 1.0), (0.25, 5.0), (math.inf, 7.0))
    assert (reading.window_seconds, reading.age_seconds, reading.silent) == (30.0, 1.0, ())


async def test_series_nobody_exports_are_absent_not_zero(source: Open) -> None:
    reading = await (await source()).read(0.0)
    assert reading.increases == {}


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf", "", "1e400", "twelve"])
async def test_pm4_what_is_no_number_is_kept_from_becoming_one(prom: Any, source: Open, text: str) -> None:
    prom.override[queries.increase(HERE, signals.STARTED, 30.0)] = text
    reading = await (await source()).read(0.0)
    assert not math.isfinite(reading.increases[signals.STARTED.key])


def test_pm4_values_are_parsed_without_surprises() -> None:
    assert parse_value("12.5") == 12.5
    assert all(not math.isfinite(parse_value(text)) for text in ("NaN", "+Inf", "-Inf", "", "1e400", None, [1]))


async def test_routers_without_a_current_sample_are_infinitely_old(prom: Any, source: Open) -> None:
    prom.override[queries.increase(HERE, signals.STARTED, 30.0)] = "12"
    reading = await (await source()).read(0.0)
    assert reading.age_seconds == math.inf


async def test_pl17_silent_targets_are_named(prom: Any, source: Open) -> None:
    samples(prom, "disagg_router_requests_started_total", 0, 60, pod="router-0")
    for pod, up in (("d-0", 1.0), ("d-1", 0.0), ("d-2", 1.0)):
        prom.after.append(("up", POD | {"pod": pod}, up))
    reading = await (await source()).read(0.0)
    assert reading.silent == ("d-1",)
    assert reading.problem is None


async def test_hc6_a_host_that_does_not_exist_is_a_problem_not_a_crash(source: Open) -> None:
    reading = await (await source("http://prometheus.invalid:9090")).read(0.0)
    assert problem(reading) is ProblemKind.UNREACHABLE
    assert reading.problem is not None
    assert "http://prometheus.invalid:9090" in reading.problem.detail


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (503, None),
        (200, b"<html>login</html>"),
        (200, b"[]"),
        (200, b'{"status": "success"}'),
        (200, b'{"status": "success", "data": {"result": [{"value": []}]}}'),
        (404, b"not found"),
    ],
)
async def test_answers_that_are_none_are_a_problem(prom: Any, source: Open, status: int, body: bytes | None) -> None:
    prom.status, prom.body = status, body
    reading = await (await source()).read(0.0)
    assert problem(reading) is ProblemKind.UNREACHABLE


async def test_an_error_of_the_server_is_passed_on_in_words(prom: Any, source: Open) -> None:
    prom.status = 503
    reading = await (await source()).read(0.0)
    assert reading.problem is not None
    assert "503: query timed out" in reading.problem.detail


async def test_the_past_is_read_back_in_the_planners_clock(prom: Any, source: Open) -> None:
    prom.history = {
        "requests_started": [(60.0, "3"), (30.0, "4"), (0.0, "NaN")],
        "input_tokens": [(60.0, "755"), (30.0, "NaN")],
    }
    past = list(await (await source()).history(1000.0, 60))
    assert [(one.at_seconds, one.rate, one.input_tokens, one.output_tokens) for one in past] == [
        (pytest.approx(910.0), 3.0, 755.0, None),
        (pytest.approx(940.0), 4.0, None, None),
    ]


async def test_a_server_without_a_past_is_no_error(prom: Any, source: Open) -> None:
    assert await (await source("http://prometheus.invalid")).history(0.0, 60) == ()


async def test_the_window_of_rates_counts_in_engine_seconds() -> None:
    assert queries.rate_history(HERE, 30.0, 2.0).endswith("[30000ms])) / 60.0")


async def test_all_queries_of_a_tick_are_instant_queries(prom: Any, source: Open) -> None:
    await (await source()).read(0.0)
    assert len(prom.queries) == len(signals.SIGNALS) + 2
    assert json.dumps(sorted(prom.queries)).count("increase") == len(signals.SIGNALS)
