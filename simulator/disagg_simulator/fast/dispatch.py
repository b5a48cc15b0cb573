"""Requests to instances that serve them alone: colocated, or decode-only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random

from disagg_simulator.fast.routes import least
from disagg_simulator.fast.server import INDEX_BITS, Server
from disagg_simulator.recording import Outcome, Recording

Send = Callable[[float], float]


def dispatch(
    servers: Sequence[Server], sends: Sequence[Send], recording: Recording, *, rng: Random, answered: bool
) -> None:
    """Send each request, at its time, to an instance.

    rng: settles ties between loads. answered: requests come with their first token, so one-token answers need nobody.
    """
    requests = recording.requests
    inputs, outputs = requests.input_tokens, requests.output_tokens
    number_of, outcome = recording.decode_instance, recording.outcome
    pool = len(servers)
    load = servers[0].load or []
    most_tokens = [server.most_tokens for server in servers]
    due = [inf] * pool
    turn = place = 0
    for request, now in enumerate(requests.arrival_seconds):
        if answered and outputs[request] == 1:
            continue
        if load:
            for other, time in enumerate(due):
                if time <= now:
                    due[other] = sends[other](now)
            place = least(load, rng)
        elif pool > 1:
            place = turn % pool
            turn += 1
        server = servers[place]
        number_of[request] = server.number
        tokens = inputs[request]
        if tokens + outputs[request] > most_tokens[place]:
            outcome[request] = Outcome.REFUSED
            continue
        server.inbox.append(request)
        due[place] = sends[place](now)
        if load:
            load[place] += (-(-tokens // server.group.block_tokens) << INDEX_BITS) + 1
