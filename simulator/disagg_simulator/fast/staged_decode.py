"""A decode instance with pipeline stages: micro-batches go round, and every iteration is computed.

Several iterations are in flight, each of another share of the running sequences: with p stages ⌈running / p⌉ of those
that are not in flight, whoever waited longest first, then in order of joining. New ones have not been served at all, so
they go first; a micro-batch that comes back waited least. Two queues keep that order without sorting everybody.

The protocol is that of `decode`. A sequence is a list [order of joining, request, context, tokens to go, time of its
last token].
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Generator
from math import inf

from disagg_engine.timemodel import BatchShape
from disagg_simulator.fast.pulls import Pull
from disagg_simulator.fast.server import INDEX_BITS, Server
from disagg_simulator.gaps import Windows
from disagg_simulator.recording import Recording

Running = list[float]


def staged_decode(
    server: Server, recording: Recording, pull: Pull | None = None, windows: Windows | None = None
) -> Generator[float, float, None]:
    """As `decode`, in `server.group.batching.pipeline` stages."""
    inputs, outputs = recording.requests.input_tokens, recording.requests.output_tokens
    finish, first_token = recording.finish, recording.first_token
    inbox, load, place = server.inbox, server.load, server.place
    iteration_seconds = server.group.time_model.iteration_seconds
    block, most, stages = (
        server.group.block_tokens,
        server.group.batching.max_sequences,
        server.group.batching.pipeline,
    )
    alone = pull is None
    free = server.capacity
    active = running = joined = told = iterations = 0
    now = busy = free_at = ready = 0.0
    waiting: deque[int] = deque()
    flying: deque[tuple[float, int, int]] = deque()  # (end of the transfer, number of the transfer, request)
    fresh: deque[Running] = deque()
    rested: deque[Running] = deque()
    line: deque[tuple[float, list[Running]]] = deque()  # (end, micro-batch) of the iterations in flight
    horizon = yield inf
    while True:
        event = line[0][0] if line else inf
        if flying and flying[0][0] < event:
            event = flying[0][0]
        start = inf
        if (fresh or rested) and len(line) < stages:
            start = ready if ready > now else now
            # Behind those that wait for room nothing that comes at this very time could join.
            if start < event and (start < horizon or (waiting and start == horizon)):
                now = start
                share = -(-running // stages)
                batch: list[Running] = []
                while fresh and len(batch) < share:
                    batch.append(fresh.popleft())
                while rested and len(batch) < share:
                    batch.append(rested.popleft())
                context = int(sum(sequence[2] for sequence in batch))
                cost = iteration_seconds(BatchShape(decode_sequences=len(batch), decode_context_tokens=context))
                end = now + cost.seconds
                if line and end < line[-1][0]:  # a batch cannot overtake the one before it
                    end = line[-1][0]
                line.append((end, batch))
                busy += cost.stage_seconds
                iterations += 1
                free_at = now + cost.stage_seconds
                ready = free_at if len(line) < stages else inf
                continue

        if event < horizon or (event == horizon < inf and alone):
            now = event
            while line and line[0][0] <= now:
                if len(line) == stages:
                    ready = free_at if free_at > now else now
                batch = line.popleft()[1]
                batch.sort()
                for sequence in batch:
                    if windows is not None:
                        windows.add(now - sequence[4], 0.0, 1, 1)
                    sequence[2] += 1
                    sequence[3] -= 1
                    sequence[4] = now
                    if sequence[3]:
                        rested.append(sequence)
                        continue
                    request = int(sequence[1])
                    finish[request] = now
                    running -= 1
                    active -= 1
                    tokens = inputs[request]
                    free += -(-(tokens + outputs[request]) // block)
                    if load is not None:
                        load[place] -= (-(-tokens // block) << INDEX_BITS) + 1
            while waiting and active < most:
                request = waiting[0]
                need = -(-(inputs[request] + outputs[request]) // block)
                if need > free:
                    break
                waiting.popleft()
                free -= need
                active += 1
                told += 1
                pulled = pull(request, place, now) if pull is not None else now
                insort(flying, (pulled, told, request))
            server.held = bool(waiting)
            while flying and flying[0][0] <= now:
                request = flying.popleft()[2]
                running += 1
                joined += 1
                fresh.append([joined, request, inputs[request], outputs[request] - 1, first_token[request]])
            continue

        if horizon == inf:
            break
        if not inbox:
            horizon = yield (event if event < start else start)
            continue
        request = inbox.popleft()
        need = -(-(inputs[request] + outputs[request]) // block)
        if waiting or need > free or active >= most:
            waiting.append(request)
            server.held = True
            continue
        free -= need
        active += 1
        told += 1
        pulled = pull(request, place, horizon) if pull is not None else horizon
        insort(flying, (pulled, told, request))

    server.record.busy_seconds, server.record.iterations = busy, iterations
