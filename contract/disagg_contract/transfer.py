"""The hand-over of a prompt's KV from a prefill to a decode worker.

Two layers. The HTTP layer is vLLM's ``kv_transfer_params``: the router sends the prefill leg with
``do_remote_decode``, the prefill worker answers where its blocks lie, the router puts that answer into the decode leg
with ``do_remote_prefill``. What vLLM does not know travels under the key ``disagg`` and may be missing when the other
side is a real engine.

The TCP layer is ours, for simulated workers: the decode worker connects to ``remote_host:remote_port`` and pulls.

    decode → prefill   Pull(transfer_id, engine_id, block_ids, block_tokens)
    prefill → decode   Block(index, digest, checksum, payload) for each block, in order, then End(blocks)
    prefill → decode   Refused(reason) instead, when the engine id, the transfer or the geometry is not known
    decode → prefill   Renew(transfer_id) while the request queues: it extends the lease; Ack(transfer_id) frees it

A prefill worker whose deployment has a token says ``proof`` in its answer, and speaks first on each connection:

    prefill → decode   Challenge(nonce)
    decode → prefill   Proof(engine_id, mac), as in ``tokens``; nothing is answered to one that is right
    prefill → decode   Refused("unauthorised") to anything else, and the end of the connection

KV whose decode leg never began is freed over HTTP: the router, which alone knows of it, asks the prefill worker with
``DELETE`` at ``ports.TRANSFERS_PATH``, once for each transfer it gives up.

A frame is a big-endian length of four bytes and a msgpack array whose first item is the kind. ``FrameReader`` is
sans-IO: bytes in, frames out. ``transfer_id`` is fresh for every attempt, so a late frame of a failed attempt finds
nothing. ``digest`` is the digest of the prompt up to the end of the block (the simulated contents); ``checksum``
covers digest and payload.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from disagg_contract.errors import DocumentError

PREFILL_LEG: Final[dict[str, Any]] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""``kv_transfer_params`` of the prefill leg, as vLLM's proxies send them."""

EXTENSION: Final = "disagg"
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
STRANGER_FRAME_BYTES: Final = 4096
"""Longest frame of who has not proven to be a member."""


@dataclass(frozen=True, slots=True)
class RemoteKV:
    """Where the KV of a prompt lies, from a prefill worker's answer.

    ``block_ids`` in order of the prompt; ``tokens`` is how many prompt tokens they hold (the last block may be
    partial). ``logits`` (hex) is the digest that the next token is drawn from; empty when a foreign engine did not send
    one. ``lease_seconds`` is how long the pin survives silence, in wall seconds. ``proof``: the worker wants whoever
    pulls to prove that it belongs to the deployment.
    """

    engine_id: str
    block_ids: tuple[int, ...]
    host: str
    port: int
    transfer_id: str = ""
    tokens: int = 0
    block_tokens: int = 0
    logits: str = ""
    lease_seconds: float = 0.0
    tp_size: int = 1
    proof: bool = False

    def to_params(self) -> dict[str, Any]:
        """``kv_transfer_params`` as the prefill worker returns them and the decode leg carries them."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.engine_id,
            "remote_block_ids": list(self.block_ids),
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": self.tp_size,
            EXTENSION: {
                "transfer_id": self.transfer_id,
                "tokens": self.tokens,
                "block_tokens": self.block_tokens,
                "logits": self.logits,
                "lease_seconds": self.lease_seconds,
                **({"proof": True} if self.proof else {}),
            },
        }

    @staticmethod
    def from_params(params: Mapping[str, Any]) -> "RemoteKV":
        """Read the decode leg's parameters. Raises DocumentError naming the field that is missing or ill-typed."""
        extension = params.get(EXTENSION) or {}
        if not isinstance(extension, Mapping):
            raise DocumentError(f"kv_transfer_params.{EXTENSION}: {extension!r} is not an object")
        return RemoteKV(
            engine_id=_get(params, "remote_engine_id", str),
            block_ids=_block_ids(params),
            host=_get(params, "remote_host", str),
            port=_get(params, "remote_port", int),
            tp_size=_get(params, "tp_size", int, 1),
            transfer_id=_get(extension, "transfer_id", str, ""),
            tokens=_get(extension, "tokens", int, 0),
            block_tokens=_get(extension, "block_tokens", int, 0),
            logits=_get(extension, "logits", str, ""),
            lease_seconds=float(_get(extension, "lease_seconds", (int, float), 0.0)),
            proof=extension.get("proof") is True,
        )


def wants_remote_decode(params: Mapping[str, Any] | None) -> bool:
    """True for the prefill leg."""
    return bool(params and params.get("do_remote_decode"))


def wants_remote_prefill(params: Mapping[str, Any] | None) -> bool:
    """True for the decode leg."""
    return bool(params and params.get("do_remote_prefill"))


def _get(params: Mapping[str, Any], name: str, kind: Any, default: Any = None) -> Any:
    value = params.get(name, default)
    if value is None:
        value = default
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = getattr(kind, "__name__", "number")
        raise DocumentError(f"kv_transfer_params.{name}: {value!r} is not a value of type {wanted}")
    return value


def _block_ids(params: Mapping[str, Any]) -> tuple[int, ...]:
    ids = params.get("remote_block_ids")
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise DocumentError(f"kv_transfer_params.remote_block_ids: {ids!r} is not a list of block numbers")
    return tuple(ids)


# Frames of the pull protocol.


@dataclass(frozen=True, slots=True)
class Pull:
    transfer_id: str
    engine_id: str
    block_ids: tuple[int, ...]
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Renew:
    transfer_id: str


@dataclass(frozen=True, slots=True)
class Ack:
    transfer_id: str


@dataclass(frozen=True, slots=True)
class Block:
    """``index`` counts within the pull; ``tokens`` is how many the block holds."""

    index: int
    tokens: int
    digest: bytes
    checksum: int
    payload: bytes

    @staticmethod
    def seal(*, index: int, tokens: int, digest: bytes, payload: bytes) -> "Block":
        return Block(index, tokens, digest, _checksum(index, tokens, digest, payload), payload)

    @property
    def intact(self) -> bool:
        return self.checksum == _checksum(self.index, self.tokens, self.digest, self.payload)


@dataclass(frozen=True, slots=True)
class End:
    blocks: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Why not: ``message`` is a sentence.

    ``reason``: ``unknown-engine``, ``unknown-transfer``, ``geometry`` or ``unauthorised``.
    """

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Challenge:
    """``nonce``: fresh random bytes of this connection."""

    nonce: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    """``mac`` is :meth:`disagg_contract.tokens.Tokens.prove` for the nonce and ``engine_id``, the engine wanted."""

    engine_id: str
    mac: bytes = field(repr=False)


Frame = Pull | Renew | Ack | Block | End | Refused | Challenge | Proof
_KINDS: Final[dict[int, type[Any]]] = {
    1: Pull,
    2: Renew,
    3: Ack,
    4: Block,
    5: End,
    6: Refused,
    7: Challenge,
    8: Proof,
}
_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}
_LENGTH: Final = struct.Struct(">I")


def _checksum(index: int, tokens: int, digest: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(digest, zlib.crc32(b"%d:%d:" % (index, tokens))))


def encode_frame(frame: Frame) -> bytes:
    """Bytes of one frame, length prefix included."""
    fields = [getattr(frame, name) for name in frame.__dataclass_fields__]
    body: bytes = msgpack.packb([_NUMBERS[type(frame)], *fields], use_bin_type=True)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Splits a byte stream into frames. Raises DocumentError on a length or content that cannot be.

    ``max_frame_bytes`` may change: a stranger gets less room than a member.
    """

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self.max_frame_bytes = max_frame_bytes

    def feed(self, data: bytes) -> list[Frame]:
        self._buffer += data
        frames: list[Frame] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > self.max_frame_bytes:
                raise DocumentError(f"frame of {length} bytes: at most {self.max_frame_bytes} are allowed")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            frames.append(_decode(bytes(self._buffer[start + _LENGTH.size : end])))
            start = end
        del self._buffer[:start]
        return frames


def _decode(body: bytes) -> Frame:
    try:
        number, *fields = msgpack.unpackb(body, raw=False, use_list=False)
        frame: Frame = _KINDS[number](*fields)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise DocumentError(f"frame {body[:32].hex()}…: not a frame of the pull protocol: {error}") from error
    return frame
