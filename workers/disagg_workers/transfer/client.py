"""Pulls KV from a prefill worker (decode side): one connection for one transfer.

Every wait is bounded: for the connection, and for the next byte. Whatever goes wrong is a PullError, after which the
prompt can be computed here; nothing is remembered of it. A worker that asks for a proof of membership gets one, and no
token.
"""

import asyncio
from collections.abc import Sequence

from disagg_contract.errors import DocumentError
from disagg_contract.tokens import TokenKeeper
from disagg_contract.transfer import (
    STRANGER_FRAME_BYTES,
    Ack,
    Block,
    Challenge,
    End,
    Frame,
    FrameReader,
    Proof,
    Pull,
    Refused,
    RemoteKV,
    Renew,
    encode_frame,
)
from disagg_workers.contents import BlockContent
from disagg_workers.errors import PullError
from disagg_workers.transfer.payload import unseal

_READ_BYTES = 256 * 1024


class PullClient:
    """The decode side of one transfer. Connects when first needed; ``keeper`` has the deployment's tokens, if any."""

    def __init__(
        self,
        remote: RemoteKV,
        *,
        keeper: TokenKeeper | None = None,
        connect_seconds: float = 2.0,
        idle_seconds: float = 10.0,
    ) -> None:
        self._remote = remote
        self._keeper = keeper
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def renew(self) -> None:
        """Keep the lease alive while the request queues."""
        await self._send(Renew(self._remote.transfer_id))

    async def acknowledge(self) -> None:
        """Tell the prefill worker that its KV is no longer needed."""
        await self._send(Ack(self._remote.transfer_id))

    async def pull(self, block_ids: Sequence[int], *, block_tokens: int) -> list[BlockContent]:
        """The contents of these blocks, in order. Raises PullError."""
        await self._send(Pull(self._remote.transfer_id, self._remote.engine_id, tuple(block_ids), block_tokens))
        frames = FrameReader()
        contents: list[BlockContent] = []
        while True:
            for frame in await self._receive(frames):
                if isinstance(frame, End):
                    if frame.blocks != len(contents) or len(contents) != len(block_ids):
                        raise PullError(f"{self._where}: {len(contents)} blocks came of {len(block_ids)}")
                    return contents
                if isinstance(frame, Refused):
                    raise PullError(f"{self._where}: refused ({frame.reason}): {frame.message}")
                if not isinstance(frame, Block):
                    raise PullError(f"{self._where}: a {type(frame).__name__} frame came instead of a block")
                contents.append(unseal(frame, index=len(contents), block_tokens=block_tokens))

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    @property
    def _where(self) -> str:
        return f"KV pull from {self._remote.host}:{self._remote.port}"

    async def _send(self, frame: Frame) -> None:
        try:
            async with asyncio.timeout(self._idle_seconds):
                writer = await self._connected()
                writer.write(encode_frame(frame))
                await writer.drain()
        except TimeoutError as error:
            raise PullError(f"{self._where}: nothing is taken for {self._idle_seconds:g} s") from error
        except OSError as error:
            raise PullError(f"{self._where}: {error.strerror or error}") from error

    async def _connected(self) -> asyncio.StreamWriter:
        if self._writer is None:
            try:
                async with asyncio.timeout(self._connect_seconds):
                    self._reader, writer = await asyncio.open_connection(self._remote.host, self._remote.port)
            except TimeoutError as error:
                raise PullError(f"{self._where}: no connection within {self._connect_seconds:g} s") from error
            try:
                if self._remote.proof:
                    writer.write(encode_frame(await self._prove()))
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer

    async def _prove(self) -> Proof:
        """The answer to the challenge that a worker which asks for proofs begins with."""
        if self._keeper is None:
            raise PullError(f"{self._where}: it asks for a proof of membership, and this worker has no --token-file")
        frames = FrameReader(max_frame_bytes=STRANGER_FRAME_BYTES)
        heard: list[Frame] = []
        while not heard:
            heard = await self._receive(frames)
        challenge = heard[0]
        if not isinstance(challenge, Challenge) or not isinstance(challenge.nonce, bytes):
            raise PullError(f"{self._where}: a {type(challenge).__name__} frame came instead of a challenge")
        engine_id = self._remote.engine_id
        return Proof(engine_id, self._keeper.tokens.prove(challenge.nonce, engine_id=engine_id))

    async def _receive(self, frames: FrameReader) -> list[Frame]:
        if self._reader is None:
            raise PullError(f"{self._where}: not connected")
        try:
            async with asyncio.timeout(self._idle_seconds):
                data = await self._reader.read(_READ_BYTES)
        except TimeoutError as error:
            raise PullError(f"{self._where}: silent for {self._idle_seconds:g} s") from error
        except OSError as error:
            raise PullError(f"{self._where}: {error.strerror or error}") from error
        if not data:
            raise PullError(f"{self._where}: the connection was closed before all blocks had come")
        try:
            return frames.feed(data)
        except DocumentError as error:
            raise PullError(f"{self._where}: {error}") from error
