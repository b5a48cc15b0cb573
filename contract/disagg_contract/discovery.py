"""How a router learns of workers.

A worker describes itself at ``GET /disagg/info`` (:class:`WorkerInfo`). On Kubernetes the router finds addresses by
watching pods; without, it watches a file (:class:`DiscoveryFile`) that the process runtime replaces atomically. Both
give (uid, address, role, ready); everything else is the worker's own word. A real engine has no such page: what it
would say stands in an annotation of its pod (``labels.WORKER_INFO``), and its health page is asked. A worker is one
*process start*: a restarted container keeps its pod UID and IP but draws a new engine id, and what was known of the old
one (KV index, pins, load) is void.
"""

from dataclasses import dataclass, field
from typing import Final

from disagg_contract.documents import decode, encode
from disagg_contract.labels import Role

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker says of itself.

    ``engine_id`` is drawn at each process start. ``tokenizer_digest``, ``template_digest``, ``hash_digest`` and
    ``block_tokens`` must agree between all workers of a deployment and with the router, or block hashes mean
    different things on both sides. ``time_scale`` is modelled seconds in a wall second. ``revision`` is the hash of
    what makes prefill and decode compatible; empty where nothing rolls out.
    """

    engine_id: str
    role: Role
    model: str
    gpu: str
    block_tokens: int
    kv_capacity_tokens: int
    max_context_tokens: int
    tokenizer_digest: str
    template_digest: str
    hash_digest: str
    time_scale: float = 1.0
    tensor: int = 1
    pipeline: int = 1
    kv_host: str = ""
    kv_port: int = 0
    kv_events_port: int = 0
    revision: str = ""
    version: str = ""
    ready: bool = False
    draining: bool = False

    def to_json(self) -> bytes:
        return encode(self)

    @staticmethod
    def from_json(raw: bytes | str, *, what: str = "worker info") -> "WorkerInfo":
        return decode(raw, WorkerInfo, what=what)


@dataclass(frozen=True, slots=True)
class DiscoveredWorker:
    """One row of the discovery file. ``uid`` changes when the process is replaced, as a pod's UID does.

    ``info``: what is known of an engine that does not describe itself; its engine id is that of its container.
    """

    uid: str
    name: str
    role: Role
    host: str
    port: int
    ready: bool = True
    draining: bool = False
    domain: str = ""
    info: WorkerInfo | None = None


@dataclass(frozen=True, slots=True)
class DiscoveryFile:
    """The whole fleet as the process runtime sees it; replaced as one by rename."""

    version: int = SCHEMA_VERSION
    deployment: str = ""
    workers: tuple[DiscoveredWorker, ...] = field(default_factory=tuple)

    def to_json(self) -> bytes:
        return encode(self)

    @staticmethod
    def from_json(raw: bytes | str, *, what: str = "discovery file") -> "DiscoveryFile":
        return decode(raw, DiscoveryFile, what=what)
