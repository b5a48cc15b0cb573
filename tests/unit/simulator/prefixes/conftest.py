"""Fleets with block ledgers, and workloads whose prompts share prefixes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from random import Random

import pytest

from disagg_contract.config import RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import Roofline
from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment, Group, Ledger, Mode

Row = tuple[float, int, int, Sequence[int]]
"""Arrival seconds, input tokens, output tokens, ids of the prompt's blocks."""


def make_columns(rows: Sequence[Row], block_tokens: int) -> Columns:
    return Columns(
        name="given",
        arrival_seconds=array("d", [row[0] for row in rows]),
        input_tokens=array("i", [row[1] for row in rows]),
        output_tokens=array("i", [row[2] for row in rows]),
        hash_ids=[row[3] for row in rows],
        block_tokens=block_tokens,
    )


@pytest.fixture(scope="session")
def fleet() -> Callable[..., Deployment]:
    """`fleet("kv", replicas=3, kv_capacity_tokens=…, block_tokens=16)`: colocated Llama-3-8B on an H100 each."""
    catalogue = default()
    instance = Instance(model=catalogue.model("llama-3-8b"), gpu=catalogue.gpu("h100"))

    def make(
        routing: str,
        *,
        replicas: int = 3,
        kv_capacity_tokens: int = 0,
        block_tokens: int = 16,
        ledger: Ledger = Ledger.BLOCKS,
        overlap_weight: float = 1.0,
        **batching: object,
    ) -> Deployment:
        group = Group(
            instance=instance,
            time_model=Roofline(instance),
            batching=BatchingConfig(role=Role.WORKER, **batching),
            replicas=replicas,
            kv_capacity_tokens=kv_capacity_tokens,
            ledger=ledger,
            block_tokens=block_tokens,
        )
        return Deployment(
            mode=Mode.COLOCATED, workers=(group,), routing=RoutingPolicy(routing), overlap_weight=overlap_weight
        )

    return make


@pytest.fixture(scope="session")
def columns() -> Callable[[Sequence[Row], int], Columns]:
    return make_columns


@pytest.fixture(scope="session")
def shared_prefixes() -> Callable[..., Columns]:
    """`shared_prefixes(seed, count, …)`: prompts that go on from earlier ones, many arriving at the same time."""

    def make(
        seed: int, count: int, *, block_tokens: int = 16, blocks: int = 8, outputs: int = 30, gap: float = 0.02
    ) -> Columns:
        rng = Random(seed)
        rows: list[Row] = []
        now, fresh = 0.0, 0
        for _ in range(count):
            now += rng.choice((0.0, gap * rng.random(), 10 * gap * rng.random()))
            tokens = rng.randint(1, blocks * block_tokens)
            if rng.random() < 0.3:
                tokens = -(-tokens // block_tokens) * block_tokens
            ids: list[int] = []
            if rows and rng.random() < 0.8:
                parent = rng.choice(rows)
                whole = parent[3][: parent[1] // block_tokens]
                ids = list(whole[: rng.randint(0, len(whole))])
            needed = -(-tokens // block_tokens)
            ids = ids[:needed]
            while len(ids) < needed:
                ids.append(fresh)
                fresh += 1
            rows.append((now, tokens, rng.choice((1, 2, rng.randint(1, outputs))), ids))
        return make_columns(rows, block_tokens)

    return make
