"""From settings to the engine's objects: everything that can be wrong with a configuration is said here.

Names are looked up in the catalogue (with a user's extension file, if one is given), the model must fit the GPUs, the
link must exist on them. Whatever does not work is a StartError of one sentence.
"""

from dataclasses import dataclass
from pathlib import Path

from disagg_contract.config import WorkerConfig
from disagg_contract.hashing import root_digest
from disagg_contract.labels import Role
from disagg_contract.tokenizer import HuggingFaceTokenizer, Tokenizer, TokenizerUnavailableError, default_tokenizer
from disagg_engine import catalogue
from disagg_engine.batching import BatchingConfig, BatchingLoop
from disagg_engine.errors import EngineError
from disagg_engine.instance import Instance, link_bandwidth
from disagg_engine.kv import BlockLedger
from disagg_engine.timemodel import Roofline
from disagg_workers.errors import StartError


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One simulated instance, ready to run.

    ``context_tokens`` is the longest prompt and answer together: the model's limit, or the KV pool where that is
    smaller. ``load_seconds`` are engine seconds. ``root`` starts the chain of block hashes.
    """

    config: WorkerConfig
    instance: Instance
    loop: BatchingLoop
    tokenizer: Tokenizer
    context_tokens: int
    kv_bytes_per_token: float
    link_bytes_per_second: float
    link_latency_seconds: float
    load_seconds: float
    root: bytes

    @property
    def served_name(self) -> str:
        """Name that clients use."""
        return self.config.served_model_name or self.config.model

    @property
    def capacity_tokens(self) -> int:
        """KV room."""
        return self.loop.ledger.capacity_tokens


def build(config: WorkerConfig) -> Simulated:
    """The instance that ``config`` describes. Raises StartError."""
    try:
        known = _catalogue(config.catalogue)
        model = known.model(config.model)
        gpu = known.gpu(config.gpu)
        link = known.link(config.link)
        instance = Instance(model=model, gpu=gpu, tensor=config.tensor, pipeline=config.pipeline)
        capacity = config.kv_capacity_tokens or instance.kv_capacity_tokens()
        bandwidth = config.link_bytes_per_second or link_bandwidth(link, source=gpu)
        ledger = BlockLedger(
            capacity_tokens=capacity,
            block_tokens=config.block_tokens,
            prefix_caching=config.prefix_caching,
        )
        loop = BatchingLoop(
            config=BatchingConfig(
                role=config.role,
                policy=config.batch_policy,
                admission=config.admission,
                max_batched_tokens=config.max_batched_tokens,
                chunk_tokens=config.chunk_tokens,
                max_sequences=config.max_sequences,
                prefill_burst=config.prefill_burst or None,
                queue_order=config.queue_order,
                pipeline=config.pipeline,
            ),
            time_model=Roofline(instance),
            ledger=ledger,
            slowdown=config.slowdown,
        )
    except EngineError as error:
        raise StartError(str(error)) from error
    if config.role is not Role.PREFILL and ledger.capacity_tokens < 2:
        raise StartError(f"kv_capacity_tokens is {ledger.capacity_tokens}; a prompt and an answer need at least 2")
    return Simulated(
        config=config,
        instance=instance,
        loop=loop,
        tokenizer=_tokenizer(config.tokenizer),
        context_tokens=min(model.max_context_tokens, ledger.capacity_tokens),
        kv_bytes_per_token=model.kv_bytes_per_token,
        link_bytes_per_second=bandwidth,
        link_latency_seconds=link.latency_seconds,
        load_seconds=instance.load_seconds() if config.startup_seconds < 0 else config.startup_seconds,
        root=root_digest(model=config.served_model_name or config.model),
    )


def _catalogue(path: str) -> catalogue.Catalogue:
    known = catalogue.default()
    return known.extended(_read(path, flag="--catalogue"), what=path) if path else known


def _tokenizer(path: str) -> Tokenizer:
    if not path:
        return default_tokenizer()
    try:
        return HuggingFaceTokenizer(_read(path, flag="--tokenizer"), name=path)
    except TokenizerUnavailableError as error:
        raise StartError(str(error)) from error


def _read(path: str, *, flag: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise StartError(f"{flag}={path}: can't be read: {reason}") from error
