"""Deployments and workloads drawn at random, and what it means that two recordings are equal."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import strategies as st

from disagg_contract.config import BatchPolicy, RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, DecodeLine, Fitted, IterationCost, Roofline, TimeModel
from disagg_engine.timemodel.windows import Windowed
from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment, Group, Link, Mode, Sharing
from disagg_simulator.options import Lane, Options
from disagg_simulator.recording import Recording
from disagg_simulator.simulate import simulate

TOLERANCE_SECONDS = 1e-9

_known = default()
INSTANCE = Instance(model=_known.model("opt-13b"), gpu=_known.gpu("a100"))
OTHER = Instance(model=_known.model("opt-13b"), gpu=_known.gpu("h100"), tensor=2)
STAGED = tuple(Instance(model=_known.model("opt-13b"), gpu=_known.gpu("a100"), pipeline=stages) for stages in (2, 3))


class Bent(Windowed):
    """A decode step of four pieces, with bends that a few requests reach and pass. Wants to see every chunk."""

    BENDS = ((0.0, 2e-6), (300.0, 1e-5), (1000.0, 0.0), (1500.0, 4e-5))

    def _counted(
        self, prefill_tokens: int, prefill_pairs: float, prefill_cached: int, sequences: int, context_tokens: int, /
    ) -> float:
        seconds = 0.004 + 1e-4 * (prefill_tokens + sequences) + 1e-8 * prefill_pairs + 1e-7 * prefill_cached
        tops = [*(since for since, _ in self.BENDS[1:]), inf]
        for (since, slope), until in zip(self.BENDS, tops, strict=True):
            seconds += slope * max(0.0, min(context_tokens, until) - since)
        return seconds

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        pairs = sum(chunk.new_tokens * (chunk.cached_tokens + 0.5 * chunk.new_tokens) for chunk in batch.chunks)
        cached = sum(chunk.cached_tokens for chunk in batch.chunks)
        seconds = self._counted(
            batch.prefill_tokens, pairs, cached, batch.decode_sequences, batch.decode_context_tokens
        )
        return IterationCost(
            seconds=seconds, compute_seconds=seconds, memory_seconds=0.0, stage_seconds=seconds, bound="compute"
        )

    def _lines(self, sequences: int) -> tuple[DecodeLine, ...]:
        tops = [*(since for since, _ in self.BENDS[1:]), inf]
        return tuple(
            DecodeLine(until, self._counted(0, 0.0, 0, sequences, int(since)) - slope * since, slope)
            for (since, slope), until in zip(self.BENDS, tops, strict=True)
        )


class Counted(Bent):
    """The same from sums."""

    def counted_seconds(
        self, prefill_tokens: int, prefill_pairs: float, prefill_cached: int, sequences: int, context_tokens: int, /
    ) -> float:
        return self._counted(prefill_tokens, prefill_pairs, prefill_cached, sequences, context_tokens)


TIMES: tuple[tuple[Instance, TimeModel], ...] = (
    (INSTANCE, Roofline(INSTANCE)),
    (OTHER, Roofline(OTHER)),
    (INSTANCE, Fitted(INSTANCE)),
    (INSTANCE, Bent(INSTANCE)),
    (INSTANCE, Counted(INSTANCE)),
)
STAGED_TIMES = tuple((instance, Roofline(instance)) for instance in STAGED)
ROLES = {
    Mode.COLOCATED: {"workers": Role.WORKER},
    Mode.DISAGGREGATED: {"prefill": Role.PREFILL, "decode": Role.DECODE},
    Mode.PREFILL_ONLY: {"prefill": Role.PREFILL},
    Mode.DECODE_ONLY: {"decode": Role.DECODE},
}


@st.composite
def groups(draw: st.DrawFn, role: Role, policies: tuple[BatchPolicy, ...], block_tokens: int) -> Group:
    """One to three instances with room for a lot, for a few requests, or for hardly any."""
    times = TIMES if role is Role.WORKER else TIMES + STAGED_TIMES
    instance, time_model = draw(st.sampled_from(times))
    return Group(
        instance=instance,
        time_model=time_model,
        replicas=draw(st.integers(1, 3)),
        kv_capacity_tokens=draw(st.sampled_from((0, 0, 64, 700, 1500, 4000))),
        block_tokens=block_tokens,
        batching=BatchingConfig(
            role=role,
            pipeline=instance.pipeline,
            policy=draw(st.sampled_from(policies)) if role is not Role.PREFILL else BatchPolicy.PREFILL_FIRST,
            max_sequences=draw(st.sampled_from((256, 256, 1, 2, 5))),
            chunk_tokens=draw(st.sampled_from((512, 512, 64, 7))),
            fill_tokens=draw(st.sampled_from((512, 512, 100))),
            max_batched_tokens=draw(st.sampled_from((2048, 2048, 300))),
        ),
    )


@st.composite
def deployments(draw: st.DrawFn, mode: Mode, policies: tuple[BatchPolicy, ...]) -> Deployment:
    """Any that the fast lane takes on."""
    block_tokens = draw(st.sampled_from((1, 1, 16)))
    parts = {
        name: tuple(draw(st.lists(groups(role, policies, block_tokens), min_size=1, max_size=2)))
        for name, role in ROLES[mode].items()
    }
    link = Link(
        bytes_per_second=draw(st.sampled_from((inf, 3e11, 3e9, 3e8))),
        latency_seconds=draw(st.sampled_from((0.0, 0.01))),
        sharing=draw(st.sampled_from(Sharing)),
    )
    routing = draw(st.sampled_from((RoutingPolicy.ROUND_ROBIN, RoutingPolicy.LEAST_LOADED)))
    return Deployment(mode=mode, link=link, routing=routing, **parts)


@st.composite
def workloads(draw: st.DrawFn, most: int = 40) -> Columns:
    """Bursts, equal times, one-token prompts and answers, prompts beyond the batch limit; or requests all alike."""
    count = draw(st.one_of(st.integers(0, most), st.just(most)))
    rng = Random(draw(st.integers(0, 2**32)))
    rate = draw(st.sampled_from((0.5, 3.0, 20.0, 200.0, 1e9)))
    gaps = [0.0 if not index or rng.random() < 0.15 else rng.expovariate(rate) for index in range(count)]
    if draw(st.booleans()):  # groups in lockstep, whose iterations keep ending at the same times
        size, step = draw(st.sampled_from((1, 2, 3, 6))), draw(st.sampled_from((0.0, 0.01, 0.2, 1.0)))
        gaps = [step if index and index % size == 0 else 0.0 for index in range(count)]
    longest = draw(st.sampled_from((20, 600, 3000)))
    answer = draw(st.sampled_from((8, 120)))
    if draw(st.booleans()):
        inputs, outputs = [longest] * count, [answer] * count
    else:
        inputs = [rng.choice((1, rng.randint(1, longest), rng.randint(1, longest))) for _ in range(count)]
        outputs = [rng.choice((1, rng.randint(1, 8), rng.randint(1, answer))) for _ in range(count)]
    return Columns(
        name="drawn",
        arrival_seconds=array("d", accumulate(gaps)),
        input_tokens=array("i", inputs),
        output_tokens=array("i", outputs),
    )


def hangs_on_rounding(deployment: Deployment, requests: Columns, *, seed: int) -> bool:
    """Whether iterations of two instances end, or one ends and a request arrives, at the same time but for rounding."""
    recording = simulate(deployment, requests, seed=seed, options=Options(lane=Lane.STEPPER, series=True))
    ends = ((end, one.name) for one in recording.instances for end in one.slice_end_seconds)
    times = sorted([*((arrival, "") for arrival in set(requests.arrival_seconds)), *ends])
    return any(
        later - earlier < TOLERANCE_SECONDS and one != other for (earlier, one), (later, other) in pairwise(times)
    )


def assert_equal(one: Recording, other: Recording) -> None:
    """The same times to 1e-9 s, and everything else the same."""
    for name in ("prefill_start", "prefill_end", "first_token", "finish"):
        left, right = np.array(getattr(one, name)), np.array(getattr(other, name))
        np.testing.assert_allclose(left, right, rtol=0, atol=TOLERANCE_SECONDS, err_msg=name)
    for name in ("prefill_instance", "decode_instance", "tokens", "outcome"):
        assert list(getattr(one, name)) == list(getattr(other, name)), name
    assert one.end_seconds == pytest.approx(other.end_seconds, abs=TOLERANCE_SECONDS)
    assert one.transfer_tokens == other.transfer_tokens
    assert len(one.instances) == len(other.instances)
    for left, right in zip(one.instances, other.instances, strict=True):
        for name in (
            "name",
            "role",
            "gpus",
            "capacity_tokens",
            "iterations",
            "prompt_tokens",
            "output_tokens",
            "prefix_queried_tokens",
            "prefix_hit_tokens",
            "preemptions",
        ):
            assert getattr(left, name) == getattr(right, name), f"{left.name}.{name}"
        # A sum over thousands of iterations.
        assert left.busy_seconds == pytest.approx(right.busy_seconds, abs=1e-7), left.name
    assert (one.gaps is None) == (other.gaps is None)
    if one.gaps is not None and other.gaps is not None:
        left, right = (np.sort(np.repeat(gaps.seconds, gaps.count)) for gaps in (one.gaps, other.gaps))
        np.testing.assert_allclose(left, right, rtol=0, atol=TOLERANCE_SECONDS, err_msg="gaps")
