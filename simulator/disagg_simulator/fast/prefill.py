"""A prefill instance: batches of whole prompts, in as many pipeline stages as it has.

The generator is sent every time at which it may start an iteration, and yields when it wants to be asked next. Ends are
the driver's affair: it takes batches out of `Prefills.flights` and hands room back through `Prefills.releases`.
"""

from __future__ import annotations

from collections.abc import Generator
from math import inf

from disagg_simulator.fast.pulls import Prefills
from disagg_simulator.fast.server import Server
from disagg_simulator.recording import Recording


def prefill(server: Server, recording: Recording, prefills: Prefills) -> Generator[float, float, None]:
    """Compute what is put into `server.inbox`; ends when it is sent infinity."""
    inputs, prefill_start = recording.requests.input_tokens, recording.prefill_start
    queue, prompts, place = server.inbox, server.prompts, server.place
    counted_seconds = server.counted_seconds
    block, batching = server.group.block_tokens, server.group.batching
    limit, most, stages = batching.prefill_limit_tokens, batching.max_sequences, batching.pipeline
    ready, blocked = prefills.ready, prefills.blocked
    line, released = prefills.flights[place], prefills.releases[place]
    free, iterations, active = server.capacity, 0, 0
    busy = free_at = 0.0
    full = False
    due = inf
    while (now := (yield due)) != inf:
        if full and len(line) < stages:  # no batch could start before this one left
            full = False
            ready[place] = free_at if free_at > now else now
        due = line[0][0] if line else inf
        if not queue:
            continue
        if ready[place] > now:
            if ready[place] < due:
                due = ready[place]
            continue
        while released and released[0][0] <= now:
            free += released.popleft()[1]
        if stages > 1:
            active = sum(len(batch) for _, batch in line)
        takes: list[int] = []
        left, pairs = limit, 0.0
        while queue and (left > 0 or not takes):
            request = queue[0]
            tokens = inputs[request]
            need = tokens + 1 if block == 1 else -(-(tokens + 1) // block)
            if (takes and tokens > left) or need > free or active + len(takes) >= most:
                break
            queue.popleft()
            free -= need
            left -= tokens
            pairs += 0.5 * tokens * tokens
            prefill_start[request] = now
            takes.append(request)
        if not takes:
            blocked[place] = True
            if released and released[0][0] < due:
                due = released[0][0]
            continue
        blocked[place] = False
        tokens = limit - left
        if len(takes) == 1:
            span = prompts[tokens]
        elif counted_seconds is not None:
            span = counted_seconds(tokens, pairs, 0, 0, 0)
        else:
            span = server.seconds((0, inputs[request]) for request in takes)
        iterations += 1
        end = now + span
        if stages > 1:
            span = server.stage_seconds((0, inputs[request]) for request in takes)
            if line and end < line[-1][0]:  # a batch cannot overtake the one before it
                end = line[-1][0]
        busy += span
        free_at = now + span
        line.append((end, takes))
        full = len(line) == stages
        ready[place] = inf if full else free_at
        due = line[0][0]
        if queue and ready[place] < due:
            due = ready[place]
    server.record.busy_seconds, server.record.iterations = busy, iterations
