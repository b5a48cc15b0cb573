"""What Prometheus sees."""

import asyncio
import contextlib
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from disagg_contract import metrics
from disagg_contract.labels import Role
from disagg_contract.metrics import Kind, Metric, Outcome
from tests.contract.workers.conftest import Site, eventually, sample

WORDS = "The quick brown fox jumps over the lazy dog and then sleeps. "
OURS = [m for m in metrics.ALL if m.name.startswith(("disagg_worker_", "vllm:"))]


def series(metric: Metric) -> str:
    return metric.count if metric.kind is Kind.HISTOGRAM else metric.series


async def test_pm6_every_series_exists_at_0_before_the_first_request(start: Any) -> None:
    site = await start(wait=False, startup_seconds=1000.0)
    text = (await site.send("GET", "/metrics")).body.decode()
    samples = {
        (s.name, *sorted(s.labels.items())): s.value for f in text_string_to_metric_families(text) for s in f.samples
    }
    for metric in OURS:
        found = [value for (name, *_), value in samples.items() if name == series(metric)]
        assert found, metric.name
        if metric is not metrics.WORKER_KV_TOKENS:
            assert set(found) == {0.0}, metric.name
    values = {
        (metrics.WORKER_REQUESTS, "outcome"): {outcome.value for outcome in Outcome},
        (metrics.VLLM_SUCCESS, "finished_reason"): {"stop", "length", "abort"},
    }
    assert {metric for metric in OURS if len(metric.labels) > 1} == {metric for metric, _ in values}
    for (metric, label), wanted in values.items():
        assert {dict(rest)[label] for name, *rest in samples if name == series(metric)} == wanted
    model = site.worker.simulated.served_name
    for metric in OURS:
        rows = [dict(rest) for name, *rest in samples if name == series(metric)]
        assert {row[metric.labels[0]] for row in rows} == {model}, metric.name
        assert {frozenset(row) for row in rows} == {frozenset(metric.labels)}, metric.name


async def test_pm6_requests_before_the_first_scrape_are_all_counted(start: Any) -> None:
    site = await start()
    await asyncio.gather(*(site.complete(f"{n}", max_tokens=2) for n in range(30)))
    assert await site.metric("disagg_worker_requests_total", outcome="completed") == 30


async def test_pm8_ttft_and_tpot_counts_equal_successes(start: Any) -> None:
    site = await start()
    await asyncio.gather(
        *(site.complete(f"{n}", max_tokens=1 + n % 3, ignore_eos=True, stream=n % 2 == 0) for n in range(90))
    )
    text = (await site.send("GET", "/metrics")).body.decode()
    assert sample(text, "disagg_worker_requests_total", outcome="completed") == 90
    for name in ("disagg_worker_ttft_seconds_count", "vllm:time_to_first_token_seconds_count"):
        assert sample(text, name) == 90
    for name in ("disagg_worker_tpot_seconds_count", "vllm:request_time_per_output_token_seconds_count"):
        assert sample(text, name) == 60
    assert sample(text, "disagg_worker_generated_tokens_total") == 180
    assert sample(text, "vllm:generation_tokens_total") == 180
    assert sample(text, "vllm:request_success_total", finished_reason="length") == 90


async def check_conservation(site: Site) -> dict[str, float]:
    text = (await site.send("GET", "/metrics")).body.decode()
    outcomes = {o.value: sample(text, "disagg_worker_requests_total", outcome=o.value) for o in Outcome}
    assert sum(outcomes.values()) + len(site.worker.service.live) == sample(
        text, "disagg_worker_requests_started_total"
    )
    counts = site.worker.driver.counts()
    assert counts.submitted == (
        counts.refused
        + counts.waiting
        + counts.pulling
        + counts.running
        + counts.finished
        + counts.cancelled
        + counts.failed
    )
    return outcomes


async def test_pm9_wb3_every_request_ends_with_one_outcome(start: Any) -> None:
    site = await start(time_scale=2.0, grace_seconds=0.1, kv_capacity_tokens=960)
    await site.complete(max_tokens=2)
    await site.complete(max_tokens=0)
    gone = asyncio.create_task(site.complete("Gone", max_tokens=900, ignore_eos=True))
    await eventually(lambda: site.worker.driver.counts().running == 1)
    gone.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await gone
    await eventually(lambda: site.worker.driver.counts().cancelled == 1)
    tasks = [asyncio.create_task(site.complete(f"{n} {WORDS * 10}", max_tokens=600, ignore_eos=True)) for n in range(3)]
    await eventually(lambda: site.worker.driver.counts().preemptions > 0)
    await check_conservation(site)
    site.worker.stop()
    assert (await site.complete(max_tokens=2)).status == 503
    await site.running
    for generation in list(site.worker.service.live):
        from disagg_contract.openai import ApiError

        generation.fail(ApiError("failed", status=500))
    assert {reply.status for reply in await asyncio.gather(*tasks)} <= {200, 500}
    await site.idle()
    outcomes = await check_conservation(site)
    assert all(outcomes.values())


async def test_pm10_ttft_includes_the_queue(start: Any) -> None:
    site = await start(max_sequences=1, prefix_caching=False)
    begun = site.worker.clock.now()
    replies = await asyncio.gather(*(site.complete(f"{n} {WORDS * 60}", max_tokens=1) for n in range(10)))
    took = site.worker.clock.now() - begun
    seen = [float(reply.headers["x-disagg-ttft-seconds"]) for reply in replies]
    text = (await site.send("GET", "/metrics")).body.decode()
    assert sample(text, "disagg_worker_ttft_seconds_sum") == pytest.approx(sum(seen), rel=1e-3)
    alone = min(seen)
    assert max(seen) >= 9 * 0.9 * alone / 2
    assert max(seen) <= took
    assert sample(text, "disagg_worker_queue_seconds_sum") > 0


async def test_pm11_two_workers_in_one_process_count_apart(start: Any) -> None:
    one, two = await start(), await start(Role.PREFILL)
    await one.complete(max_tokens=1)
    assert await one.metric("disagg_worker_requests_started_total") == 1
    assert await two.metric("disagg_worker_requests_started_total") == 0


async def test_cached_tokens_are_counted_once(start: Any) -> None:
    site = await start()
    for _ in range(2):
        reply = await site.complete(WORDS * 4, max_tokens=2)
        await site.metric("disagg_worker_cached_tokens_total")
    cached = reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    assert await site.metric("disagg_worker_cached_tokens_total") == cached
    assert await site.metric("vllm:prefix_cache_hits_total") == cached
