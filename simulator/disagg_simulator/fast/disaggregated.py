"""Prefill instances, alone or with decode instances behind them: one merged loop.

Prefill batches are whole prompts and the same iteration both starts and ends them, so an instance is a queue, a batch
in flight and a number of free blocks; all of them live in flat lists of `Prefills`. Three kinds of events are merged:
arrivals, ends of prefill iterations (or plans that wait), and, only while requests wait for decode memory, the decode
instances' own next events. Everything else that decode instances do is run when somebody has to know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random

from disagg_simulator.fast.pulls import Prefills
from disagg_simulator.fast.routes import least
from disagg_simulator.fast.server import INDEX_BITS, Server
from disagg_simulator.recording import Outcome, Recording

Send = Callable[[float], float]
REFUSED = int(Outcome.REFUSED)


def serve(
    prefills: Prefills,
    decodes: Sequence[Server],
    sends: Sequence[Send],
    recording: Recording,
    *,
    rng: Random,
    pair: bool,
) -> None:
    """Run all requests. rng: settles ties between loads. sends: to the decode instances, where prompts go on (pair)."""
    arrivals = recording.requests.arrival_seconds
    inputs, outputs = recording.requests.input_tokens, recording.requests.output_tokens
    prefill_start, prefill_end = recording.prefill_start, recording.prefill_end
    first_token, finish, outcome = recording.first_token, recording.finish, recording.outcome
    prefill_instance, decode_instance = recording.prefill_instance, recording.decode_instance
    servers, due, flights, ready = prefills.servers, prefills.due, prefills.flights, prefills.ready
    blocked, releases = prefills.blocked, prefills.releases
    pool, targets = len(servers), len(decodes)
    queues = [server.queue for server in servers]
    free = [server.capacity for server in servers]
    most_tokens = [server.most_tokens for server in servers]
    blocks = [server.group.block_tokens for server in servers]
    limits = [server.group.batching.prefill_limit_tokens for server in servers]
    most = [server.group.batching.max_sequences for server in servers]
    stages = [server.group.batching.pipeline for server in servers]
    active, free_at = [0] * pool, [0.0] * pool
    busy, iterations = [0.0] * pool, [0] * pool
    load = servers[0].load or []
    decode_load = (decodes[0].load or []) if pair else []
    decode_due = [inf] * targets
    decode_most_tokens = [server.most_tokens for server in decodes]
    turn = decode_turn = 0
    waiting = inf  # the least of decode_due
    following = iter(arrivals)
    arrival, arrived = next(following, inf), 0

    while True:
        now = min(due) if pool > 1 else due[0]
        while arrival <= waiting and (arrival < now or (arrival == now < inf and not prefills.ends_at(now))):
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
            if waiting <= now and waiting < arrival:
                place = decode_due.index(waiting)
                decode_due[place] = sends[place](waiting)
                waiting = min(decode_due)
                continue
            if now == inf:
                break
            place = due.index(now)
            line = flights[place]
            while line and line[0][0] <= now:
                if len(line) == stages[place]:
                    ready[place] = free_at[place] if free_at[place] > now else now
                batch = line.popleft()[1]
                active[place] -= len(batch)
                for request in batch:
                    tokens = inputs[request]
                    if load:
                        load[place] -= (tokens << INDEX_BITS) + 1
                    prefill_end[request] = first_token[request] = now
                    if not pair or outputs[request] == 1:
                        finish[request] = now
                        free[place] += -(-(tokens + 1) // blocks[place])
                        continue
                    target = 0
                    if targets > 1:
                        for other, send in enumerate(sends):
                            decode_due[other] = send(now)
                        if decode_load:
                            target = least(decode_load, rng)
                        else:
                            target = decode_turn % targets
                            decode_turn += 1
                        waiting = min(decode_due)
                    server = decodes[target]
                    decode_instance[request] = server.number
                    if tokens + outputs[request] > decode_most_tokens[target]:
                        outcome[request] = REFUSED
                        free[place] += -(-(tokens + 1) // blocks[place])
                        continue
                    server.queue.append(request)
                    waiting = decode_due[target] = sends[target](now)
                    if targets > 1:
                        waiting = min(decode_due)
                        if decode_load:
                            decode_load[target] += (-(-tokens // server.group.block_tokens) << INDEX_BITS) + 1
        if arrival <= now:  # more may arrive at this very time
            due[place] = now
            continue

        # Plan the next iteration of `place`.
        queue, line = queues[place], flights[place]
        end = line[0][0] if line else inf
        if not queue:
            due[place] = end
            continue
        if ready[place] > now:
            due[place] = end if end < ready[place] else ready[place]
            continue
        released, room, block = releases[place], free[place], blocks[place]
        while released and released[0][0] <= now:
            room += released.popleft()[1]
        takes: list[int] = []
        left, pairs = limits[place], 0.0
        while queue and (left > 0 or not takes):
            request = queue[0]
            tokens = inputs[request]
            need = tokens + 1 if block == 1 else -(-(tokens + 1) // block)
            if (takes and tokens > left) or need > room or active[place] + len(takes) >= most[place]:
                break
            queue.popleft()
            room -= need
            left -= tokens
            pairs += 0.5 * tokens * tokens
            prefill_start[request] = now
            takes.append(request)
        free[place] = room
        if takes:
            tokens = limits[place] - left
            server = servers[place]
            if len(takes) == 1:
                span = server.prompts[tokens]
            else:
                span = server.time_model.counted_seconds(tokens, pairs, 0, 0, 0)
            blocked[place] = False
            active[place] += len(takes)
            iterations[place] += 1
            last = now + span
            if stages[place] == 1:
                ready[place] = inf
                free_at[place] = due[place] = last
            else:
                span = server.stage_seconds([inputs[request] for request in takes])
                if line and last < line[-1][0]:  # a batch cannot overtake the one before it
                    last = line[-1][0]
                free_at[place] = now + span
                ready[place] = now + span if len(line) + 1 < stages[place] else inf
                if end > last:
                    end = last
                due[place] = ready[place] if queue and ready[place] < end else end
            line.append((last, takes))
            busy[place] += span
        else:
            blocked[place] = True
            due[place] = end
            if released and released[0][0] < end:
                due[place] = released[0][0]

    for place, server in enumerate(servers):
        server.record.busy_seconds, server.record.iterations = busy[place], iterations[place]
