"""Rows 1 to 9 of the reference numbers: what the roofline model must give.

Sources: the published figures of DistServe (Zhong et al., OSDI 2024), Sarathi-Serve (Agrawal et al., OSDI 2024), the
OPT paper and the A100 data sheet, recomputed independently with the same model. Hard rows hold to 1 %; nothing is
tuned to meet them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from disagg_engine.batching import BatchingConfig, BatchingLoop, BatchPolicy, Request
from disagg_engine.catalogue import Catalogue
from disagg_engine.instance import Instance, transfer_seconds
from disagg_engine.kv import CountingLedger
from disagg_engine.timemodel import BatchShape, Chunk, Roofline


def one_percent(value: float) -> object:
    return pytest.approx(value, rel=0.01)


def decode(model: Roofline, batch: int, context: int) -> float:
    shape = BatchShape(decode_sequences=batch, decode_context_tokens=batch * context)
    return model.iteration_seconds(shape).seconds


def prefill(model: Roofline, tokens: int, cached: int = 0) -> float:
    return model.iteration_seconds(BatchShape(chunks=(Chunk(cached, tokens),))).seconds


def test_row1_single_decode_opt13b_a100(opt13b: Roofline) -> None:
    """DistServe section 2: one OPT-13B decode step on an A100, context 512: 17.2 ms, 58 tokens/s."""
    step = decode(opt13b, 1, 512)
    assert step == one_percent(0.0172)
    assert 1 / step == one_percent(58)
    prefill_rate = 2048 / prefill(opt13b, 2048)
    assert 0.0075 <= (1 / step) / prefill_rate <= 0.0080


def test_row2_batching_decodes_pays(opt13b: Roofline) -> None:
    """DistServe figure 3: 128 decodes together give 44 × the tokens/s at 2.9 × the step time."""
    ratio = decode(opt13b, 128, 512) / decode(opt13b, 1, 512)
    assert ratio == one_percent(2.9)
    assert 128 / ratio == one_percent(44)


def test_row3_kv_room_after_weights(instance_of: Callable[..., Instance]) -> None:
    """OPT-13B on one A100-80GB: 58,594 tokens of KV, about 115 requests at context 512."""
    room = instance_of().kv_capacity_tokens()
    assert room == one_percent(58_594)
    assert room / 512 == one_percent(115)


def test_row4_idle_ttft_and_end_to_end(opt13b: Roofline) -> None:
    """ShareGPT's mean request (755 in, 200 out): TTFT 0.104 s idle, 6.2 s end to end at the TPOT of 32 decodes."""
    ttft = prefill(opt13b, 755)
    tpot = decode(opt13b, 32, 855)
    assert ttft == one_percent(0.104)
    assert tpot == one_percent(0.0307)
    assert ttft + tpot * 199 == one_percent(6.2)


def test_row4_ttft_through_the_loop(opt13b: Roofline, driver: type) -> None:
    """The same prompt through an idle batching loop: its first token appears when its prefill ends."""
    loop = BatchingLoop(
        config=BatchingConfig(),
        time_model=opt13b,
        ledger=CountingLedger(capacity_tokens=opt13b.instance.kv_capacity_tokens()),
    )
    run = driver(loop)
    run.submit(Request(request_id="a", prompt_tokens=755, max_tokens=200))
    times = run.run().tokens["a"]
    assert len(times) == 200
    assert times[0] == one_percent(0.104)
    assert times[-1] - times[0] == pytest.approx(sum(decode(opt13b, 1, 755 + step) for step in range(199)), abs=1e-9)


def test_row5_prefill_joining_decodes(opt13b: Roofline) -> None:
    """DistServe figure 2: a 1024-token prefill in the batch of 32 decodes (context 1024) takes the step 33 → 140 ms."""
    alone = BatchShape(decode_sequences=32, decode_context_tokens=32 * 1024)
    joined = BatchShape(chunks=(Chunk(0, 1024),), decode_sequences=32, decode_context_tokens=32 * 1024)
    assert round(opt13b.iteration_seconds(alone).seconds * 1000) == 33  # stated in whole milliseconds
    assert opt13b.iteration_seconds(joined).seconds == one_percent(0.140)


def test_row6_roofline_of_a100(opt13b: Roofline, catalogue: Catalogue) -> None:
    """A100 data sheet: 153 FLOP/B; prefill crosses it at about 150 tokens; decode never does (limit about 63)."""
    gpu = catalogue.gpu("a100-80gb")
    ridge = gpu.flops / gpu.memory_bandwidth
    assert ridge == one_percent(153)

    def intensity(batch: BatchShape) -> float:
        return opt13b.flop(batch) / opt13b.traffic_bytes(batch)

    crossing = next(n for n in range(1, 2048) if intensity(BatchShape(chunks=(Chunk(0, n),))) >= ridge)
    assert crossing == pytest.approx(150, rel=0.05)  # "about"
    assert intensity(BatchShape(decode_sequences=256, decode_context_tokens=256 * 512)) == one_percent(50.6)
    huge = 10**7
    limit = intensity(BatchShape(decode_sequences=huge, decode_context_tokens=huge * 512))
    assert limit == one_percent(63)
    assert limit < ridge


def test_row7_efficiency_at_1024_tokens(opt13b: Roofline) -> None:
    """Prefill at 1024 tokens reaches at least 0.90 of what the largest batches reach."""
    assert opt13b.efficiency(1024) / opt13b.efficiency(10**9) >= 0.90


def test_row8_kv_of_opt66b(catalogue: Catalogue) -> None:
    """DistServe section 3.3: KV of OPT-66B, and what a 25 Gb/s link carries of it."""
    per_token = catalogue.model("opt-66b").kv_bytes_per_token
    assert 512 * per_token == one_percent(1.125 * 2**30)
    assert 1000 * per_token == one_percent(2.36e9)
    bandwidth = catalogue.link("eth-25").bandwidth
    assert bandwidth is not None
    seconds = transfer_seconds(1000 * per_token, bandwidth=bandwidth)
    assert seconds == one_percent(0.755)
    assert 1 / seconds == pytest.approx(1.3, abs=0.05)
    bits_per_second = 10 * 512 * per_token * 8
    assert bits_per_second == one_percent(96.6e9)
    assert bits_per_second / 2**30 == one_percent(90)


@pytest.mark.parametrize(("prompt", "chunk", "reread"), [(2048, 256, 7_168), (4096, 512, 14_336), (4096, 1024, 6_144)])
def test_row9_chunked_prefill_rereads(prompt: int, chunk: int, reread: int, opt13b: Roofline, driver: type) -> None:
    """Sarathi-Serve section 4: KV tokens read again by a prompt's later chunks, counted on the loop's iterations."""
    loop = BatchingLoop(
        config=BatchingConfig(policy=BatchPolicy.CHUNKED, chunk_tokens=chunk),
        time_model=opt13b,
        ledger=CountingLedger(capacity_tokens=50_000),
    )
    run = driver(loop)
    run.submit(Request(request_id="a", prompt_tokens=prompt, max_tokens=1))
    run.run()
    assert len(run.iterations) == prompt // chunk
    assert sum(iteration.shape.reread_tokens for iteration in run.iterations) == reread
