"""A decode instance: requests come with their KV somewhere else, get room first come first served, and are pulled.

As the colocated generators (`prefill_first`), but what cuts a window is an arrival of KV and not a request: a request
that finds room only sets a transfer off, whose end is known at once. While requests wait for room `Server.held` says
so, because their transfers queue on links that other instances use as well: the driver then sends each time that was
yielded before anything later happens anywhere.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Generator
from math import ceil, inf, sqrt

from disagg_simulator.fast.pulls import Pull
from disagg_simulator.fast.server import INDEX_BITS, INDEX_MASK, NEVER, Server
from disagg_simulator.gaps import Windows
from disagg_simulator.recording import Recording


def decode(
    server: Server, recording: Recording, pull: Pull | None = None, windows: Windows | None = None
) -> Generator[float, float, None]:
    """Serve what is put into `server.inbox`; ends when it is sent infinity.

    pull: starts a transfer (`pulls`); None where the KV is in place.
    """
    inputs, outputs = recording.requests.input_tokens, recording.requests.output_tokens
    finish, first_token = recording.finish, recording.first_token
    inbox, pieces, load, place = server.inbox, server.pieces, server.load, server.place
    block, most = server.group.block_tokens, server.group.batching.max_sequences
    alone = pull is None  # else prompts end before what ends here at the same time: prefill instances come first
    free = server.capacity
    active = running = context = step = 0
    now = busy = 0.0
    ends, push, pop = server.order()
    next_end = NEVER
    waiting: deque[int] = deque()
    flying: deque[tuple[float, int]] = deque()  # (end of the transfer, request), by time
    fresh: list[tuple[int, float]] = []  # with `windows`: (1, first token) of who has joined since the last step
    horizon = yield inf
    while True:
        while flying and flying[0][0] <= now:
            request = flying.popleft()[1]
            running += 1
            context += inputs[request]
            end_step = step + outputs[request] - 1
            push(end_step << INDEX_BITS | request)
            if end_step < next_end:
                next_end = end_step
            if windows is not None:
                fresh.append((1, first_token[request]))

        if running:  # decode to the first end, or to the bend of the time model
            steps = next_end - step
            since, until, seconds, slope, growth, half = pieces[running]
            if not since <= context < until:
                since, until, seconds, slope, growth, half = pieces.at(running, context)
            if context + (steps - 1) * running >= until:
                steps = ceil((until - context) / running)
            seconds += slope * context
            span = steps * (seconds + half * (steps - 1))
            end = now + span
        else:
            steps, end = 0, inf
        known = end
        while True:
            if flying and flying[0][0] < known:  # only to the end of the iteration in flight when KV arrives
                known = flying[0][0]
                if not running:
                    end = known
                elif (room := known - now) > 0.0:
                    linear = seconds - half
                    steps = int(2.0 * room / (linear + sqrt(linear * linear + 2.0 * growth * room))) or 1
                    span = steps * (seconds + half * (steps - 1))
                    end = now + span
                    if end < known:
                        steps += 1
                        span = steps * (seconds + half * (steps - 1))
                        end = now + span
                else:
                    steps, end = 0, now
            if end < horizon or (end == horizon and (alone or end == inf)):
                break
            if not inbox:
                horizon = yield end
                continue
            request = inbox.popleft()
            need = inputs[request] + outputs[request]
            if block > 1:
                need = -(-need // block)
            if waiting or need > free or active >= most:
                waiting.append(request)
                server.held = True
                continue
            free -= need
            active += 1
            pulled = pull(request, place, horizon) if pull is not None else horizon
            if flying and pulled < flying[-1][0]:
                insort(flying, (pulled, request))
            else:
                flying.append((pulled, request))

        if steps:
            if windows is not None:
                windows.after_rests([*fresh, (running - len(fresh), now)], now, seconds, growth, steps)
                fresh.clear()
            busy += span
            step += steps
            context += steps * running
        elif end == inf:
            break
        now = end
        while next_end == step:
            request = pop() & INDEX_MASK
            next_end = ends[0] >> INDEX_BITS if ends else NEVER
            finish[request] = now
            running -= 1
            active -= 1
            tokens = inputs[request]
            need = tokens + outputs[request]
            context -= need - 1
            free += need if block == 1 else -(-need // block)
            if load is not None:
                load[place] -= (-(-tokens // block) << INDEX_BITS) + 1
        if waiting:
            while waiting and active < most:
                request = waiting[0]
                need = inputs[request] + outputs[request]
                if block > 1:
                    need = -(-need // block)
                if need > free:
                    break
                waiting.popleft()
                free -= need
                active += 1
                pulled = pull(request, place, now) if pull is not None else now
                if flying and pulled < flying[-1][0]:
                    insort(flying, (pulled, request))
                else:
                    flying.append((pulled, request))
            server.held = bool(waiting)

    server.record.busy_seconds, server.record.iterations = busy, step
