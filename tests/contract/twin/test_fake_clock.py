"""The worker's driver on a clock that a test moves, and the simulator: the same times to the microsecond.

The driver samples real tokens into real KV contents and is as late as it likes: a step is noticed up to 80 ms after its
end, by lot. Its engine keeps the time all the same, and the simulator gives that very time from the arrivals alone.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from random import Random

import pytest

from disagg_contract.hashing import root_digest
from disagg_contract.openai import Endpoint, Sampling, parse_request
from disagg_contract.tokenizer import default_tokenizer
from disagg_engine.batching import (
    Admission,
    BatchingConfig,
    BatchingLoop,
    BatchPolicy,
    Completed,
    Request,
    Role,
    Transfer,
)
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.kv import BlockLedger
from disagg_engine.timemodel import Roofline
from disagg_load.columns import Columns
from disagg_load.prompts import PromptMaker
from disagg_load.workloads.builtin import builtin_workload
from disagg_simulator.deployment import Deployment, Group, Ledger, Mode
from disagg_simulator.options import Lane, Options
from disagg_simulator.simulate import simulate
from disagg_workers.clock import EngineClock
from disagg_workers.contents import ContentStore
from disagg_workers.driver import EngineDriver
from disagg_workers.language import Language
from disagg_workers.sequence import AnswerSequence, Sampled

BLOCK = 16
MICROSECOND = 1e-6
ROOT = root_digest(model="opt-13b")
SAMPLING: Sampling = replace(parse_request(Endpoint.COMPLETIONS, b'{"prompt": "x"}').sampling, ignore_eos=True)
LOAD = "sessions?requests=100&rate=6&apps=3&system=128&turns=4&input=120&output=40&block=16&longest=1024"


class Seen:
    """Observer and consumer in one: the engine's times of tokens, by request."""

    def __init__(self) -> None:
        self.arrivals: dict[str, float] = {}
        self.tokens: dict[str, list[float]] = {}
        self.lags: list[float] = []

    def submitted(self, request: Request, *, now: float) -> None:
        self.arrivals[request.request_id] = now

    def completed(self, completed: Completed, *, lag_seconds: float, prompt_tokens: int) -> None:
        self.lags.append(lag_seconds)

    def preempted(self, request_id: str, *, now: float) -> None:
        raise AssertionError("room was reserved")

    def sampled(self, sequence: AnswerSequence, sampled: Sampled) -> None:
        assert sequence.last_seconds is not None
        self.tokens.setdefault(sequence.request_id, []).append(sequence.last_seconds)

    def transfer_due(self, sequence: AnswerSequence, transfer: Transfer, *, now: float) -> None:
        raise AssertionError("nothing is pulled here")


def drive(config: BatchingConfig, *, capacity_tokens: int, caching: bool, seed: int) -> tuple[Seen, Columns]:
    """The load through the worker's driver, and the arrivals as its engine saw them."""
    catalogue = default()
    instance = Instance(model=catalogue.model("opt-13b"), gpu=catalogue.gpu("a100-80gb"))
    wall = [0.0]
    seen, store, tokenizer = Seen(), ContentStore(block_tokens=BLOCK, root=ROOT), default_tokenizer()
    ledger = BlockLedger(capacity_tokens=capacity_tokens, block_tokens=BLOCK, prefix_caching=caching)
    loop = BatchingLoop(config=config, time_model=Roofline(instance), ledger=ledger)
    driver = EngineDriver(loop=loop, clock=EngineClock(monotonic=lambda: wall[0]), observer=seen)
    workload = builtin_workload(LOAD, seed=seed)
    prompts = PromptMaker(tokenizer=tokenizer, seed=seed, block_tokens=workload.block_tokens)
    language, late = Language(tokenizer, mean_tokens=50, sigma=0), Random(seed)
    requests = list(enumerate(workload.requests))
    due = driver._next_due()
    wake = float("inf")
    while requests or due is not None:
        if requests and requests[0][1].arrival_seconds <= wake:
            index, one = requests.pop(0)
            wall[0] = max(wall[0], one.arrival_seconds)
            sequence = AnswerSequence(
                request_id=str(index),
                index=0,
                prompt=prompts.token_ids(one, index=index),
                max_tokens=one.output_tokens,
                sampling=SAMPLING,
                choice=0,
                resumed_tokens=0,
                default_seed=0,
                store=store,
                language=language,
                tokenizer=tokenizer,
            )
            driver.submit(sequence, seen, remote_kv=False, keep_kv=False)
        else:
            assert due is not None
            wall[0] = max(wall[0], wake)
            driver.step(due)
        following = driver._next_due()
        if following != due or wake <= wall[0]:
            due = following
            wake = float("inf") if due is None else max(wall[0], due) + late.choice((0.0, 0.002, 0.08 * late.random()))
    return seen, Columns(
        name="driven",
        arrival_seconds=array("d", [seen.arrivals[str(index)] for index in range(len(workload.requests))]),
        input_tokens=array("i", [one.input_tokens for one in workload.requests]),
        output_tokens=array("i", [one.output_tokens for one in workload.requests]),
        hash_ids=[one.hash_ids for one in workload.requests],
        block_tokens=workload.block_tokens,
    )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("settings", "capacity_tokens", "caching"),
    [
        ({}, 60_000, True),
        ({"policy": BatchPolicy.CHUNKED}, 60_000, True),
        ({"admission": Admission.PREEMPT, "prefill_burst": 2}, 60_000, True),
        ({}, 2_400, False),
    ],
    ids=["prefill-first", "chunked", "as pods", "little room"],
)
def test_the_workers_loop_and_the_simulator_agree_to_the_microsecond(settings, capacity_tokens, caching, seed):
    config = BatchingConfig(**{"role": Role.WORKER, "admission": Admission.RESERVE, **settings})
    seen, columns = drive(config, capacity_tokens=capacity_tokens, caching=caching, seed=seed)
    assert max(seen.lags) > 0.05, "the driver was late"
    catalogue = default()
    instance = Instance(model=catalogue.model("opt-13b"), gpu=catalogue.gpu("a100-80gb"))
    group = Group(
        instance=instance,
        time_model=Roofline(instance),
        batching=config,
        kv_capacity_tokens=capacity_tokens,
        ledger=Ledger.BLOCKS if caching else Ledger.COUNTING,
        block_tokens=BLOCK,
    )
    deployment = Deployment(mode=Mode.COLOCATED, workers=(group,))
    for lane in (Lane.AUTO, Lane.CLUSTER, Lane.STEPPER):
        run = simulate(deployment, columns, seed=0, options=Options(lane=lane))
        for index, count in enumerate(columns.output_tokens):
            times = seen.tokens[str(index)]
            assert len(times) == run.tokens[index] == count
            assert run.first_token[index] == pytest.approx(times[0], abs=MICROSECOND, rel=0)
            assert run.finish[index] == pytest.approx(times[-1], abs=MICROSECOND, rel=0)
        if caching:
            assert sum(record.prefix_hit_tokens for record in run.instances) > 0
