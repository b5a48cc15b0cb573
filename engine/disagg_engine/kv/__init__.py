"""KV ledgers: who holds how much of an instance's KV room."""

from disagg_engine.kv.blocks import BlockLedger, BlockSnapshot
from disagg_engine.kv.counting import CountingLedger
from disagg_engine.kv.events import AllCleared, BlockRemoved, BlockStored, KvEvent, KvListener
from disagg_engine.kv.protocol import KvLedger

__all__ = [
    "AllCleared",
    "BlockLedger",
    "BlockRemoved",
    "BlockSnapshot",
    "BlockStored",
    "CountingLedger",
    "KvEvent",
    "KvLedger",
    "KvListener",
]
