"""Links that KV crosses: how fast one is between two GPUs, and who waits for whom on it.

Transfers on one link follow one another at its full bandwidth, first come first served: sharing the bandwidth instead
would end the last of them at the same time and all others later. The latency comes on top and holds up nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable

from disagg_engine.catalogue import Catalogue, default
from disagg_engine.instance import Instance, link_bandwidth
from disagg_simulator.deployment import Link, Sharing


def link_named(
    name: str,
    *,
    prefill: Iterable[Instance],
    decode: Iterable[Instance],
    sharing: Sharing = Sharing.SOURCE,
    latency_seconds: float | None = None,
    catalogue: Catalogue | None = None,
) -> Link:
    """The catalogue's link between these instances; where it is the GPUs' own, as fast as the slowest of them.

    latency_seconds replaces the catalogue's. Raises UnknownNameError for a link nobody has described, SettingError for
    one that a GPU lacks.
    """
    entry = (catalogue or default()).link(name)
    sources = list(prefill)
    targets = list(decode)
    return Link(
        name=entry.name,
        bytes_per_second=min(
            link_bandwidth(entry, source=source.gpu, target=target.gpu) for source in sources for target in targets
        ),
        latency_seconds=entry.latency_seconds if latency_seconds is None else latency_seconds,
        sharing=sharing,
    )


class Links:
    """All links of a run."""

    def __init__(self, link: Link) -> None:
        self._bandwidth = link.bytes_per_second
        self._latency = link.latency_seconds
        self._sharing = link.sharing
        self._free: dict[tuple[int, int], float] = {}

    def reserve(self, kv_bytes: float, *, source: int, target: int, now: float) -> float:
        """Queue a transfer that could begin at `now`; returns when its last byte arrives."""
        seconds = kv_bytes / self._bandwidth
        match self._sharing:
            case Sharing.NONE:
                return now + seconds + self._latency
            case Sharing.PAIR:
                key = (source, target)
            case Sharing.SOURCE:
                key = (source, -1)
            case Sharing.ALL:
                key = (-1, -1)
        end = max(now, self._free.get(key, now)) + seconds
        self._free[key] = end
        return end + self._latency
