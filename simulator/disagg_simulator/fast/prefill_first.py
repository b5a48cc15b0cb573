"""A colocated instance under `prefill-first`: whole prompts before any decode.

The generator is sent the time of the next input and runs what comes before it; see `fast` for the protocol.
It keeps no record of running sequences beyond the order in which they end: a decode iteration advances all of them
alike, so a sequence that joins after iteration s of the instance and has d tokens to decode ends with iteration s + d.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from math import ceil, inf, sqrt

from disagg_simulator.fast.server import INDEX_BITS, INDEX_MASK, NEVER, Server
from disagg_simulator.gaps import Windows
from disagg_simulator.recording import Recording


def prefill_first(
    server: Server, recording: Recording, windows: Windows | None = None
) -> Generator[float, float, None]:
    """Serve what is put into `server.inbox`; ends when it is sent infinity."""
    inputs, outputs = recording.requests.input_tokens, recording.requests.output_tokens
    prefill_start, prefill_end = recording.prefill_start, recording.prefill_end
    first_token, finish = recording.first_token, recording.finish
    inbox, pieces, prompts, load, place = server.inbox, server.pieces, server.prompts, server.load, server.place
    counted_seconds = server.counted_seconds
    block, limit = server.group.block_tokens, server.group.batching.prefill_limit_tokens
    most = server.group.batching.max_sequences
    free = server.capacity
    running = context = step = prefills = 0
    now = busy = 0.0
    ends, push, pop = server.order()
    next_end = NEVER
    takes: list[int] = []
    rests: list[tuple[int, float]] = []  # with `windows`: who has emitted when, since the last decode
    rested = 0
    queue: deque[int] = deque()
    horizon = yield inf
    while True:
        if not running and not queue:
            if inbox:
                queue.append(inbox.popleft())
                now = horizon
            elif horizon == inf:
                break
            else:
                horizon = yield inf
            continue
        if now >= horizon:  # more may arrive at this very time
            if inbox:
                queue.append(inbox.popleft())
            else:
                horizon = yield now
            continue

        left, pairs = limit, 0.0
        while queue and (left > 0 or not takes):
            request = queue[0]
            tokens = inputs[request]
            need = tokens + outputs[request]
            if block > 1:
                need = -(-need // block)
            if (takes and tokens > left) or need > free or running + len(takes) >= most:
                break
            queue.popleft()
            free -= need
            left -= tokens
            pairs += 0.5 * tokens * tokens
            prefill_start[request] = now
            takes.append(request)

        if takes:
            tokens = limit - left
            if len(takes) == 1:
                span = prompts[tokens]
            elif counted_seconds is not None:
                span = counted_seconds(tokens, pairs, 0, 0, 0)
            else:
                span = server.seconds((0, inputs[request]) for request in takes)
            end = now + span
            while end > horizon:
                if inbox:
                    queue.append(inbox.popleft())
                else:
                    horizon = yield end
            now = end
            busy += span
            prefills += 1
            for request in takes:
                prefill_end[request] = first_token[request] = now
                tokens = inputs[request]
                length = outputs[request]
                if length > 1:
                    running += 1
                    context += tokens
                    end_step = step + length - 1
                    push(end_step << INDEX_BITS | request)
                    if end_step < next_end:
                        next_end = end_step
                else:
                    finish[request] = now
                    need = tokens + 1
                    free += need if block == 1 else -(-need // block)
                    if load is not None:
                        load[place] -= (-(-tokens // block) << INDEX_BITS) + 1
            if windows is not None:
                rests.append((running - rested, now))
                rested = running
            takes.clear()
            continue

        # Decode: to the first end, to the bend of the time model, or to the iteration in flight at an arrival.
        steps = next_end - step
        since, until, seconds, slope, growth, half = pieces[running]
        if not since <= context < until:
            since, until, seconds, slope, growth, half = pieces.at(running, context)
        if context + (steps - 1) * running >= until:
            steps = ceil((until - context) / running)
        seconds += slope * context
        span = steps * (seconds + half * (steps - 1))
        end = now + span
        while end > horizon:
            if not inbox:
                horizon = yield end
                continue
            if not queue:
                room = horizon - now
                linear = seconds - half
                steps = int(2.0 * room / (linear + sqrt(linear * linear + 2.0 * growth * room))) or 1
                span = steps * (seconds + half * (steps - 1))
                end = now + span
                if end < horizon:
                    steps += 1
                    span = steps * (seconds + half * (steps - 1))
                    end = now + span
            queue.append(inbox.popleft())
        if windows is not None:
            windows.after_rests(rests, now, seconds, growth, steps)
        now = end
        busy += span
        step += steps
        context += steps * running
        while next_end == step:
            request = pop() & INDEX_MASK
            next_end = ends[0] >> INDEX_BITS if ends else NEVER
            finish[request] = now
            running -= 1
            tokens = inputs[request]
            need = tokens + outputs[request]
            context -= need - 1
            free += need if block == 1 else -(-need // block)
            if load is not None:
                load[place] -= (-(-tokens // block) << INDEX_BITS) + 1
        if windows is not None:
            rests, rested = [(running, now)], running

    record = server.record
    record.busy_seconds, record.iterations = busy, step + prefills
