"""Runs of the fast lane that are known beforehand."""

from __future__ import annotations

from array import array
from dataclasses import replace
from math import isnan

import pytest

from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.timemodel import Roofline
from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment, Group, Link, Mode
from disagg_simulator.fast import simulate_fast
from disagg_simulator.options import Options
from disagg_simulator.recording import Outcome
from tests.support.lanes import INSTANCE

TIME = Roofline(INSTANCE)


def group(role: Role, *, replicas: int = 1, kv_capacity_tokens: int = 0) -> Group:
    return Group(
        instance=INSTANCE,
        time_model=TIME,
        batching=BatchingConfig(role=role),
        replicas=replicas,
        kv_capacity_tokens=kv_capacity_tokens,
    )


def pair(*, replicas: int = 1, prefill_tokens: int = 0, decode_tokens: int = 0) -> Deployment:
    return Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, replicas=replicas, kv_capacity_tokens=prefill_tokens),),
        decode=(group(Role.DECODE, replicas=replicas, kv_capacity_tokens=decode_tokens),),
        link=Link(bytes_per_second=3e11),
    )


def columns(*rows: tuple[float, int, int]) -> Columns:
    return Columns(
        name="given",
        arrival_seconds=array("d", (row[0] for row in rows)),
        input_tokens=array("i", (row[1] for row in rows)),
        output_tokens=array("i", (row[2] for row in rows)),
    )


def test_an_idle_pair_takes_prefill_transfer_and_steps() -> None:
    run = simulate_fast(pair(), columns((1.0, 512, 64)), seed=0)
    prefill = TIME.counted_seconds(512, 0.5 * 512 * 512, 0, 0, 0)
    transfer = 512 * INSTANCE.model.kv_bytes_per_token / 3e11
    steps = TIME.decode_window(1, 512, 63)
    assert run.first_token[0] == pytest.approx(1.0 + prefill)
    assert run.finish[0] == pytest.approx(1.0 + prefill + transfer + steps)
    assert (run.tokens[0], run.outcome[0], run.transfer_tokens) == (64, Outcome.COMPLETED, 512)
    assert [record.iterations for record in run.instances] == [1, 63]


def test_no_requests_no_run() -> None:
    for deployment in (pair(), Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER),))):
        run = simulate_fast(deployment, columns(), seed=0, options=Options(gaps=True))
        assert run.end_seconds == 0.0
        assert all(record.iterations == 0 for record in run.instances)


def test_a_full_decode_instance_holds_prompts_in_prefill_memory() -> None:
    """Pull: KV waits where it was made, and then there is no room for further prompts."""
    rows = [(0.0, 400, 50)] * 6
    run = simulate_fast(pair(prefill_tokens=900, decode_tokens=500), columns(*rows), seed=0)
    # Two prompts fit into prefill memory. The third one waits for the first pull, the fourth for the first answer.
    assert run.prefill_start[2] < run.finish[0]
    for index in range(3, 6):
        assert run.prefill_start[index] > run.finish[index - 3]
    assert [run.finish[index] for index in range(6)] == sorted(run.finish)


def test_too_large_requests_are_refused_where_they_do_not_fit() -> None:
    rows = columns((0.0, 1000, 5), (0.0, 400, 200), (0.0, 400, 50))
    run = simulate_fast(pair(prefill_tokens=900, decode_tokens=500), rows, seed=0)
    assert list(run.outcome) == [Outcome.REFUSED, Outcome.REFUSED, Outcome.COMPLETED]
    assert isnan(run.first_token[0])
    assert run.tokens[1] == 1  # its prefill has answered
    assert isnan(run.finish[1])
    assert list(run.decode_instance) == [-1, 1, 1]


def test_a_seed_gives_the_same_bytes_and_another_one_other_choices() -> None:
    rows = columns(*((0.01 * index, 300, 20) for index in range(40)))
    one, same, other = (simulate_fast(pair(replicas=3), rows, seed=seed) for seed in (1, 1, 2))
    assert one.finish.tobytes() == same.finish.tobytes()
    assert one.prefill_instance == same.prefill_instance
    assert one.prefill_instance != other.prefill_instance


def test_gaps_are_as_many_as_tokens_after_the_first() -> None:
    rows = columns(*((0.2 * index, 300 + index, 1 + index % 7) for index in range(30)))
    for deployment in (pair(), Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER),))):
        run = simulate_fast(deployment, rows, seed=0, options=Options(gaps=True))
        assert run.gaps is not None
        assert sum(run.gaps.count) == sum(rows.output_tokens) - len(rows)
        total = sum(run.finish) - sum(run.first_token)
        assert sum(a * b for a, b in zip(run.gaps.seconds, run.gaps.count, strict=True)) == pytest.approx(total)


def test_rates_do_not_change_who_gets_what() -> None:
    """The requests are the same objects at every rate, and are not written to."""
    rows = columns((0.0, 300, 5), (1.0, 200, 1))
    before = replace(rows).arrival_seconds.tobytes()
    simulate_fast(Deployment(mode=Mode.DECODE_ONLY, decode=(group(Role.DECODE),)), rows, seed=0)
    assert rows.arrival_seconds.tobytes() == before
