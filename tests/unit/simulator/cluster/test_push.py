"""Pull against push (ADR 16): a burst, and where its KV goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_contract.labels import Role
from disagg_engine.kv import CountingLedger
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.cluster.landing import LandingLedger
from disagg_simulator.deployment import Deployment, Link, Mode, Transfer
from disagg_simulator.options import Options
from disagg_simulator.recording import Outcome


@pytest.fixture
def burst(group, columns):
    """A steady stream on 4P1D OPT-13B, and 120 prompts at once at 5 s; the deployment pulls."""
    arrivals = sorted([0.2 * number for number in range(100)] + [5.0] * 120)
    requests = columns(arrivals, 512, 128)
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, 4),),
        decode=(group(Role.DECODE, 1, kv_capacity_tokens=20_000),),
        link=Link(bytes_per_second=300e9),
    )
    return deployment, requests


def test_under_a_burst_push_overruns_decode_memory_and_pull_queues_in_prefill_memory(burst):
    deployment, requests = burst
    pulled = simulate_cluster(deployment, requests, seed=0, options=Options(series=True))
    pushed = simulate_cluster(
        replace(deployment, transfer=Transfer.PUSH), requests, seed=0, options=Options(series=True)
    )
    for recording in (pulled, pushed):
        assert set(recording.outcome) == {Outcome.COMPLETED}
    decode = pushed.instances[-1]
    assert decode.peak_kv_tokens > decode.capacity_tokens
    assert decode.kv_dropped > 20
    assert decode.prompt_tokens == 512 * decode.kv_dropped
    assert pulled.instances[-1].kv_dropped == 0
    assert max(pulled.instances[-1].series_kv_tokens) <= decode.capacity_tokens
    held = max(sum(tokens) for tokens in zip(*(prefill_series(pulled)), strict=True))
    assert held > 2 * max(sum(tokens) for tokens in zip(*(prefill_series(pushed)), strict=True))
    # What was dropped is computed twice, and the second time among the decodes.
    assert pushed.end_seconds > pulled.end_seconds


def prefill_series(recording):
    """KV tokens of each prefill instance at a common grid of times."""
    times = [0.05 * number for number in range(int(recording.end_seconds / 0.05))]
    for instance in recording.instances[:-1]:
        tokens, place, column = 0, 0, []
        for now in times:
            while place < len(instance.series_seconds) and instance.series_seconds[place] <= now:
                tokens = instance.series_kv_tokens[place]
                place += 1
            column.append(tokens)
        yield column


def test_with_room_for_all_push_and_pull_are_the_same(burst):
    deployment, requests = burst
    roomy = replace(deployment, decode=(replace(deployment.decode[0], kv_capacity_tokens=1_000_000),))
    pulled = simulate_cluster(roomy, requests, seed=0)
    pushed = simulate_cluster(replace(roomy, transfer=Transfer.PUSH), requests, seed=0)
    assert list(pushed.finish) == pytest.approx(list(pulled.finish), abs=1e-9)
    assert pushed.instances[-1].kv_dropped == 0


def test_landed_kv_takes_room_and_gives_way_when_it_blocks_everybody():
    ledger = LandingLedger(CountingLedger(capacity_tokens=100))
    assert [ledger.land(name, 40) for name in "abc"] == [True, True, False]
    assert (ledger.used_tokens, ledger.free_tokens, ledger.peak_tokens, ledger.dropped) == (80, 20, 120, 1)
    # a needs 70 with its answer; only 60 are not b's, nothing runs, so b's KV is dropped.
    assert ledger.open("a", tokens=40, room_tokens=70) == 0
    assert (ledger.claim("a"), ledger.claim("a"), ledger.dropped, ledger.used_tokens) == (True, False, 2, 70)
    assert ledger.land("d", 20)
    assert ledger.open("b", tokens=40, room_tokens=20) is None  # a runs, so b waits
    ledger.close("a")
    assert ledger.open("b", tokens=40, room_tokens=70) == 0
    assert not ledger.claim("b")
    assert ledger.grow("b", 80)
    assert ledger.grow("b", 90)  # whoever runs goes before what has landed
    assert (ledger.used_tokens, ledger.dropped) == (90, 3)
