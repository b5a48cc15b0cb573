"""A colocated instance under `chunked`: all decodes, and prompt chunks with what is left of the token budget.

While a prompt is under way every iteration is another, so these are computed one by one; in between, decodes are
skipped over as in `prefill_first`. At most one prompt is half computed: the next one is admitted only with budget that
this one left over. A half-computed prompt with one token to go counts as a decode (the budget cannot leave it out).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from math import ceil, inf, sqrt

from disagg_simulator.fast.server import INDEX_BITS, INDEX_MASK, NEVER, Server
from disagg_simulator.gaps import Windows
from disagg_simulator.recording import Recording


def chunked(server: Server, recording: Recording, windows: Windows | None = None) -> Generator[float, float, None]:
    """Serve what is put into `server.inbox`; ends when it is sent infinity."""
    inputs, outputs = recording.requests.input_tokens, recording.requests.output_tokens
    prefill_start, prefill_end = recording.prefill_start, recording.prefill_end
    first_token, finish = recording.first_token, recording.finish
    inbox, pieces, load, place = server.inbox, server.pieces, server.load, server.place
    counted_seconds = server.counted_seconds
    block, budget = server.group.block_tokens, server.group.batching.chunk_tokens
    most = server.group.batching.max_sequences
    free = server.capacity
    active = running = context = step = prefilled = 0
    now = busy = 0.0
    ends, push, pop = server.order()
    next_end = NEVER
    partial, done = -1, 0  # the prompt under way, and how much of it is computed
    ready: list[int] = []  # whose prompt ends with this iteration
    parts: list[tuple[int, int]] = []  # chunks as (tokens held, new tokens), for a time model that looks at each
    queue: deque[int] = deque()
    horizon = yield inf
    while True:
        if not active and not queue:
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

        decodes, held = running, context
        chunks = cached = 0
        pairs = 0.0
        if partial >= 0 and inputs[partial] - done == 1:
            decodes += 1
            held += done
            ready.append(partial)
            partial = -1
        left = budget - decodes
        if partial >= 0 and left > 0:
            chunks = inputs[partial] - done
            if chunks > left:
                chunks = left
            pairs = chunks * (done + 0.5 * chunks)
            cached = done
            parts.append((done, chunks))
            left -= chunks
            done += chunks
            if done == inputs[partial]:
                ready.append(partial)
                partial = -1
        while left > 0 and queue and active < most:
            request = queue[0]
            tokens = inputs[request]
            need = tokens + outputs[request]
            if block > 1:
                need = -(-need // block)
            if need > free:
                break
            queue.popleft()
            free -= need
            active += 1
            prefill_start[request] = now
            if tokens > left:
                partial = request
                done = tokens = left
            else:
                ready.append(request)
            parts.append((0, tokens))
            chunks += tokens
            pairs += 0.5 * tokens * tokens
            left -= tokens

        if chunks or ready:
            if counted_seconds is not None:
                span = counted_seconds(chunks, pairs, cached, decodes, held)
            else:
                span = server.seconds(parts, decodes, held)
            parts.clear()
            steps = 1
            seconds, growth = span, 0.0
            end = now + span
        else:
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
            if left > 0 and steps > 1 and not queue:
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
        if windows is not None and running:
            windows.add(seconds, growth, steps, running)
        now = end
        busy += span
        step += steps
        context += steps * running
        prefilled += chunks
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
        if ready:
            for request in ready:
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
                    active -= 1
                    need = tokens + 1
                    free += need if block == 1 else -(-need // block)
                    if load is not None:
                        load[place] -= (-(-tokens // block) << INDEX_BITS) + 1
            ready.clear()

    record = server.record
    record.busy_seconds, record.iterations, record.prompt_tokens = busy, step, prefilled
