"""Deployments and workloads drawn at random, and what it means that two recordings are equal."""

from __future__ import annotations

from array import array
from itertools import accumulate
from random import Random

import numpy as np
import pytest
from hypothesis import strategies as st

from disagg_contract.config import BatchPolicy, RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import Roofline
from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment, Group, Link, Mode, Sharing
from disagg_simulator.recording import Recording

TOLERANCE_SECONDS = 1e-9

_known = default()
INSTANCE = Instance(model=_known.model("opt-13b"), gpu=_known.gpu("a100"))
OTHER = Instance(model=_known.model("opt-13b"), gpu=_known.gpu("h100"), tensor=2)
TIMES = {INSTANCE: Roofline(INSTANCE), OTHER: Roofline(OTHER)}
ROLES = {
    Mode.COLOCATED: {"workers": Role.WORKER},
    Mode.DISAGGREGATED: {"prefill": Role.PREFILL, "decode": Role.DECODE},
    Mode.PREFILL_ONLY: {"prefill": Role.PREFILL},
    Mode.DECODE_ONLY: {"decode": Role.DECODE},
}


@st.composite
def groups(draw: st.DrawFn, role: Role, policies: tuple[BatchPolicy, ...], block_tokens: int) -> Group:
    """One to three instances with room for a lot, for a few requests, or for hardly any."""
    instance = draw(st.sampled_from((INSTANCE, INSTANCE, OTHER)))
    return Group(
        instance=instance,
        time_model=TIMES[instance],
        replicas=draw(st.integers(1, 3)),
        kv_capacity_tokens=draw(st.sampled_from((0, 0, 64, 700, 1500, 4000))),
        block_tokens=block_tokens,
        batching=BatchingConfig(
            role=role,
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
        bytes_per_second=draw(st.sampled_from((float("inf"), 3e11, 3e9, 3e8))),
        latency_seconds=draw(st.sampled_from((0.0, 0.01))),
        sharing=draw(st.sampled_from(Sharing)),
    )
    routing = draw(st.sampled_from((RoutingPolicy.ROUND_ROBIN, RoutingPolicy.LEAST_LOADED)))
    return Deployment(mode=mode, link=link, routing=routing, **parts)


@st.composite
def workloads(draw: st.DrawFn, most: int = 40) -> Columns:
    """Bursts, equal arrival times, one-token prompts and answers, prompts beyond the batch limit; or all alike."""
    count = draw(st.integers(0, most))
    rng = Random(draw(st.integers(0, 2**32)))
    rate = draw(st.sampled_from((0.5, 3.0, 20.0, 200.0, 1e9)))
    gaps = [0.0 if not index or rng.random() < 0.15 else rng.expovariate(rate) for index in range(count)]
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
