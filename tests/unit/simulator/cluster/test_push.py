"""Pull against push (ADR 16): a burst, and where its KV goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from disagg_contract.labels import Role
from disagg_engine.kv import CountingLedger
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.cluster.landing import LandingLedger
from disagg_simulator.deployment import Deployment, Link, Mode, Transfer
from disagg_simulator.options import Options
from disagg_simulator.recording import Outcome

ADR = Path(__file__).parents[4] / "docs/adr/0016-pull-not-push.md"


@pytest.fixture
def burst(group, columns):
    """8 requests/s for 40 s on 4P1D OPT-13B, and 250 more at once at 10 s; the deployment pulls."""
    arrivals = sorted([0.125 * number for number in range(320)] + [10.0] * 250)
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, 4),),
        decode=(group(Role.DECODE, 1),),
        link=Link(bytes_per_second=300e9),
    )
    return deployment, columns(arrivals, 512, 128)


def highest_sum(instances):
    """The most KV tokens that these instances held together."""
    changes = sorted(
        (seconds, number, tokens)
        for number, instance in enumerate(instances)
        for seconds, tokens in zip(instance.series_seconds, instance.series_kv_tokens, strict=True)
    )
    held, highest = [0] * len(instances), 0
    for _, number, tokens in changes:
        held[number] = tokens
        highest = max(highest, sum(held))
    return highest


def figures(recording):
    """The rows of the ADR's table."""
    decode, count = recording.instances[-1], len(recording.requests)
    spans = (last - first for first, last in zip(recording.first_token, recording.finish, strict=True))
    return [
        decode.peak_kv_tokens or max(decode.series_kv_tokens),
        decode.kv_dropped,
        highest_sum(recording.instances[:-1]),
        1000 * sum(spans) / count / 127,
        recording.end_seconds,
    ]


def test_under_a_burst_push_overruns_decode_memory_and_pull_queues_in_prefill_memory(burst):
    deployment, requests = burst
    options = Options(series=True)
    pulled = simulate_cluster(deployment, requests, seed=0, options=options)
    pushed = simulate_cluster(replace(deployment, transfer=Transfer.PUSH), requests, seed=0, options=options)
    for recording in (pulled, pushed):
        assert set(recording.outcome) == {Outcome.COMPLETED}
        assert list(recording.tokens) == [128] * len(requests)
    decode = pushed.instances[-1]
    assert decode.peak_kv_tokens > 2 * decode.capacity_tokens
    assert max(pulled.instances[-1].series_kv_tokens) <= decode.capacity_tokens
    assert max(decode.series_kv_tokens) <= decode.capacity_tokens
    assert decode.prompt_tokens == 513 * decode.kv_dropped > 0
    assert highest_sum(pulled.instances[:-1]) > 10 * highest_sum(pushed.instances[:-1])
    assert pushed.end_seconds > 1.5 * pulled.end_seconds


def test_the_adr_says_what_is_simulated(burst):
    deployment, requests = burst
    options = Options(series=True)
    columns = [
        figures(simulate_cluster(replace(deployment, transfer=transfer), requests, seed=0, options=options))
        for transfer in (Transfer.PULL, Transfer.PUSH)
    ]
    rows = [line.split("|") for line in ADR.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    told = [[float(cell.replace(",", "")) for cell in row[2:4]] for row in rows if row[2].strip()[0].isdigit()]
    assert told == [pytest.approx(pair, abs=0.051) for pair in zip(*columns, strict=True)]


def test_with_room_for_all_push_and_pull_are_the_same(burst, group):
    deployment, requests = burst
    roomy = replace(deployment, decode=(group(Role.DECODE, kv_capacity_tokens=1_000_000, max_sequences=1000),))
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
