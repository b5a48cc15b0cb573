"""One sequence's pull on the decode side, from queueing to arrival.

While the request queues its lease is renewed. Once the loop has reserved room the blocks are pulled, the link takes its
modelled time (the longer of it and the real one counts), the contents are written into the sequence's blocks at the
engine time of arrival, and the pin is acknowledged. If anything fails, the prompt is computed here instead: one longer
prefill, counted, and nothing is remembered against the prefill worker. A cancelled pull gives the pin back as well.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from disagg_contract.hashing import DIGEST_BYTES
from disagg_contract.tokens import TokenKeeper
from disagg_contract.transfer import RemoteKV
from disagg_engine.batching import Transfer
from disagg_workers.clock import EngineClock
from disagg_workers.contents import BlockContent, ContentStore
from disagg_workers.driver import EngineDriver
from disagg_workers.errors import PullError
from disagg_workers.sequence import AnswerSequence
from disagg_workers.transfer.client import PullClient
from disagg_workers.transfer.link import LinkModel

_log = logging.getLogger(__name__)
_GIVE_UP_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """How a pull went: engine seconds from reserved room to arrival, and modelled bytes; ``failed`` says why not."""

    seconds: float = 0.0
    kv_bytes: float = 0.0
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSetup:
    """What all pulls of a worker share.

    ``lease_seconds`` (wall) is used where the prefill worker names none; ``keeper`` has the deployment's tokens.
    """

    driver: EngineDriver
    clock: EngineClock
    store: ContentStore
    link: LinkModel
    kv_bytes_per_token: float
    lease_seconds: float
    done: Callable[[Pulled], None]
    keeper: TokenKeeper | None = None


class Inbound:
    """Pulls the KV of one sequence; `run` it as a task."""

    def __init__(self, sequence: AnswerSequence, remote: RemoteKV, setup: PullSetup) -> None:
        self._sequence = sequence
        self._remote = remote
        self._setup = setup
        self._lease_seconds = remote.lease_seconds or setup.lease_seconds
        self._client = PullClient(remote, keeper=setup.keeper, idle_seconds=min(10.0, max(1.0, self._lease_seconds)))
        self._room: asyncio.Future[tuple[Transfer, float]] = asyncio.get_running_loop().create_future()

    def reserve(self, transfer: Transfer, *, now: float) -> None:
        """The loop has reserved room at engine time ``now``."""
        if not self._room.done():
            self._room.set_result((transfer, now))

    async def run(self) -> None:
        """Pull, or have the prompt computed here. Ends early if the sequence was cancelled."""
        setup = self._setup
        try:
            transfer, now = await self._wait_for_room()
            pulled = await self._pull(transfer, now)
            setup.done(pulled)
        except PullError as error:
            _log.warning("%s; the prompt is prefilled here", error)
            setup.done(Pulled(failed=str(error)))
            if setup.driver.is_live(self._sequence):
                setup.driver.kv_failed(self._sequence)
        finally:
            await give_back(self._client, self._remote)

    async def _wait_for_room(self) -> tuple[Transfer, float]:
        renewing = True
        while True:
            try:
                async with asyncio.timeout(self._lease_seconds / 3):
                    return await asyncio.shield(self._room)
            except TimeoutError:
                if not renewing:
                    continue
            try:
                await self._client.renew()
            except PullError as error:
                # Room may still come; the pull then fails or finds the worker back.
                _log.info("%s; the lease is no longer renewed", error)
                await self._client.close()
                renewing = False

    async def _pull(self, transfer: Transfer, now: float) -> Pulled:
        setup, remote = self._setup, self._remote
        block = setup.store.block_tokens
        first = transfer.cached_tokens // block
        kv_bytes = transfer.pull_tokens * setup.kv_bytes_per_token
        end = setup.link.reserve(kv_bytes, now=now)
        wanted = remote.block_ids[first : -(-transfer.prompt_tokens // block)]
        contents = await self._client.pull(wanted, block_tokens=block)
        arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        def arrive(at: float) -> None:
            self._store(contents, first, at)
            if not arrived.done():
                arrived.set_result(at)

        setup.driver.at(max(end, setup.clock.now()), arrive)
        return Pulled(seconds=await arrived - now, kv_bytes=kv_bytes)

    def _store(self, contents: list[BlockContent], first: int, at: float) -> None:
        driver, sequence = self._setup.driver, self._sequence
        if not driver.is_live(sequence):
            return
        block_ids = driver.block_ids(sequence)
        for number, content in enumerate(contents, start=first):
            self._setup.store.put(block_ids[number], content)
        driver.kv_arrived(sequence, now=at, logits=self._logits())

    def _logits(self) -> bytes | None:
        try:
            logits = bytes.fromhex(self._remote.logits)
        except ValueError:
            return None
        return logits if len(logits) == DIGEST_BYTES else None


async def give_back(client: PullClient, remote: RemoteKV) -> None:
    """The pin is no longer needed, however the pull went. If this message is lost the lease frees it."""
    try:
        async with asyncio.timeout(_GIVE_UP_SECONDS):
            await client.acknowledge()
    except (PullError, TimeoutError) as error:
        _log.info("%s; the lease of transfer %s will free its KV", error, remote.transfer_id)
    finally:
        await client.close()
