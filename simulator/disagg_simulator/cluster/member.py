"""One instance during a run: its batching loop, its KV ledger, and what the cluster knows about it."""

from __future__ import annotations

from enum import IntEnum

from disagg_engine.batching import BatchingLoop
from disagg_engine.kv import BlockLedger, CountingLedger
from disagg_engine.kv.protocol import KvLedger
from disagg_simulator.deployment import Group, Ledger
from disagg_simulator.recording import InstanceRecord

NEVER = float("inf")


class Phase(IntEnum):
    """Where an instance is in its life; only a serving one is chosen."""

    STARTING = 0
    SERVING = 1
    DRAINING = 2
    GONE = 3


class Member:
    """Mutable state of one instance; `number` counts all instances of a run.

    live: requests that have a leg or pinned KV here, in the order they came. due: when the loop next wants to be
    stepped, as far as the heap knows.
    """

    __slots__ = ("due", "group", "ledger", "live", "loop", "number", "phase", "record", "role")

    def __init__(self, number: int, group: Group, *, name: str, started_seconds: float) -> None:
        self.number = number
        self.group = group
        self.role = group.role
        self.record = InstanceRecord(
            name=name,
            role=group.role,
            gpus=group.instance.gpus,
            capacity_tokens=group.capacity_tokens,
            started_seconds=started_seconds,
        )
        self.phase = Phase.STARTING
        self.ledger: KvLedger
        self.loop: BatchingLoop
        self.live: dict[int, None] = {}
        self.due = NEVER
        self.reset()

    def reset(self) -> None:
        """Nothing on it: a new process."""
        group = self.group
        if group.ledger is Ledger.BLOCKS:
            self.ledger = BlockLedger(capacity_tokens=group.capacity_tokens, block_tokens=group.block_tokens)
        else:
            self.ledger = CountingLedger(capacity_tokens=group.capacity_tokens, block_tokens=group.block_tokens)
        self.loop = BatchingLoop(config=group.batching, time_model=group.time_model, ledger=self.ledger)
        self.live = {}
        self.due = NEVER
