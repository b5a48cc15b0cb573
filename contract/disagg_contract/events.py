"""KV events as vLLM publishes them: what a worker's prefix cache stored, removed or forgot.

A message has three frames: topic, an 8-byte big-endian sequence number that grows by one a message, and a msgpack
batch. The batch is an array ``[ts, events, data_parallel_rank?]``. An event is either an array whose first element is
its tag (older engines) or a map with the tag under ``type`` (newer ones); both are read, both can be written. Trailing
fields that an engine doesn't know or leaves at their defaults may be missing, unknown ones are ignored.

Block hashes are the engine's own, integers or bytes, and mean nothing outside it: an index chains its own hashes from
``token_ids`` and the parent (`disagg_contract.hashing`).

Sequence numbers are the only guard against loss. A subscriber that sees a gap asks for a replay by sending the first
missing number; the answer is the buffered messages and then an end marker (sequence -1, empty payload).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

BlockHash: TypeAlias = int | bytes
Form = Literal["array", "map"]

MEDIUM_DEVICE: Final = "GPU"
"""Medium of blocks in device memory."""

END_OF_REPLAY: Final = (-1).to_bytes(8, "big", signed=True)
"""Sequence frame that ends a replay."""


class EventError(ValueError):
    """Bytes that are no event batch; the message says where."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive full blocks became reusable.

    ``token_ids`` holds ``len(block_hashes) * block_size`` ids; ``parent_block_hash`` is the block before the first one
    (None at the start of a prompt), each further block's parent is the block before it.
    """

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks were evicted from ``medium``."""

    block_hashes: tuple[BlockHash, ...]
    medium: str | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The whole cache was reset."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of a kind this codec doesn't know; what it did to the cache is unknown, so a reader should resync."""

    tag: str


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared | UnknownEvent


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in the order in which they happened; ``ts`` is the sender's wall clock in seconds since the epoch."""

    ts: float
    events: tuple[Event, ...]
    data_parallel_rank: int | None = None


_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


def encode_batch(batch: EventBatch, *, form: Form = "array") -> bytes:
    """The msgpack payload of a batch. Raises ValueError for an `UnknownEvent`."""
    events = [_encode_event(event, form) for event in batch.events]
    head: list[Any] = [float(batch.ts), events]
    if batch.data_parallel_rank is not None:
        head.append(batch.data_parallel_rank)
    return _encoder.encode(head)


def _encode_event(event: Event, form: Form) -> Any:
    tag = type(event).__name__
    if tag not in _FIELDS:
        raise ValueError(f"an event of unknown kind ({event}) can't be encoded")
    names = _FIELDS[tag]
    if form == "array":
        return [tag, *(getattr(event, name) for name in names)]
    return {"type": tag, **{name: getattr(event, name) for name in names}}


def decode_batch(payload: bytes) -> EventBatch:
    """Inverse of `encode_batch` for either form. Raises EventError for anything else."""
    try:
        raw = _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise EventError(f"event batch: no msgpack ({error})") from error
    if isinstance(raw, dict):
        raw = [raw.get("ts"), raw.get("events"), raw.get("data_parallel_rank")]
    if not isinstance(raw, list) or len(raw) < 2:
        raise EventError("event batch: expected an array of [ts, events, data_parallel_rank]")
    ts, events = raw[0], raw[1]
    rank = raw[2] if len(raw) > 2 else None
    if isinstance(ts, bool) or not isinstance(ts, int | float):
        raise EventError(f"event batch: ts is {ts!r}; expected seconds as a number")
    if not isinstance(events, list):
        raise EventError("event batch: events is no array")
    if rank is not None and not _is_int(rank):
        raise EventError(f"event batch: data_parallel_rank is {rank!r}; expected an integer or nil")
    return EventBatch(float(ts), tuple(_decode_event(number, event) for number, event in enumerate(events)), rank)


def _decode_event(number: int, raw: Any) -> Event:
    where = f"event {number}"
    if isinstance(raw, dict):
        tag = raw.get("type")
        fields = raw
    elif isinstance(raw, list) and raw:
        tag = raw[0]
        fields = dict(zip(_FIELDS.get(tag, ()) if isinstance(tag, str) else (), raw[1:], strict=False))
    else:
        raise EventError(f"{where}: expected an array or a map with a tag")
    if not isinstance(tag, str):
        raise EventError(f"{where}: the tag is {tag!r}; expected a string")
    reader = _READERS.get(tag)
    return UnknownEvent(tag) if reader is None else reader(where, fields)


def _read_stored(where: str, fields: dict[str, Any]) -> BlockStored:
    hashes = _hashes(where, fields)
    parent = fields.get("parent_block_hash")
    if parent is not None and not _is_hash(parent):
        raise EventError(f"{where}: parent_block_hash is {parent!r}; expected an integer, bytes or nil")
    tokens = fields.get("token_ids")
    if not isinstance(tokens, list) or not all(map(_is_int, tokens)):
        raise EventError(f"{where}: token_ids is no array of integers")
    size = fields.get("block_size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise EventError(f"{where}: block_size is {size!r}; expected an integer of at least 1")
    if len(tokens) != size * len(hashes):
        raise EventError(f"{where}: {len(tokens)} token_ids for {len(hashes)} blocks of {size}")
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=parent,
        token_ids=tuple(tokens),
        block_size=size,
        lora_id=_optional(where, fields, "lora_id", int),
        medium=_optional(where, fields, "medium", str),
        lora_name=_optional(where, fields, "lora_name", str),
    )


def _read_removed(where: str, fields: dict[str, Any]) -> BlockRemoved:
    return BlockRemoved(_hashes(where, fields), _optional(where, fields, "medium", str))


def _read_cleared(_where: str, _fields: dict[str, Any]) -> AllBlocksCleared:
    return AllBlocksCleared()


_READERS: Final[dict[str, Callable[[str, dict[str, Any]], Event]]] = {
    "BlockStored": _read_stored,
    "BlockRemoved": _read_removed,
    "AllBlocksCleared": _read_cleared,
}


def _hashes(where: str, fields: dict[str, Any]) -> tuple[BlockHash, ...]:
    hashes = fields.get("block_hashes")
    if not isinstance(hashes, list) or not all(map(_is_hash, hashes)):
        raise EventError(f"{where}: block_hashes is no array of integers or bytes")
    return tuple(hashes)


def _optional(where: str, fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise EventError(f"{where}: {name} is {value!r}; expected {kind.__name__} or nil")
    return value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_hash(value: object) -> bool:
    return isinstance(value, bytes) or _is_int(value)


def encode_frames(*, topic: str, sequence: int, payload: bytes) -> list[bytes]:
    """The three frames of one published message. Raises ValueError for a negative sequence number."""
    if sequence < 0:
        raise ValueError(f"sequence is {sequence}; numbers start at 0")
    return [topic.encode(), sequence.to_bytes(8, "big"), payload]


def decode_frames(frames: Sequence[bytes]) -> tuple[str, int, bytes]:
    """(topic, sequence, payload) of a message; the end of a replay has sequence -1. Raises EventError otherwise."""
    if len(frames) != 3 or len(frames[1]) != 8:
        raise EventError(f"message of {len(frames)} frames; expected topic, 8-byte sequence and payload")
    sequence = int.from_bytes(frames[1], "big", signed=True)
    return frames[0].decode("utf-8", "replace"), sequence, frames[2]
