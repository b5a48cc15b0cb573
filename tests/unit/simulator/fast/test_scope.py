"""The fast lane takes on what it knows, and nothing else."""

from __future__ import annotations

from array import array
from dataclasses import fields, replace
from typing import Any

import pytest

from disagg_contract.config import Admission, BatchPolicy, QueueOrder, RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig, FirstToken
from disagg_engine.timemodel import BatchShape, DecodeLine, IterationCost, Roofline
from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment, Group, Ledger, Mode, Transfer
from disagg_simulator.errors import OptionError
from disagg_simulator.fast import applies, reason_not, simulate_fast
from disagg_simulator.options import DEFAULTS, Fault, Lane, Options
from tests.support.lanes import INSTANCE


class Opaque:
    """A time model that wants to see every iteration."""

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        return IterationCost(seconds=0.1, compute_seconds=0.1, memory_seconds=0.0, stage_seconds=0.1, bound="compute")

    def decode_window(self, sequences: int, context_tokens: int, steps: int, /) -> float | None:
        return None

    def decode_lines(self, sequences: int, /) -> tuple[DecodeLine, ...]:
        return (DecodeLine(float("inf"), 0.1, 0.0),)


def group(role: Role, **changes: Any) -> Group:
    batching = {name: changes.pop(name) for name in [each.name for each in fields(BatchingConfig)] if name in changes}
    made = Group(instance=INSTANCE, time_model=Roofline(INSTANCE), batching=BatchingConfig(role=role, **batching))
    return replace(made, **changes)


def pair(**changes: Any) -> Deployment:
    made = Deployment(mode=Mode.DISAGGREGATED, prefill=(group(Role.PREFILL),), decode=(group(Role.DECODE),))
    return replace(made, **changes)


def columns(**more: Any) -> Columns:
    return Columns(
        name="two",
        arrival_seconds=array("d", (0.0, 1.0)),
        input_tokens=array("i", (5, 5)),
        output_tokens=array("i", (2, 2)),
        **more,
    )


@pytest.mark.parametrize(
    ("deployment", "why"),
    [
        (pair(transfer=Transfer.PUSH), "pushed"),
        (pair(routing=RoutingPolicy.KV), "routing is kv"),
        (pair(first_token=FirstToken.LOGITS), "first token"),
        (pair(decode=(group(Role.DECODE, ledger=Ledger.BLOCKS),)), "decode: the ledger"),
        (pair(decode=(group(Role.DECODE, block_tokens=16),)), "different sizes"),
        (pair(decode=(group(Role.DECODE, admission=Admission.PREEMPT),)), "decode: batching"),
        (pair(prefill=(group(Role.PREFILL, prefill_burst=1),)), "prefill: batching"),
        (pair(prefill=(group(Role.PREFILL, queue_order=QueueOrder.SHORTEST_FIRST),)), "prefill: batching"),
        (pair(prefill=(group(Role.PREFILL, scheduling_overhead_seconds=0.002),)), "prefill: batching"),
        (pair(prefill=(group(Role.PREFILL, policy=BatchPolicy.CHUNKED),)), "in chunks"),
        (pair(prefill=(group(Role.PREFILL, policy=BatchPolicy.STATIC),)), "the policy is static"),
        (pair(prefill=(group(Role.PREFILL, time_model=Opaque()),)), "closed form"),
        (Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER, pipeline=2),)), "pipeline stages"),
    ],
)
def test_what_the_lane_does_not_know_is_left_to_the_cluster(deployment: Deployment, why: str) -> None:
    assert why in (reason_not(deployment, columns(), DEFAULTS) or "")


@pytest.mark.parametrize(
    "options",
    [
        Options(series=True),
        Options(until_seconds=5.0),
        Options(concurrency=3),
        Options(faults=(Fault(at_seconds=1.0, role=Role.DECODE),)),
    ],
)
def test_options_that_need_the_cluster(options: Options) -> None:
    assert not applies(pair(), columns(), options)


def test_priorities_need_the_cluster_unless_all_are_equal() -> None:
    assert applies(pair(), columns(priorities=array("i", (1, 1))), DEFAULTS)
    assert not applies(pair(), columns(priorities=array("i", (1, 2))), DEFAULTS)


def test_gaps_are_no_hindrance() -> None:
    assert applies(pair(), columns(), Options(gaps=True, lane=Lane.FAST))


def test_the_lane_refuses_by_name_what_it_was_told_to_run() -> None:
    with pytest.raises(OptionError, match="lane is 'fast'; it must be another lane: routing is kv"):
        simulate_fast(pair(routing=RoutingPolicy.KV), columns(), seed=0)
