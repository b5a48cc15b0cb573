"""A record of what an engine was told and what it did, one JSON object a line, every time an engine second.

    {"kind": "worker", "config": {…}, "capacity"}      first line: the settings (WorkerConfig), KV room in tokens
    {"kind": "arrival", "at", "request", "prompt", "max", "remote", "keep", "keys"}
    {"kind": "blocks", "request", "keys"}              the keys of blocks that a request's output has completed
    {"kind": "pulled", "at", "request", "first"}       its KV arrived; who gives the first token: logits or step
    {"kind": "pull-failed" | "finish" | "cancel" | "release", "at", "request"}
    {"kind": "slowdown", "at", "factor"}
    {"kind": "iteration", "number", "start", "end", "works": [[request, start_tokens, new_tokens, emits], …], "lag"}
    {"kind": "plan", "at"}
    {"kind": "preemption", "at", "request"}            follows from the plan before it

`keys` is one string, 16 hexadecimal digits a block: the first eight bytes of the block's chained hash, which tell
blocks apart within a deployment. `request` names an engine request, one for each choice of an HTTP request.

Replaying it. The lines stand in the order of the calls that the driver made of its `BatchingLoop`, so replaying them
in that order on a loop of the same configuration gives the same iterations to the last bit, however late the wall clock
was: `arrival` → submit, `blocks` → add_block_keys, `pulled` → kv_arrived, `pull-failed` → kv_failed, then `finish`,
`cancel`, `release`, `slowdown` and `plan` as they are called; an `iteration` line is what complete(now=end) then
returns, and start_transfers(now=at) follows on arrival, pulled, pull-failed, cancel and release. Feeding the arrivals
alone to a simulated instance gives the schedule of a worker that is never late. Lines are buffered, so the file lags
behind until it is closed.
"""

from collections.abc import Hashable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import msgspec

from disagg_contract.config import WorkerConfig
from disagg_engine.batching import Completed, Request
from disagg_workers.driver import Input

KEY_BYTES = 8
"""Bytes of a block's hash that are written."""


class IterationLog:
    """Writes the record; nothing is written where ``path`` is empty. Raises OSError if the file can't be opened."""

    def __init__(self, path: str) -> None:
        self._file: IO[bytes] | None = None
        self._encode = msgspec.json.Encoder().encode
        if path:
            self._file = Path(path).open("wb", buffering=1 << 16)  # noqa: SIM115 - open for life

    def started(self, config: WorkerConfig, *, capacity_tokens: int) -> None:
        """What the engine is."""
        self._write(kind="worker", config=asdict(config), capacity=capacity_tokens)

    def submitted(self, request: Request, *, now: float) -> None:
        """A request entered the loop."""
        self._write(
            kind="arrival",
            at=now,
            request=request.request_id,
            prompt=request.prompt_tokens,
            max=request.max_tokens,
            remote=request.remote_kv,
            keep=request.keep_kv,
            keys=pack_keys(request.block_keys),
        )

    def told(self, what: Input, request_id: str, *, now: float, **detail: Any) -> None:
        """The loop was told something else of a request."""
        self._write(kind=what, at=now, request=request_id, **detail)

    def blocks(self, request_id: str, keys: Sequence[Hashable]) -> None:
        """A request's output has completed blocks of these keys."""
        self._write(kind="blocks", request=request_id, keys=pack_keys(keys))

    def slowed(self, factor: float, *, now: float) -> None:
        """Iterations take that many times as long from now on."""
        self._write(kind="slowdown", at=now, factor=factor)

    def planned(self, *, now: float) -> None:
        """The loop was asked for its next iteration."""
        self._write(kind="plan", at=now)

    def completed(self, completed: Completed, *, lag_seconds: float) -> None:
        """An iteration ended."""
        iteration = completed.iteration
        self._write(
            kind="iteration",
            number=iteration.number,
            start=iteration.start_seconds,
            end=iteration.end_seconds,
            works=[[work.request_id, work.start_tokens, work.new_tokens, work.emits] for work in completed.works],
            lag=lag_seconds,
        )

    def preempted(self, request_id: str, *, now: float) -> None:
        """A sequence lost its blocks."""
        self._write(kind="preemption", at=now, request=request_id)

    def close(self) -> None:
        """Write what is buffered."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, **fields: Any) -> None:
        if self._file is not None:
            self._file.write(self._encode(fields) + b"\n")


def pack_keys(keys: Sequence[Hashable]) -> str:
    """Block keys as the log has them."""
    return "".join(key[:KEY_BYTES].hex() for key in keys if isinstance(key, bytes))


def unpack_keys(text: str) -> tuple[str, ...]:
    """Keys of a log line, one string a block; they stand for the blocks as well as the whole hashes do."""
    return tuple(text[start : start + 2 * KEY_BYTES] for start in range(0, len(text), 2 * KEY_BYTES))
