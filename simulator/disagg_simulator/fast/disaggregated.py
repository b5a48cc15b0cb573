"""Prefill instances, alone or with decode instances behind them: one merged loop.

Three kinds of events are merged: arrivals; what prefill instances are due for (the end of an iteration, or a plan);
and, only while requests wait for decode memory, the decode instances' own next events. Everything else that decode
instances do is run when somebody has to know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nextafter
from random import Random

from disagg_simulator.fast.pulls import Prefills
from disagg_simulator.fast.routes import least
from disagg_simulator.fast.server import INDEX_BITS, Server
from disagg_simulator.recording import Outcome, Recording

Send = Callable[[float], float]
REFUSED = int(Outcome.REFUSED)


def serve(
    prefills: Prefills,
    plans: Sequence[Send],
    decodes: Sequence[Server],
    sends: Sequence[Send],
    recording: Recording,
    *,
    rng: Random,
    pair: bool,
) -> None:
    """Run all requests. plans, sends: to the prefill and decode instances. rng: settles ties between loads.

    pair: prompts go on to decode instances, and do not end with their first token.
    """
    arrivals = recording.requests.arrival_seconds
    inputs, outputs = recording.requests.input_tokens, recording.requests.output_tokens
    prefill_end, first_token = recording.prefill_end, recording.first_token
    finish, outcome = recording.finish, recording.outcome
    prefill_instance, decode_instance = recording.prefill_instance, recording.decode_instance
    servers, due, flights, ready = prefills.servers, prefills.due, prefills.flights, prefills.ready
    blocked = prefills.blocked
    pool, targets = len(servers), len(decodes)
    queues = [server.inbox for server in servers]
    most_tokens = [server.most_tokens for server in servers]
    load = servers[0].load or []
    decode_load = (decodes[0].load or []) if pair else []
    decode_due = [inf] * targets  # when each does something next by itself
    decode_most_tokens = [server.most_tokens for server in decodes]
    turn = decode_turn = 0
    waiting = inf  # the least of decode_due
    following = iter(arrivals)
    arrival, arrived = next(following, inf), 0

    while True:
        now = min(due) if pool > 1 else due[0]
        while arrival < waiting and (arrival < now or (arrival == now < inf and not prefills.ends_at(now))):
            request, seen = arrived, arrival
            arrived += 1
            arrival = next(following, inf)
            if load:
                place = least(load, rng)
            elif pool > 1:
                place = turn % pool
                turn += 1
            else:
                place = 0
            prefill_instance[request] = place
            tokens = inputs[request]
            if tokens >= most_tokens[place]:
                outcome[request] = REFUSED
                continue
            if load:
                load[place] += (tokens << INDEX_BITS) + 1
            queues[place].append(request)
            if ready[place] < due[place] and not blocked[place]:  # else it is busy, or about to plan
                if ready[place] <= seen:
                    now = seen
                    break
                due[place] = ready[place]
                if due[place] < now:
                    now = due[place]
        else:
            if waiting <= arrival and (waiting < now or (waiting == now < inf and not prefills.ends_at(now))):
                for target, server in enumerate(decodes):
                    if server.held and decode_due[target] <= waiting:
                        decode_due[target] = sends[target](nextafter(waiting, inf))
                        break
                waiting = _waiting(decodes, decode_due)
                continue
            if now == inf:
                break
            place = due.index(now)
            line = flights[place]
            if line and line[0][0] <= now:
                batch = line.popleft()[1]
                for request in batch:
                    tokens = inputs[request]
                    if load:
                        load[place] -= (tokens << INDEX_BITS) + 1
                    prefill_end[request] = first_token[request] = now
                    if not pair or outputs[request] == 1:
                        finish[request] = now
                        prefills.give_back(place, now, tokens)
                        continue
                    target = 0
                    if decode_load:
                        for other, time in enumerate(decode_due):
                            if time < now:
                                decode_due[other] = sends[other](now)
                        target = least(decode_load, rng)
                    elif targets > 1:
                        target = decode_turn % targets
                        decode_turn += 1
                    server = decodes[target]
                    decode_instance[request] = server.number
                    if tokens + outputs[request] > decode_most_tokens[target]:
                        outcome[request] = REFUSED
                        prefills.give_back(place, now, tokens)
                        continue
                    server.inbox.append(request)
                    decode_due[target] = sends[target](now)
                    if decode_load:
                        decode_load[target] += (-(-tokens // server.group.block_tokens) << INDEX_BITS) + 1
                    if waiting < inf or server.held:
                        waiting = _waiting(decodes, decode_due)
                if line and line[0][0] <= now:  # another one that has waited for it
                    continue
        # More may arrive at this very time.
        due[place] = now if arrival <= now else plans[place](now)


def _waiting(decodes: Sequence[Server], due: Sequence[float]) -> float:
    """When the first of the decode instances that keep requests waiting does something next."""
    return min((time for server, time in zip(decodes, due, strict=True) if server.held), default=inf)
