"""A record of what the engine did, one JSON object a line, every time an engine second.

    {"kind": "arrival", "at", "request", "prompt", "max", "remote", "keep"}
    {"kind": "iteration", "number", "start", "end", "works": [[request, start_tokens, new_tokens, emits], …]}
    {"kind": "preemption", "at", "request"}

The arrivals fed to a simulated instance of the same configuration give the same iterations; comparing both is how the
real and the virtual clock are held together. Lines are buffered, so the file lags behind until it is closed.
"""

import json
from pathlib import Path
from typing import IO, Any

from disagg_engine.batching import Completed, Request


class IterationLog:
    """Writes the record; nothing is written where ``path`` is empty. Raises OSError if the file can't be opened."""

    def __init__(self, path: str) -> None:
        self._file: IO[str] | None = None
        if path:
            self._file = Path(path).open("w", encoding="utf-8", buffering=1 << 16)  # noqa: SIM115 - open for life

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
        )

    def completed(self, completed: Completed, *, lag_seconds: float, prompt_tokens: int) -> None:
        """An iteration ended."""
        if self._file is None:
            return
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
            self._file.write(json.dumps(fields, separators=(",", ":")) + "\n")
