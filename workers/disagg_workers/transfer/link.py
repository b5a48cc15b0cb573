"""The modelled link of a decode worker: transfers follow one another at its bandwidth.

Sharing the bandwidth among transfers instead would end the last of them at the same time and all others later, so
first come first served is the kinder and simpler assumption. Times are engine seconds.
"""

from disagg_engine.instance import transfer_seconds


class LinkModel:
    """``bytes_per_second`` in one direction, ``latency_seconds`` before the first byte of a transfer."""

    def __init__(self, *, bytes_per_second: float, latency_seconds: float = 0.0) -> None:
        self._bandwidth = bytes_per_second
        self._latency = latency_seconds
        self._free_seconds = 0.0

    def reserve(self, kv_bytes: float, *, now: float) -> float:
        """Queue a transfer that could begin at ``now``; returns when its last byte arrives."""
        start = max(now, self._free_seconds)
        end = start + transfer_seconds(kv_bytes, bandwidth=self._bandwidth)
        self._free_seconds = end
        return end + self._latency
