"""Colocated instances with prefix reuse behind the router's choice, on one heap; equal to the cluster lane.

Order at equal times is the cluster's: what has ended, then requests in their order, then what starts.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush, heapreplace
from itertools import chain, pairwise

from disagg_engine.batching import Admission, BatchingConfig, BatchPolicy
from disagg_engine.timemodel import CountedTimeModel
from disagg_load.columns import Columns
from disagg_load.errors import WorkloadError
from disagg_simulator.deployment import Deployment, Group, Ledger, Mode
from disagg_simulator.gaps import Windows
from disagg_simulator.options import DEFAULTS, Lane, Options
from disagg_simulator.prefixes.instance import NEVER, PrefixInstance
from disagg_simulator.prefixes.runs import find_runs
from disagg_simulator.prompts import Prompts
from disagg_simulator.recording import InstanceRecord, Outcome, Recording
from disagg_simulator.routing import Routing, routing_for


def applies(deployment: Deployment, requests: Columns, options: Options) -> bool:
    """Whether this lane can do such a run; everything else is the cluster lane's.

    What is not named here has its default value, or the answer is no: a setting that is added is not overlooked.
    """
    known = (
        Deployment(
            mode=Mode.COLOCATED,
            workers=deployment.workers,
            link=deployment.link,
            transfer=deployment.transfer,
            first_token=deployment.first_token,
            routing=deployment.routing,
            overlap_weight=deployment.overlap_weight,
        )
        if deployment.mode is Mode.COLOCATED
        else None
    )
    return (
        deployment == known
        and requests.priorities is None
        and replace(options, lane=Lane.AUTO, gaps=False) == DEFAULTS
        and options.lane in (Lane.AUTO, Lane.FAST)
        and all(map(_plain, deployment.workers))
        and len({group.block_tokens for group in deployment.workers}) == 1
    )


def _plain(group: Group) -> bool:
    """Whether a group has blocks, and batches in the one way this lane knows."""
    batching = group.batching
    known = Group(
        instance=group.instance,
        time_model=group.time_model,
        batching=BatchingConfig(
            role=batching.role,
            policy=BatchPolicy.PREFILL_FIRST,
            admission=Admission.RESERVE,
            max_batched_tokens=batching.max_batched_tokens,
            fill_tokens=batching.fill_tokens,
            chunk_tokens=batching.chunk_tokens,
            max_sequences=batching.max_sequences,
            watermark=batching.watermark,
        ),
        replicas=group.replicas,
        kv_capacity_tokens=group.kv_capacity_tokens,
        ledger=Ledger.BLOCKS,
        block_tokens=group.block_tokens,
        startup_seconds=group.startup_seconds,
    )
    return group == known and isinstance(group.time_model, CountedTimeModel)


def simulate_prefixes(
    deployment: Deployment,
    requests: Columns,
    *,
    seed: int,
    options: Options = DEFAULTS,
    routing: Routing | None = None,
) -> Recording:
    """Run `requests` through a deployment that this lane `applies` to. `routing`: instead of its policy.

    Raises WorkloadError where arrivals are no numbers that ascend, or a request has no tokens.
    """
    _check(requests)
    recording = Recording.empty(deployment, requests, seed=seed, gaps=options.gaps)
    windows = Windows() if options.gaps else None
    prompts = Prompts(requests, deployment)
    routing = routing or routing_for(deployment, prompts, seed=seed)
    _run(requests, recording, _instances(deployment, prompts, recording, routing, windows), routing)
    if windows is not None and recording.gaps is not None:
        recording.gaps.seconds, recording.gaps.count = windows.expanded()
    return recording


def _check(requests: Columns) -> None:
    for name in ("input_tokens", "output_tokens"):
        column = getattr(requests, name)
        if min(column, default=1) < 1:
            number = next(number for number, tokens in enumerate(column) if tokens < 1)
            raise WorkloadError(f"request {number} has {name} {column[number]}; it must be at least 1")
    times = requests.arrival_seconds
    for number, (before, time) in enumerate(pairwise(chain((0.0,), times))):
        if not before <= time < NEVER:
            raise WorkloadError(
                f"request {number} arrives at {time} s, after {before} s; arrivals must be numbers that ascend"
            )


def _instances(
    deployment: Deployment, prompts: Prompts, recording: Recording, routing: Routing, windows: Windows | None
) -> list[PrefixInstance]:
    instances: list[PrefixInstance] = []
    block, names = deployment.workers[0].block_tokens, prompts.table(deployment.workers[0])
    lengths = recording.requests.input_tokens
    runs, blocks = find_runs(names, [len(name) * block == tokens for name, tokens in zip(names, lengths, strict=True)])
    for group in deployment.workers:
        model = group.time_model
        assert isinstance(model, CountedTimeModel)
        for _ in range(group.replicas):
            number = len(instances)
            record = InstanceRecord(
                name=f"{group.role.value}-{number}",
                role=group.role,
                gpus=group.instance.gpus,
                capacity_tokens=group.capacity_tokens,
            )
            recording.instances.append(record)
            instances.append(
                PrefixInstance(
                    number, group, model, runs=runs, lengths=blocks, recording=recording, record=record, windows=windows
                )
            )
            routing.joined(number, group)
    return instances


def _run(requests: Columns, recording: Recording, instances: list[PrefixInstance], routing: Routing) -> None:
    arrivals, inputs, outputs = requests.arrival_seconds, requests.input_tokens, requests.output_tokens
    placed, also_placed = recording.prefill_instance, recording.decode_instance
    choose, dispatched, prefilled, ended = routing.choose, routing.dispatched, routing.prefilled, routing.ended
    count, pool = len(requests), tuple(range(len(instances)))
    # Entries (time, instance); one counts only while its time is the one the instance is due at.
    heap: list[tuple[float, int]] = []

    def complete(instance: PrefixInstance, now: float) -> None:
        over, begun = instance.complete(now)
        for done in over:
            ended(instance.number, done, inputs[done])
            recording.end_seconds = now
        for one in begun:
            prefilled(instance.number, one)

    request = 0
    arrival = arrivals[0] if count else NEVER
    while heap or arrival != NEVER:
        if heap and heap[0][0] < arrival:
            # Between arrivals every instance is on its own, so its next iteration can start at once.
            now, number = heap[0]
            instance = instances[number]
            if instance.due == now:
                complete(instance, now)
                if instance.plan(now):
                    heapreplace(heap, (instance.due, number))
                    continue
            heappop(heap)
            continue
        now, free = arrival, []
        while heap and heap[0][0] == now:
            instance = instances[heappop(heap)[1]]
            if instance.due == now:
                complete(instance, now)
                free.append(instance)
        while arrival == now:
            prompt = inputs[request]
            number = choose(pool, request, prompt) if len(pool) > 1 else 0
            instance = instances[number]
            placed[request] = also_placed[request] = number
            if prompt + outputs[request] > instance.capacity_tokens:
                recording.outcome[request] = Outcome.REFUSED
                recording.end_seconds = now
            else:
                dispatched(number, request, prompt)
                if instance.arrive(request, now):
                    if instance.due == NEVER:
                        free.append(instance)
                    else:
                        heappush(heap, (instance.due, number))
            request += 1
            arrival = arrivals[request] if request < count else NEVER
        for instance in free:
            if instance.plan(now):
                heappush(heap, (instance.due, instance.number))
