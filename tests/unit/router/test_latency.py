"""TTFT and TPOT from what passed."""

import pytest

from disagg_contract.openai import DONE, Endpoint, StreamWriter, Usage
from disagg_router.core.latency import Latency, reported, streamed
from disagg_router.core.stream import StreamMeter


def metered(tokens, *, choices=1, with_usage=True, first_at=10.2, step=0.1):
    writer = StreamWriter(Endpoint.COMPLETIONS, identity="x", created=1, model="m", include_usage=with_usage)
    meter = StreamMeter(strip_usage=True)
    for number in range(tokens):
        for choice in range(choices):
            meter.feed(writer.chunk(choice, " a"), first_at + number * step)
    if with_usage:
        meter.feed(writer.usage(Usage(prompt_tokens=5, completion_tokens=tokens * choices)), 99.0)
    meter.feed(DONE, 100.0)
    return meter


@pytest.mark.parametrize("with_usage", [True, False])
@pytest.mark.parametrize("choices", [1, 3])
def test_ttft_and_tpot_are_in_engine_seconds(with_usage, choices):
    meter = metered(11, choices=choices, with_usage=with_usage)
    latency = streamed(meter, started=10.0, time_scale=4.0, choices=choices)
    assert latency.ttft_seconds == pytest.approx(0.8)
    assert latency.tpot_seconds == pytest.approx(0.4)


def test_one_token_has_no_tpot():
    assert streamed(metered(1), started=10.0, time_scale=1.0, choices=1).tpot_seconds is None


def test_no_token_has_no_ttft():
    assert streamed(StreamMeter(strip_usage=True), started=10.0, time_scale=1.0, choices=1) == Latency()


def test_a_worker_reports_on_its_leg_and_the_router_adds_what_came_before():
    latency = reported(0.25, 0.05, before_leg_seconds=0.1, time_scale=2.0)
    assert latency == Latency(pytest.approx(0.45), 0.05)
    assert reported(None, None, before_leg_seconds=0.1, time_scale=2.0) == Latency()
