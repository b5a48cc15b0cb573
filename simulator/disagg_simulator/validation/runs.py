"""One recorded run of a real engine: its settings, and when each request arrived, was scheduled and got its tokens.

Two files, as LLMServingSim publishes them for vLLM: `<name>_meta.json` with the engine's settings, and
`<name>_requests.jsonl` with a line for each request. `arrival_time` is on the client's calendar clock, all other times
are on the engine's monotonic clock. The engine takes in what has arrived between two iterations, so `queued_ts −
arrival_time` is the offset of the clocks plus a wait of up to one iteration, never less: its smallest value over the
run is the offset, exact where at least one request found the engine idle. All times count from the first arrival.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from disagg_engine.catalogue import Catalogue, Gpu, Model, Precision
from disagg_engine.errors import UnknownNameError
from disagg_engine.timemodel.calibration import EngineKey
from disagg_simulator.errors import MeasurementError

from .reading import Row

_PRECISIONS = {"auto": Precision.FP16, "bfloat16": Precision.FP16, "float16": Precision.FP16, "fp8": Precision.FP8}

_TIMES = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One request; seconds from the first arrival on."""

    request_id: str
    input_tokens: int
    output_tokens: int
    arrival_seconds: float
    queued_seconds: float
    scheduled_seconds: float
    first_token_seconds: float
    last_token_seconds: float

    @property
    def ttft_seconds(self) -> float:
        """Arrival to first token."""
        return self.first_token_seconds - self.arrival_seconds

    @property
    def tpot_seconds(self) -> float:
        """Mean time of the tokens after the first; NaN for an answer of one token."""
        gaps = self.output_tokens - 1
        return (self.last_token_seconds - self.first_token_seconds) / gaps if gaps else float("nan")

    @property
    def end_to_end_seconds(self) -> float:
        """Arrival to last token."""
        return self.last_token_seconds - self.arrival_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How the engine batched. `kv_tokens` is its KV room; `prefix_caching` says that it looked for shared prefixes."""

    engine: EngineKey
    version: str
    tensor: int
    kv_tokens: int
    block_tokens: int
    max_sequences: int
    max_batched_tokens: int
    chunked_prefill: bool
    prefix_caching: bool
    async_scheduling: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """A run; `requests` in order of arrival. clock_offset_seconds: engine's clock less client's."""

    source: str
    settings: EngineSettings
    requests: tuple[RunRequest, ...]
    clock_offset_seconds: float


def read_run(meta: str, lines: Iterable[str], *, meta_source: str, source: str, catalogue: Catalogue) -> EngineRun:
    """The run that a meta document and request lines describe. Raises MeasurementError, naming file, line and field."""
    settings = _settings(_object(meta, source=meta_source, line=None), catalogue)
    rows = [
        _request(_object(text, source=source, line=number))
        for number, text in enumerate(lines, start=1)
        if text.strip()
    ]
    if not rows:
        raise MeasurementError(source=source, line=None, problem="it has no requests")
    offset = min(queued - arrival for _, arrival, (queued, *_) in rows)
    origin = min(arrival for _, arrival, _ in rows)
    requests = [
        RunRequest(
            request_id=row.text("request_id"),
            input_tokens=row.whole("input_toks"),
            output_tokens=row.whole("output_toks"),
            arrival_seconds=arrival - origin,
            queued_seconds=times[0] - offset - origin,
            scheduled_seconds=times[1] - offset - origin,
            first_token_seconds=times[2] - offset - origin,
            last_token_seconds=times[3] - offset - origin,
        )
        for row, arrival, times in rows
    ]
    return EngineRun(
        source=source,
        settings=settings,
        requests=tuple(sorted(requests, key=lambda request: request.arrival_seconds)),
        clock_offset_seconds=offset,
    )


def _object(text: str, *, source: str, line: int | None) -> Row:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise MeasurementError(source=source, line=line, problem=f"it is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MeasurementError(source=source, line=line, problem=f"{value!r} is not an object")
    return Row(value, source=source, line=line)


def _request(row: Row) -> tuple[Row, float, tuple[float, ...]]:
    times = tuple(row.number(field) for field in _TIMES)
    for field, before, after in zip(_TIMES[1:], times, times[1:], strict=False):
        if after < before:
            row.fail(f"{field} is {after}, after a time of {before} that must come first: {', '.join(_TIMES)}")
    return row, row.number("arrival_time"), times


def _settings(meta: Row, catalogue: Catalogue) -> EngineSettings:
    arguments, cache, hardware = meta.inner("engine_kwargs"), meta.inner("kv_cache"), meta.inner("hardware")
    resolved = meta.inner("resolved_config")
    scheduler = resolved.inner("scheduler_config")
    if arguments.whole("data_parallel_size", blank=1) > 1:
        arguments.fail("data_parallel_size is above 1, a run of one engine is needed")
    dtype = arguments.text("dtype")
    if dtype not in _PRECISIONS:
        arguments.fail(f"dtype is {dtype!r}, one of {', '.join(_PRECISIONS)} is needed")
    return EngineSettings(
        engine=EngineKey(
            model=_look_up(meta, "model", catalogue),
            gpu=_look_up(hardware, "device_name", catalogue),
            backend="vllm",
            precision=_PRECISIONS[dtype],
        ),
        version=meta.text("vllm_version"),
        tensor=arguments.whole("tensor_parallel_size"),
        kv_tokens=cache.whole("num_kv_tokens"),
        block_tokens=cache.whole("block_size"),
        max_sequences=scheduler.whole("max_num_seqs"),
        max_batched_tokens=scheduler.whole("max_num_batched_tokens"),
        chunked_prefill=_truth(scheduler, "enable_chunked_prefill"),
        prefix_caching=_truth(cache, "enable_prefix_caching"),
        async_scheduling=_truth(scheduler, "async_scheduling"),
    )


def _look_up(row: Row, field: str, catalogue: Catalogue) -> str:
    look_up: Callable[[str], Model | Gpu] = catalogue.model if field == "model" else catalogue.gpu
    name = row.text(field)
    try:
        found = look_up(name)
    except UnknownNameError as error:
        row.fail(f"{field}: {error}")
    return found.name


def _truth(row: Row, field: str) -> bool:
    value: Any = row.fields.get(field)
    if not isinstance(value, bool):
        row.fail(f"{field} is {value!r}, true or false is needed")
    return value
