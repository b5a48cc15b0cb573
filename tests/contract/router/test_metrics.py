"""What the router exports."""

import asyncio
import re

import pytest

from disagg_contract import metrics
from disagg_contract.metrics import Kind

ROUTER = [metric for metric in metrics.ALL if metric.name.startswith("disagg_router_")]


def total(series, metric, **labels):
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    name = metric.count if metric.kind is Kind.HISTOGRAM else metric.series
    return sum(v for k, v in series.items() if re.match(rf"{name}(\{{|$)", k) and all(w in k for w in wanted))


async def test_pm6_every_series_is_there_before_the_first_request(bench, pair, tools):
    for workers, settings in (((), {"model": tools.MODEL}), (pair, {})):
        router = await bench(*workers, **settings)
        series = await router.metrics()
        for metric in ROUTER:
            name = metric.count if metric.kind is Kind.HISTOGRAM else metric.series
            found = [key for key in series if re.match(rf"{name}(\{{|$)", key)]
            assert found, name
            if metric is not metrics.ROUTER_WORKERS:
                assert all(series[key] == 0 for key in found), name
            if metrics.MODEL in metric.labels:
                assert any(f'model="{tools.MODEL}"' in key for key in found), name
        for outcome in metrics.Outcome:
            assert f'disagg_router_requests_total{{model="{tools.MODEL}",outcome="{outcome}"}}' in series
        for met in metrics.SloMet:
            assert f'disagg_router_slo_requests_total{{model="{tools.MODEL}",slo="{met}"}}' in series


@pytest.mark.parametrize("stream", [True, False])
async def test_pm8_as_many_latencies_as_successes(bench, pair, tools, stream):
    router = await bench(*pair, slo_ttft_seconds=30.0, slo_tpot_seconds=30.0)
    gate = asyncio.Semaphore(64)

    async def one(number):
        async with gate:
            answer = await router.post({"stream": stream, "max_tokens": 1 + number % 3})
            await answer.read()
            return answer.status

    assert set(await asyncio.gather(*(one(number) for number in range(500)))) == {200}
    series = await router.metrics()
    several = sum(number % 3 > 0 for number in range(500))
    assert total(series, metrics.ROUTER_TTFT) == 500
    assert total(series, metrics.ROUTER_TPOT) == several
    assert total(series, metrics.ROUTER_DURATION) == 500
    assert total(series, metrics.ROUTER_INPUT_TOKENS) == 500
    assert series[f'disagg_router_input_tokens_sum{{model="{tools.MODEL}"}}'] == 500 * 11
    assert series[f'disagg_router_output_tokens_sum{{model="{tools.MODEL}"}}'] == sum(1 + n % 3 for n in range(500))
    assert series[f'disagg_router_cached_tokens_total{{model="{tools.MODEL}"}}'] == 500 * 4
    assert total(series, metrics.ROUTER_SLO, slo="both") == 500
    assert total(series, metrics.ROUTER_REQUESTS, outcome="completed") == 500


async def test_pm9_outcomes_add_up(bench, pair, tools):
    router = await bench(*pair, queue_seconds=0.05)
    await (await router.post()).read()
    await router.post({"model": "unknown"})
    await router.post("{")
    pair[1].mode = "bad-request"
    await router.post()
    pair[1].mode = "busy"
    await router.post()
    pair[1].mode = "die"
    await (await router.post({"stream": True, "max_tokens": 100})).read()
    pair[1].mode = "hold"
    await tools.eventually(lambda: router.eligible(pair[1]), "it is back")
    leaving = asyncio.ensure_future(router.post())
    await tools.eventually(lambda: pair[1].running == 1, "it runs")
    leaving.cancel()
    await tools.eventually(lambda: pair[1].running == 0, "it was cancelled")
    staying = asyncio.ensure_future(router.post())
    await tools.eventually(lambda: pair[1].running == 1, "it runs")
    series = await router.metrics()
    outcomes = {outcome: total(series, metrics.ROUTER_REQUESTS, outcome=outcome) for outcome in metrics.Outcome}
    assert outcomes == {"completed": 1, "cancelled": 1, "rejected": 3, "unavailable": 1, "failed": 1}
    assert total(series, metrics.ROUTER_IN_FLIGHT) == 1
    assert total(series, metrics.ROUTER_STARTED) == sum(outcomes.values()) + 1
    assert not any('model="gpt' in key or 'model="unknown",outcome="completed"} 1' in key for key in series)
    pair[1].go.set()
    assert (await staying).status == 200


async def test_pm11_two_routers_in_one_process_count_apart(bench, pair, tools):
    one, two = await bench(*pair), await bench()
    for worker in pair:
        two.source.put(worker.row)
    await tools.eventually(lambda: all(map(two.eligible, pair)), "the second router knows them, too")
    await one.post()
    assert total(await one.metrics(), metrics.ROUTER_STARTED) == 1
    assert total(await two.metrics(), metrics.ROUTER_STARTED) == 0


async def test_latencies_are_in_engine_seconds(bench, pair, tools):
    for worker in pair:
        worker.time_scale = 1000.0
    router = await bench(*pair)
    await (await router.post({"stream": True})).read()
    fast = await router.metrics()
    label = f'{{model="{tools.MODEL}"}}'
    assert fast["disagg_router_ttft_seconds_sum" + label] > 0.1, "a millisecond of wall time is a second"
    assert fast["disagg_router_request_duration_seconds_sum" + label] >= fast["disagg_router_ttft_seconds_sum" + label]


async def test_an_unstreamed_answer_has_the_workers_latency(bench, pair, tools):
    router = await bench(*pair)
    await router.post()
    series = await router.metrics()
    label = f'{{model="{tools.MODEL}"}}'
    assert series["disagg_router_ttft_seconds_sum" + label] >= 0.25
    assert series["disagg_router_tpot_seconds_sum" + label] == pytest.approx(0.05)


async def test_workers_are_counted_by_role(bench, pair, tools):
    router = await bench(*pair, tools.FakeWorker(tools.Role.DECODE))
    series = await router.metrics()
    assert [series[f'disagg_router_workers{{role="{role}"}}'] for role in ("prefill", "decode", "worker")] == [1, 2, 0]
