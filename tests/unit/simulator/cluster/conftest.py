"""Small deployments whose times can be worked out by hand."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from math import inf
from random import Random

import pytest

from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, DecodeLine, IterationCost, Roofline
from disagg_load.columns import Columns
from disagg_simulator.deployment import Group


class Steady:
    """Prompts cost `prompt_seconds` each whatever their length, a decode step `decode_seconds` whatever its batch."""

    def __init__(self, *, prompt_seconds: float, decode_seconds: float) -> None:
        self.prompt_seconds = prompt_seconds
        self.decode_seconds = decode_seconds

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        seconds = len(batch.chunks) * self.prompt_seconds + (self.decode_seconds if batch.decode_sequences else 0.0)
        return IterationCost(
            seconds=seconds, compute_seconds=seconds, memory_seconds=0.0, stage_seconds=seconds, bound="compute"
        )

    def decode_window(self, sequences: int, context_tokens: int, steps: int, /) -> float | None:
        return steps * self.decode_seconds

    def decode_lines(self, sequences: int, /) -> tuple[DecodeLine, ...]:
        return (DecodeLine(until_tokens=inf, seconds=self.decode_seconds, seconds_per_token=0.0),)


@pytest.fixture
def instance() -> Instance:
    """OPT-13B on one A100."""
    catalogue = default()
    return Instance(model=catalogue.model("opt-13b"), gpu=catalogue.gpu("a100"))


@pytest.fixture
def group(instance: Instance) -> Callable[..., Group]:
    """`group(role, replicas, steady=(prompt, decode) or None for the roofline, …)`; the rest is for BatchingConfig."""

    def make(
        role: Role,
        replicas: int = 1,
        *,
        steady: tuple[float, float] | None = None,
        kv_capacity_tokens: int = 0,
        **batching: object,
    ) -> Group:
        model = Roofline(instance)
        if steady is not None:
            model = Steady(prompt_seconds=steady[0], decode_seconds=steady[1])
        return Group(
            instance=instance,
            time_model=model,
            batching=BatchingConfig(role=role, **batching),
            replicas=replicas,
            kv_capacity_tokens=kv_capacity_tokens,
        )

    return make


@pytest.fixture
def columns() -> Callable[..., Columns]:
    """`columns(arrivals, inputs, outputs)`; one number stands for all."""

    def make(arrivals: Sequence[float], inputs: int | Sequence[int], outputs: int | Sequence[int]) -> Columns:
        count = len(arrivals)
        return Columns(
            name="given",
            arrival_seconds=array("d", arrivals),
            input_tokens=array("i", [inputs] * count if isinstance(inputs, int) else inputs),
            output_tokens=array("i", [outputs] * count if isinstance(outputs, int) else outputs),
        )

    return make


@pytest.fixture
def poisson(columns: Callable[..., Columns]) -> Callable[..., Columns]:
    """`poisson(rate, count, inputs, outputs, seed=1)`: exponential gaps from 0 on."""

    def make(rate: float, count: int, inputs: int, outputs: int, *, seed: int = 1) -> Columns:
        rng, now, arrivals = Random(seed), 0.0, []
        for _ in range(count):
            arrivals.append(now)
            now += rng.expovariate(rate)
        return columns(arrivals, inputs, outputs)

    return make
