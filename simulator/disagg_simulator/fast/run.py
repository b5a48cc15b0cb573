"""A run of the fast lane: servers and generators for the deployment, then a driver, then what numpy can fill in."""

from __future__ import annotations

from array import array
from collections.abc import Generator
from math import inf
from random import Random

import numpy as np

from disagg_contract.choices import BatchPolicy, RoutingPolicy
from disagg_contract.labels import Role
from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment, Mode
from disagg_simulator.errors import OptionError
from disagg_simulator.fast.chunked import chunked
from disagg_simulator.fast.decode import decode
from disagg_simulator.fast.disaggregated import serve
from disagg_simulator.fast.dispatch import dispatch
from disagg_simulator.fast.prefill import prefill
from disagg_simulator.fast.prefill_first import prefill_first
from disagg_simulator.fast.pulls import Prefills, Pull, puller
from disagg_simulator.fast.scope import reason_not
from disagg_simulator.fast.server import Server
from disagg_simulator.fast.staged_decode import staged_decode
from disagg_simulator.gaps import Windows
from disagg_simulator.options import DEFAULTS, Options
from disagg_simulator.recording import InstanceRecord, Outcome, Recording

Serving = Generator[float, float, None]


def simulate_fast(deployment: Deployment, requests: Columns, *, seed: int, options: Options = DEFAULTS) -> Recording:
    """Run `requests` through `deployment`; see `simulate`. Raises OptionError where the lane does not apply."""
    if (reason := reason_not(deployment, requests, options)) is not None:
        raise OptionError(field="lane", value="fast", wanted=f"another lane: {reason}")
    recording = Recording.empty(deployment, requests, seed=seed, gaps=options.gaps)
    windows = Windows() if options.gaps else None
    rng = Random(seed)
    servers = _servers(deployment, recording, balanced=deployment.routing is RoutingPolicy.LEAST_LOADED)
    prefills = [server for server in servers if server.record.role is Role.PREFILL]
    others = [server for server in servers if server.record.role is not Role.PREFILL]
    mode = deployment.mode
    if mode is Mode.DECODE_ONLY:
        arrivals = requests.arrival_seconds
        recording.prefill_start, recording.prefill_end = array("d", arrivals), array("d", arrivals)
        recording.first_token = array("d", arrivals)

    state, pull = Prefills(servers=prefills), None
    if mode is Mode.DISAGGREGATED:
        pull = puller(deployment, recording, state)
    serving = [_serving(server, recording, pull, windows) for server in others]
    for each in serving:
        next(each)
    sends = [each.send for each in serving]
    if prefills:
        planning = [prefill(server, recording, state) for server in prefills]
        for each in planning:
            next(each)
        plans = [each.send for each in planning]
        serve(state, plans, others, sends, recording, rng=rng, pair=mode is Mode.DISAGGREGATED)
        sends.extend(plans)
    else:
        dispatch(others, sends, recording, rng=rng, answered=mode is Mode.DECODE_ONLY)
    for send in sends:
        try:
            send(inf)
        except StopIteration:
            continue
        raise AssertionError("an instance did not come to an end")
    _fill(recording)
    if windows is not None and recording.gaps is not None:
        recording.gaps.seconds, recording.gaps.count = windows.expanded()
    return recording


def _servers(deployment: Deployment, recording: Recording, *, balanced: bool) -> list[Server]:
    """One for each instance, in the order of the groups; `recording` gets their records."""
    servers: list[Server] = []
    outputs = np.frombuffer(recording.requests.output_tokens, dtype=np.int32)
    uniform = bool((outputs == outputs[:1]).all())
    for groups in (deployment.prefill, deployment.decode, deployment.workers):
        pool = sum(group.replicas for group in groups)
        load = [0] * pool if balanced and pool > 1 else None
        place = 0
        for group in groups:
            for _ in range(group.replicas):
                record = InstanceRecord(
                    name=f"{group.role.value}-{place}",
                    role=group.role,
                    gpus=group.instance.gpus,
                    capacity_tokens=group.capacity_tokens,
                )
                servers.append(
                    Server(
                        number=len(servers),
                        place=place,
                        group=group,
                        record=record,
                        capacity=group.capacity_tokens // group.block_tokens,
                        load=load,
                        uniform=uniform,
                    )
                )
                recording.instances.append(record)
                place += 1
    return servers


def _serving(server: Server, recording: Recording, pull: Pull | None, windows: Windows | None) -> Serving:
    if server.record.role is Role.DECODE and server.group.batching.pipeline > 1:
        return staged_decode(server, recording, pull, windows)
    if server.record.role is Role.DECODE:
        return decode(server, recording, pull, windows)
    if server.group.batching.policy is BatchPolicy.CHUNKED:
        return chunked(server, recording, windows)
    return prefill_first(server, recording, windows)


def _fill(recording: Recording) -> None:
    """Columns and counts that follow from what the loops wrote."""
    requests, mode = recording.requests, recording.deployment.mode
    inputs = np.frombuffer(requests.input_tokens, dtype=np.int32)
    outputs = np.frombuffer(requests.output_tokens, dtype=np.int32)
    finish = np.frombuffer(recording.finish)
    first = np.frombuffer(recording.first_token)
    outcome = np.frombuffer(recording.outcome, dtype=np.uint8)
    tokens = np.frombuffer(recording.tokens, dtype=np.int32)
    prefill = np.frombuffer(recording.prefill_instance, dtype=np.int16)
    decode = np.frombuffer(recording.decode_instance, dtype=np.int16)
    refused = outcome == Outcome.REFUSED
    if mode is Mode.DECODE_ONLY:  # these ended where they began
        short = outputs == 1
        finish[short] = first[short]
    if mode is Mode.COLOCATED:
        prefill[:] = decode
    done = ~np.isnan(finish)
    outcome[done] = Outcome.COMPLETED
    tokens[done] = 1 if mode is Mode.PREFILL_ONLY else outputs[done]
    tokens[refused & ~np.isnan(first)] = 1
    if len(requests):
        ends = np.where(np.isnan(first), np.frombuffer(requests.arrival_seconds), first)[refused]
        recording.end_seconds = max(np.nanmax(finish, initial=0.0), ends.max(initial=0.0))
    if mode is Mode.DISAGGREGATED:
        recording.transfer_tokens = int(inputs[(decode >= 0) & ~refused].sum())
    for number, record in enumerate(recording.instances):
        column = prefill if record.role is Role.PREFILL else decode
        there = column == number
        if mode is not Mode.DISAGGREGATED or record.role is Role.DECODE:
            there &= ~refused
        elif record.role is Role.PREFILL:
            there &= ~np.isnan(first)
        record.prefix_queried_tokens = int(inputs[there].sum())
        emitted = int(outputs[there].sum())
        if record.role is Role.DECODE:
            record.output_tokens = emitted - int(np.count_nonzero(there))
            continue
        record.output_tokens = emitted if record.role is Role.WORKER else int(np.count_nonzero(there))
        record.prompt_tokens = record.prompt_tokens or record.prefix_queried_tokens
