"""The engine's batching loop under the loads that real engines were measured with.

`replay` feeds recorded arrivals and lengths (open loop); `closed_loop` keeps a number of requests under way. Both drive
the very loop of the pods under a virtual clock, and report when each request got its first and its last token. Output
lengths are given, so no request stops early.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from disagg_contract.labels import Role
from disagg_engine.batching import Admission, BatchingConfig, BatchingLoop, BatchPolicy, Request
from disagg_engine.kv import CountingLedger
from disagg_engine.timemodel import TimeModel

from .steady import PROMPT_TOKENS, Load, Mixing

BLOCK_TOKENS = 16
MAX_SEQUENCES = 1024
"""More than any measured concurrency; engines are started with as much as a benchmark needs."""
REQUESTS_A_SLOT = 10
"""Requests of a closed loop for each one under way, the opening burst included: a usual choice of benchmarks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request of an open loop; seconds from any origin, in ascending order. `block_keys`: as in `Request`."""

    seconds: float
    input_tokens: int
    output_tokens: int
    block_keys: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What came out, request by request, in seconds. TPOT is NaN for an answer of one token."""

    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    end_to_end: tuple[float, ...]
    preemptions: int


def replay(loop: BatchingLoop, arrivals: Sequence[Arrival]) -> Times:
    """Run an open loop to its end. Raises RequestTooLargeError where a request can never fit."""
    return _drive(loop, arrivals, pending=deque((arrival.seconds, place) for place, arrival in enumerate(arrivals)))


def closed_loop(time_model: TimeModel, load: Load, *, backend: str, concurrency: int) -> Times | None:
    """Run a closed loop of `concurrency`, REQUESTS_A_SLOT for each; None where the KV room holds no such request.

    vLLM and SGLang admit what fits now and throw out what outgrows the room; TensorRT-LLM reserves the whole.
    """
    capacity = int(max(0.0, load.instance.kv_bytes) // load.instance.kept_bytes_per_token)
    if capacity < load.input_tokens + load.output_tokens:
        return None
    first = load.mixing is Mixing.PREFILL_FIRST
    config = BatchingConfig(
        role=Role.WORKER,
        policy=BatchPolicy.PREFILL_FIRST if first else BatchPolicy.CHUNKED,
        admission=Admission.RESERVE if backend == "trtllm" else Admission.PREEMPT,
        max_batched_tokens=PROMPT_TOKENS,
        chunk_tokens=PROMPT_TOKENS,
        max_sequences=MAX_SEQUENCES,
    )
    ledger = CountingLedger(capacity_tokens=capacity, block_tokens=BLOCK_TOKENS)
    loop = BatchingLoop(config=config, time_model=time_model, ledger=ledger, event_skipping=True)
    request = Arrival(seconds=0.0, input_tokens=load.input_tokens, output_tokens=load.output_tokens)
    count = concurrency * REQUESTS_A_SLOT
    return _drive(loop, [request] * count, pending=deque((0.0, place) for place in range(concurrency)))


def _drive(loop: BatchingLoop, requests: Sequence[Arrival], *, pending: deque[tuple[float, int]]) -> Times:
    """Run until nothing is left; each end brings the next request that is not pending yet, if there is one."""
    count, following = len(requests), len(pending)
    sent, first, last = [0.0] * count, [0.0] * count, [0.0] * count
    while True:
        due = loop.next_seconds()
        if pending and (due is None or pending[0][0] < due):
            _submit(loop, requests, pending.popleft(), sent)
            continue
        if due is None:
            break
        for done in loop.complete(now=due):
            for emission in done.emissions:
                place = int(emission.request_id)
                if emission.index == 1:
                    first[place] = emission.seconds
                if emission.last:
                    last[place] = emission.seconds
                    if following < count:
                        pending.append((emission.seconds, following))
                        following += 1
        while pending and pending[0][0] <= due:
            _submit(loop, requests, pending.popleft(), sent)
        loop.plan(now=due)
    gaps = [request.output_tokens - 1 for request in requests]
    return Times(
        ttft=tuple(b - a for a, b in zip(sent, first, strict=True)),
        tpot=tuple((b - a) / gap if gap else float("nan") for a, b, gap in zip(first, last, gaps, strict=True)),
        end_to_end=tuple(b - a for a, b in zip(sent, last, strict=True)),
        preemptions=loop.counts().preemptions,
    )


def _submit(loop: BatchingLoop, requests: Sequence[Arrival], entry: tuple[float, int], sent: list[float]) -> None:
    seconds, place = entry
    request = requests[place]
    sent[place] = seconds
    loop.submit(
        Request(
            request_id=str(place),
            prompt_tokens=request.input_tokens,
            max_tokens=request.output_tokens,
            block_keys=request.block_keys,
        ),
        now=seconds,
    )
