"""What a choice looks at: the load and room of a worker, and the blocks of a prompt.

Nothing here knows how a worker is reached or where a prompt came from, so that whoever has workers of some kind can use
the very choice that the router makes: the router's own are process starts behind HTTP (`fleet.Worker`), the
simulator's are instances on a virtual clock.

Load is what the chooser itself has sent to a worker and not seen ending. It is changed by :class:`Charge` alone, which
is taken when a leg is sent and released once, at any end; so load returns to exactly 0 and is never negative. The
prompt tokens of a charge are a queue of work still to be prefilled: they are given back when the first token shows that
it is done, or with the rest.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

from disagg_contract.labels import Role


class Candidate(Protocol):
    """A worker that may be chosen; ``requests``, ``tokens`` and ``blocks`` are the load that charges put on it."""

    requests: int
    tokens: int
    blocks: int

    @property
    def key(self) -> Hashable:
        """Identity of one start of the worker: what it holds is gone with it."""
        ...

    @property
    def role(self) -> Role: ...

    @property
    def model(self) -> str: ...

    @property
    def block_tokens(self) -> int:
        """Tokens in a block of KV, and of the prompts' hashes."""
        ...

    @property
    def capacity_blocks(self) -> int:
        """KV room in blocks; 0: unknown."""
        ...


CandidateT = TypeVar("CandidateT", bound=Candidate)


class Prompt(Protocol):
    """A prompt of ``tokens`` in ``blocks``; ``hashes`` names its full blocks by their whole prefix, may be empty."""

    @property
    def tokens(self) -> int: ...

    @property
    def blocks(self) -> int: ...

    @property
    def hashes(self) -> Sequence[Hashable]: ...


class Charge(Generic[CandidateT]):
    """Load of one leg on one worker: a request, its prompt tokens still to prefill, and its KV blocks.

    ``on_idle`` is told the worker when its last charge was released.
    """

    __slots__ = ("_blocks", "_on_idle", "_open", "_tokens", "worker")

    def __init__(
        self, worker: CandidateT, *, tokens: int, blocks: int, on_idle: Callable[[CandidateT], None] | None = None
    ) -> None:
        self.worker = worker
        self._on_idle = on_idle
        self._tokens = tokens
        self._blocks = blocks
        self._open = True
        worker.requests += 1
        worker.tokens += tokens
        worker.blocks += blocks

    def prefilled(self) -> None:
        """The first token has come: the prompt waits no longer. Calling it again changes nothing."""
        self.worker.tokens -= self._tokens
        self._tokens = 0

    def release(self) -> None:
        """Give the load back; calling it again changes nothing."""
        if not self._open:
            return
        self._open = False
        worker = self.worker
        worker.requests -= 1
        worker.tokens -= self._tokens
        worker.blocks -= self._blocks
        self._tokens = 0
        if self._on_idle is not None and not worker.requests:
            self._on_idle(worker)
