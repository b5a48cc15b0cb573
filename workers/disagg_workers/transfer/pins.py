"""KV that a prefill worker keeps for a decode worker.

A pin holds the blocks of a finished prefill leg until they were pulled (`acknowledge`), were given up (`drop`), or
nobody gave a sign of life for the lease. Renewals move the deadline; nothing else does, so queueing on the decode side
is never mistaken for failure (case KV11) and a dead decode worker never keeps blocks for ever (case KV3).
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Pin:
    """Blocks of one prefill leg. ``deadline`` is in the clock's seconds."""

    transfer_id: str
    request_id: str
    block_ids: tuple[int, ...]
    tokens: int
    deadline: float


class PinTable:
    """All pins of a worker. ``monotonic`` gives wall seconds; ``release`` frees a request's KV in the engine."""

    def __init__(
        self,
        *,
        lease_seconds: float,
        monotonic: Callable[[], float],
        release: Callable[[str], None],
    ) -> None:
        self.lease_seconds = lease_seconds
        self.expired_count = 0
        self._monotonic = monotonic
        self._release = release
        self._pins: dict[str, Pin] = {}

    def __len__(self) -> int:
        return len(self._pins)

    @property
    def pinned_blocks(self) -> int:
        """Blocks held, a block shared by several pins counted once for each."""
        return sum(len(pin.block_ids) for pin in self._pins.values())

    def add(self, *, request_id: str, block_ids: tuple[int, ...], tokens: int) -> Pin:
        """Pin the blocks of a finished prefill leg under a fresh transfer id."""
        pin = Pin(uuid.uuid4().hex, request_id, block_ids, tokens, self._monotonic() + self.lease_seconds)
        self._pins[pin.transfer_id] = pin
        return pin

    def get(self, transfer_id: str) -> Pin | None:
        """A pin, its lease renewed; None if it is not (or no longer) known."""
        pin = self._pins.get(transfer_id)
        if pin is not None:
            pin.deadline = self._monotonic() + self.lease_seconds
        return pin

    def acknowledge(self, transfer_id: str) -> bool:
        """The KV was pulled, or nobody wants it any more: free it. False if it was not pinned."""
        pin = self._pins.pop(transfer_id, None)
        if pin is None:
            return False
        self._release(pin.request_id)
        return True

    def expire(self) -> list[Pin]:
        """Free and return every pin whose lease has run out."""
        now = self._monotonic()
        late = [pin for pin in self._pins.values() if pin.deadline <= now]
        for pin in late:
            del self._pins[pin.transfer_id]
            self.expired_count += 1
            self._release(pin.request_id)
        return late

    def next_deadline_seconds(self) -> float | None:
        """Wall seconds until the next pin may expire; None without pins."""
        if not self._pins:
            return None
        return min(pin.deadline for pin in self._pins.values()) - self._monotonic()
