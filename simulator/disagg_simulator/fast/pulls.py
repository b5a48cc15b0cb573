"""Transfers from prefill to decode instances: the links they queue on, and the prefill memory that they free.

The end of a transfer is known when it starts, because links are first come first served. So is the time at which the
prefill instance may forget the KV; it is put into that instance's list of releases at once and looked at only when a
prompt needs the room.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from disagg_simulator.deployment import Deployment, Sharing
from disagg_simulator.fast.server import Server
from disagg_simulator.recording import Recording

Pull = Callable[[int, int, float], float]
"""(request, place of the decode instance, time) → when its KV has arrived."""


@dataclass(slots=True, kw_only=True, eq=False)
class Prefills:
    """All prefill instances of a run, in flat lists by place.

    due: when the first iteration in flight ends, or when a plan is to be made; infinite where only an input can tell.
    ready: from when on the first pipeline stage is free; infinite while all are taken. flights: (end, requests) of the
    iterations in flight. blocked: whether the head of the queue waits for room. releases: (time, blocks) of room that
    comes free, by time.
    """

    servers: list[Server]
    due: list[float] = field(init=False)
    ready: list[float] = field(init=False)
    flights: list[deque[tuple[float, list[int]]]] = field(init=False)
    blocked: list[bool] = field(init=False)
    releases: list[deque[tuple[float, int]]] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.servers)
        self.due = [inf] * count
        self.ready = [0.0] * count
        self.flights = [deque() for _ in range(count)]
        self.blocked = [False] * count
        self.releases = [deque() for _ in range(count)]

    def give_back(self, place: int, now: float, tokens: int) -> None:
        """The room of a prompt of so many tokens comes free now."""
        released = self.releases[place]
        freed = (now, -(-(tokens + 1) // self.servers[place].group.block_tokens))
        if released and now < released[-1][0]:
            insort(released, freed)
        else:
            released.append(freed)

    def ends_at(self, now: float) -> bool:
        """Whether an iteration ends at that time, the first at which something is due."""
        return any(line and line[0][0] <= now for line in self.flights)


def puller(deployment: Deployment, recording: Recording, prefills: Prefills) -> Pull:
    """The function that starts transfers; it keeps the links."""
    link, sharing = deployment.link, deployment.link.sharing
    bandwidth, latency = link.bytes_per_second, link.latency_seconds
    token_bytes = deployment.groups[0].instance.kv_bytes_per_token
    alone, by_pair, by_source = sharing is Sharing.NONE, sharing is Sharing.PAIR, sharing is Sharing.SOURCE
    inputs, source = recording.requests.input_tokens, recording.prefill_instance
    due, blocked, releases = prefills.due, prefills.blocked, prefills.releases
    blocks = [server.group.block_tokens for server in prefills.servers]
    count = len(blocks)
    # A link for each prefill instance; with PAIR as many again for each decode instance, with ALL only the first.
    links = [0.0] * (count * sum(group.replicas for group in deployment.decode))

    def pull(request: int, place: int, now: float) -> float:
        tokens = inputs[request]
        prefill = source[request]
        seconds = tokens * token_bytes / bandwidth
        if alone:
            end = now + seconds + latency
        else:
            slot = prefill if by_source else (place * count + prefill if by_pair else 0)
            end = links[slot]
            if end < now:
                end = now
            links[slot] = end = end + seconds
            end += latency
        block = blocks[prefill]
        released = releases[prefill]
        freed = (end, tokens + 1 if block == 1 else -(-(tokens + 1) // block))
        if released and end < released[-1][0]:
            insort(released, freed)
        else:
            released.append(freed)
        if blocked[prefill] and end < due[prefill]:
            due[prefill] = end
        return end

    return pull
