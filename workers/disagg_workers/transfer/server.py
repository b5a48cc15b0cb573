"""Serves pulls of pinned KV over TCP (prefill side); frames are `disagg_contract.transfer`'s.

A connection may carry any number of pulls, renewals and acknowledgements. A pull that names another engine, an unknown
transfer, another geometry or blocks that are not the pin's is answered with Refused and a sentence; a connection that
speaks something else is closed. Losing a connection frees nothing: only an acknowledgement or the lease does.

Where the deployment has a token, a connection begins with a challenge, and nothing is said of engines, transfers and
blocks before it was answered.
"""

import asyncio
import logging
import secrets
from typing import TypeGuard

from disagg_contract.errors import DocumentError
from disagg_contract.tokens import NONCE_BYTES, TokenKeeper
from disagg_contract.transfer import (
    MAX_FRAME_BYTES,
    STRANGER_FRAME_BYTES,
    Ack,
    Challenge,
    End,
    Frame,
    FrameReader,
    Proof,
    Pull,
    Refused,
    Renew,
    encode_frame,
)
from disagg_workers.contents import ContentStore
from disagg_workers.strangers import Strangers
from disagg_workers.transfer.payload import seal
from disagg_workers.transfer.pins import Pin, PinTable

_log = logging.getLogger(__name__)
_READ_BYTES = 64 * 1024
_FLUSH_BLOCKS = 64
PROOF_SECONDS = 5.0
"""A connection that has proven nothing by then is closed."""


class PullServer:
    """``wire_bytes`` is the payload size of a full block. Without ``keeper`` whoever connects is served."""

    def __init__(
        self,
        *,
        engine_id: str,
        pins: PinTable,
        store: ContentStore,
        wire_bytes: int,
        keeper: TokenKeeper | None,
        strangers: Strangers,
    ) -> None:
        self._engine_id = engine_id
        self._pins = pins
        self._store = store
        self._wire_bytes = wire_bytes
        self._keeper = keeper
        self._strangers = strangers
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def start(self, *, host: str, port: int) -> None:
        """Listen; port 0 takes a free one, `port` then holds it. Raises OSError if it can't."""
        self._server = await asyncio.start_server(self._serve, host or None, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        frames = FrameReader()
        try:
            first = await self._admit(self._keeper, frames, reader, writer) if self._keeper is not None else []
            for frame in first:
                await self._handle(frame, writer)
            while data := await reader.read(_READ_BYTES):
                for frame in frames.feed(data):
                    await self._handle(frame, writer)
        except _StrangerError as error:
            self._strangers.turned_away(_peer(writer), f"a KV pull: {error}")
        except DocumentError as error:
            _log.warning("KV pull: closing a connection: %s", error)
        except ConnectionError as error:
            _log.info("KV pull: connection lost: %s", error)
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _admit(
        self, keeper: TokenKeeper, frames: FrameReader, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> list[Frame]:
        """Have the other side prove that it belongs to the deployment; returns what it sent behind its proof."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        frames.max_frame_bytes = STRANGER_FRAME_BYTES
        try:
            async with asyncio.timeout(PROOF_SECONDS):
                await self._send(writer, Challenge(nonce))
                heard: list[Frame] = []
                while not heard:
                    data = await reader.read(STRANGER_FRAME_BYTES)
                    if not data:
                        raise _StrangerError("it left without a proof")
                    heard = frames.feed(data)
        except TimeoutError:
            raise _StrangerError(f"no proof within {PROOF_SECONDS:g} s") from None
        proof, *behind = heard
        if not _is_proof(proof) or not keeper.admit_proof(proof.mac, nonce, engine_id=proof.engine_id):
            await self._send(writer, Refused("unauthorised", "this worker gives KV to its own deployment alone"))
            raise _StrangerError("it does not know the deployment's token")
        frames.max_frame_bytes = MAX_FRAME_BYTES
        return behind

    async def _handle(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        if isinstance(frame, Pull):
            await self._pull(frame, writer)
        elif isinstance(frame, Renew):
            if self._pins.get(frame.transfer_id) is None:
                await self._send(writer, _unknown(frame.transfer_id))
        elif isinstance(frame, Ack):
            self._pins.acknowledge(frame.transfer_id)
        else:
            raise DocumentError(f"a {type(frame).__name__} frame came from the pulling side")

    async def _pull(self, pull: Pull, writer: asyncio.StreamWriter) -> None:
        refused, pin = self._check(pull)
        if refused is not None or pin is None:
            await self._send(writer, refused or _unknown(pull.transfer_id))
            return
        place = {block_id: number for number, block_id in enumerate(pin.block_ids)}
        for index, block_id in enumerate(pull.block_ids):
            content = self._store.get(block_id)
            if content is None:
                await self._send(writer, Refused("unknown-transfer", f"block {block_id} holds nothing"))
                return
            # The last block may have grown beyond the prompt.
            content = content.first(pin.tokens - place[block_id] * self._store.block_tokens)
            block = seal(index=index, content=content, wire_bytes=self._wire_bytes)
            writer.write(encode_frame(block))
            if index % _FLUSH_BLOCKS == _FLUSH_BLOCKS - 1:
                await writer.drain()
                if self._pins.get(pull.transfer_id) is None:  # given up meanwhile: its blocks may be another's now
                    await self._send(writer, _unknown(pull.transfer_id))
                    return
        await self._send(writer, End(len(pull.block_ids)))

    def _check(self, pull: Pull) -> tuple[Refused | None, Pin | None]:
        if pull.engine_id != self._engine_id:
            message = f"this is engine {self._engine_id}, not {pull.engine_id}: it was restarted, its KV is gone"
            return Refused("unknown-engine", message), None
        pin = self._pins.get(pull.transfer_id)
        if pin is None:
            return _unknown(pull.transfer_id), None
        if pull.block_tokens != self._store.block_tokens:
            message = f"blocks hold {self._store.block_tokens} tokens here and {pull.block_tokens} there"
            return Refused("geometry", message), None
        foreign = set(pull.block_ids) - set(pin.block_ids)
        if foreign:
            message = f"blocks {sorted(foreign)[:8]} are not part of transfer {pull.transfer_id}"
            return Refused("geometry", message), None
        return None, pin

    async def _send(self, writer: asyncio.StreamWriter, frame: Frame) -> None:
        writer.write(encode_frame(frame))
        await writer.drain()


class _StrangerError(Exception):
    """Whoever connected does not belong to the deployment."""


def _is_proof(frame: Frame) -> TypeGuard[Proof]:
    return isinstance(frame, Proof) and isinstance(frame.mac, bytes) and isinstance(frame.engine_id, str)


def _peer(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return str(name[0]) if name else "somebody"


def _unknown(transfer_id: str) -> Refused:
    return Refused(
        "unknown-transfer", f"nothing is pinned for transfer {transfer_id}: it was pulled already or its lease ran out"
    )
