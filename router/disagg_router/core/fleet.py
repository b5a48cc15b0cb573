"""The workers that a router knows, and the load it has put on each.

A :class:`Worker` is one process start, keyed by (uid, engine id). A restarted container keeps its uid but draws a new
engine id: the fleet then forgets the old worker and takes in a new one. Eligibility (may it be chosen?) and load (what
did this router send it that has not ended?) are separate facts: health rounds, drains and suspicion change the first
and never touch the second. Load is changed by :class:`candidates.Charge` alone; a release after the worker left lands
on the object that the charge was taken from.

Workers of one model and revision must agree on what block hashes mean (block size, tokenizer, template, hash scheme);
one that does not is refused by name. Prefill and decode are paired only within one revision, so while an update
replaces one by another that hashes otherwise, both serve, each among its own.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from disagg_contract.discovery import DiscoveredWorker, WorkerInfo
from disagg_contract.labels import Role
from disagg_router.core.candidates import Charge
from disagg_router.errors import RegistrationRefusedError

AGREEMENT: Final = ("block_tokens", "tokenizer_digest", "template_digest", "hash_digest")
"""Fields of WorkerInfo that all workers of one model and revision share."""


class WorkerKey(NamedTuple):
    """Identity of one process start."""

    uid: str
    engine_id: str


class Worker:
    """One process start: address, what it said of itself, eligibility, and load in requests, tokens and blocks."""

    __slots__ = (
        "blocks",
        "draining",
        "foreign",
        "host",
        "info",
        "key",
        "model",
        "name",
        "port",
        "ready",
        "requests",
        "role",
        "suspect",
        "tokens",
    )

    def __init__(self, row: DiscoveredWorker, info: WorkerInfo) -> None:
        self.key: Final = WorkerKey(row.uid, info.engine_id)
        self.name: Final = row.name
        self.role: Final = info.role
        self.model: Final = info.model
        self.host: Final = row.host
        self.port: Final = row.port
        self.foreign: Final = row.info is not None
        """A real engine: it is described by whoever runs it, and takes the client's credentials instead of ours."""
        self.info = info
        self.ready = False
        self.draining = False
        self.suspect = False
        self.requests = 0
        self.tokens = 0
        self.blocks = 0

    @property
    def block_tokens(self) -> int:
        """Tokens in a block of its KV."""
        return self.info.block_tokens

    @property
    def capacity_blocks(self) -> int:
        """KV room in blocks; 0: unknown."""
        return self.info.kv_capacity_tokens // self.info.block_tokens

    @property
    def eligible(self) -> bool:
        """Ready and not draining by discovery and by its own word, and not suspected since."""
        return self.ready and not self.draining and not self.info.draining and not self.suspect

    def __repr__(self) -> str:
        return f"{self.role} worker {self.name} ({self.host}:{self.port}, engine {self.key.engine_id})"


@dataclass(frozen=True, slots=True)
class Pair:
    """Workers of one revision that may serve a request together."""

    prefill: tuple[Worker, ...]
    decode: tuple[Worker, ...]


@dataclass(frozen=True, slots=True)
class Pools:
    """Eligible workers of a model. ``pairs`` by revision; only revisions with both roles appear."""

    pairs: Mapping[str, Pair]
    colocated: tuple[Worker, ...]

    @property
    def servable(self) -> bool:
        return bool(self.pairs or self.colocated)

    @property
    def prefill(self) -> tuple[Worker, ...]:
        """Every prefill worker that has a decode worker to go with it."""
        return tuple(worker for pair in self.pairs.values() for worker in pair.prefill)


def nothing(_: Worker) -> None:
    """Default of the fleet's listeners."""


class Fleet:
    """All workers by uid. ``on_change`` is called after eligibility changed, ``on_suspect`` when a worker failed."""

    def __init__(self, *, model: str = "") -> None:
        self._workers: dict[str, Worker] = {}
        self._parked: dict[WorkerKey, Worker] = {}
        self._pools: dict[str, Pools] = {}
        self._known: dict[str, None] = {model: None} if model else {}
        self.on_change: Callable[[], None] = lambda: None
        self.on_suspect: Callable[[Worker], None] = nothing
        self.on_leave: Callable[[Worker], None] = nothing

    # What is there.

    @property
    def workers(self) -> Iterable[Worker]:
        return self._workers.values()

    @property
    def known_models(self) -> tuple[str, ...]:
        """Every model seen so far, servable or not."""
        return tuple(self._known)

    @property
    def servable_models(self) -> tuple[str, ...]:
        """Models with at least one prefill and one decode worker of a revision, or one colocated worker."""
        return tuple(model for model in self._known if self.pools(model).servable)

    def get(self, uid: str) -> Worker | None:
        return self._workers.get(uid)

    def pools(self, model: str) -> Pools:
        """Eligible workers of ``model``; kept until something changes."""
        pools = self._pools.get(model)
        if pools is None:
            pools = self._build(model)
            if model in self._known:
                self._pools[model] = pools
        return pools

    def count(self, role: Role) -> int:
        """Workers of a role that may be chosen."""
        return sum(worker.eligible for worker in self._workers.values() if worker.role is role)

    # What changes.

    def join(self, row: DiscoveredWorker, info: WorkerInfo) -> Worker:
        """Take in the process start that ``info`` describes, or update it if it is known.

        Another engine id under the same uid replaces the worker. Raises RegistrationRefusedError, and then the uid is
        not part of the fleet.
        """
        known = self._workers.get(row.uid)
        if known is not None and (known.key.engine_id != info.engine_id or _moved(known, row)):
            self.leave(row.uid)
            known = None
        self._known.setdefault(info.model)
        joined = known is None
        if known is None:
            self._check(row, info)
            known = self._parked.pop(WorkerKey(row.uid, info.engine_id), None)
            if known is None or _moved(known, row):
                known = Worker(row, info)
            self._workers[row.uid] = known
        before = known.eligible, known.info.revision
        known.info = info
        known.suspect = False
        known.ready = row.ready and info.ready
        known.draining = row.draining
        if joined or before != (known.eligible, info.revision):
            self._changed()
        return known

    def mark(self, uid: str, *, ready: bool, draining: bool) -> None:
        """What discovery says now; a worker turns eligible only through :meth:`join`, after it answered."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.ready = worker.ready and ready
            worker.draining = draining
            self._changed()

    def leave(self, uid: str) -> None:
        """Forget a worker. Load that is still out is released to the departed object."""
        worker = self._workers.pop(uid, None)
        if worker is None:
            return
        if worker.requests:
            self._parked[worker.key] = worker
        self.on_leave(worker)
        self._changed()

    def suspect(self, worker: Worker) -> None:
        """A leg failed in a way that says the process may be gone: not chosen again until it answers a probe."""
        if self._workers.get(worker.key.uid) is not worker or worker.suspect:
            return
        worker.suspect = True
        self._changed()
        self.on_suspect(worker)

    def charge(self, worker: Worker, *, tokens: int, blocks: int) -> Charge[Worker]:
        return Charge(worker, tokens=tokens, blocks=blocks, on_idle=self.idle)

    def idle(self, worker: Worker) -> None:
        """The last charge of ``worker`` was released."""
        self._parked.pop(worker.key, None)

    # How.

    def _changed(self) -> None:
        self._pools.clear()
        self.on_change()

    def _check(self, row: DiscoveredWorker, info: WorkerInfo) -> None:
        if info.role is not row.role:
            raise RegistrationRefusedError(
                "role", f"worker {row.name} says it is {info.role}, discovery says {row.role}; start it as {row.role}"
            )
        if info.block_tokens < 1:
            raise RegistrationRefusedError("block_tokens", f"worker {row.name}: block_tokens is {info.block_tokens}")
        for other in self._workers.values():
            if (other.model, other.info.revision) != (info.model, info.revision):
                continue
            for name in AGREEMENT:
                ours, theirs = getattr(other.info, name), getattr(info, name)
                if ours != theirs:
                    raise RegistrationRefusedError(
                        name,
                        f"worker {row.name} of model {info.model}: {name} is {theirs}, but {other.name} has {ours}; "
                        f"block hashes would not match: restart it with the same {name}",
                    )

    def _build(self, model: str) -> Pools:
        roles: dict[Role, dict[str, list[Worker]]] = {role: {} for role in Role}
        for worker in self._workers.values():
            if worker.model == model and worker.eligible:
                roles[worker.role].setdefault(worker.info.revision, []).append(worker)
        decode = roles[Role.DECODE]
        pairs = {
            revision: Pair(tuple(workers), tuple(decode[revision]))
            for revision, workers in roles[Role.PREFILL].items()
            if revision in decode
        }
        return Pools(pairs, tuple(worker for workers in roles[Role.WORKER].values() for worker in workers))


def _moved(worker: Worker, row: DiscoveredWorker) -> bool:
    return (worker.host, worker.port) != (row.host, row.port)
