"""Measurements with known constants behind them: the same files as real ones, made by the engine's own model.

Every row's TPOT is the closed form's under `TRUTH`, times a deterministic wobble of up to 2 %, as measurements have;
the recorded run is the batching loop's under `RUN_TRUTH`, with a client's clock far from the engine's.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from disagg_engine.catalogue import Precision, default
from disagg_engine.timemodel.calibrated import Calibrated, CalibratedConstants
from disagg_engine.timemodel.calibration import EngineKey
from disagg_simulator.validation.run_fit import simulate_run
from disagg_simulator.validation.runs import EngineRun, EngineSettings, RunRequest, read_run
from disagg_simulator.validation.silicon import COLUMNS, Measurement
from disagg_simulator.validation.steady import instance_of, load_of, steady_tpot_seconds

CLOCK_OFFSET = -1.7e9
"""Engine's clock less client's, in the made run."""

ENGINES = {
    ("meta-llama/Llama-3.1-70B", "h100_sxm", "vllm", "fp8"): CalibratedConstants(
        compute_efficiency=0.55,
        memory_efficiency=0.85,
        kv_factor=1.2,
        layer_seconds=5e-5,
        sequence_seconds=5e-5,
        tensor_penalty=0.08,
    ),
    ("Qwen/Qwen3-32B", "h200_sxm", "sglang", ""): CalibratedConstants(
        compute_efficiency=0.7,
        memory_efficiency=0.75,
        kv_factor=0.9,
        layer_seconds=4e-5,
        sequence_seconds=3e-5,
        tensor_penalty=0.12,
    ),
    ("meta-llama/Llama-3.1-8B-Instruct", "b200_sxm", "trtllm", "fp4"): CalibratedConstants(
        compute_efficiency=0.4,
        memory_efficiency=0.6,
        kv_factor=0.8,
        layer_seconds=6e-5,
        sequence_seconds=2e-5,
        tensor_penalty=0.1,
    ),
}

RUN_TRUTH = CalibratedConstants(
    compute_efficiency=0.9,
    memory_efficiency=0.85,
    kv_factor=1.0,
    layer_seconds=2e-5,
    sequence_seconds=1e-5,
    tensor_penalty=0.15,
)


@dataclass(frozen=True)
class MadeRun:
    """The two files of a recorded run."""

    meta: str
    lines: list[str]

    def read(self) -> EngineRun:
        return read_run(self.meta, self.lines, meta_source="meta.json", source="requests.jsonl", catalogue=default())

    def with_field(self, *, line: int, field: str, value: object) -> "MadeRun":
        changed = json.dumps({**json.loads(self.lines[line - 1]), field: value})
        return replace(self, lines=[*self.lines[: line - 1], changed, *self.lines[line:]])


@pytest.fixture(scope="session")
def engines() -> dict[tuple[str, str, str, str], CalibratedConstants]:
    """The constants behind the made table, by model, system, backend and precision as its columns have them."""
    return ENGINES


@pytest.fixture(scope="session")
def run_truth() -> CalibratedConstants:
    """The constants behind the made run."""
    return RUN_TRUTH


@pytest.fixture(scope="session")
def silicon_lines() -> list[str]:
    """A table of about 200 rows."""
    lines = [",".join(["id", *COLUMNS, "pp_size", "attention_dp_size", "moe_ep_size"])]
    for (model, system, backend, precision), constants in ENGINES.items():
        key = EngineKey(
            model=_model(model),
            gpu=default().gpu(system).name,
            backend=backend,
            precision=Precision(precision or "fp16"),
        )
        for inputs, outputs in ((1024, 128), (1024, 1024), (4096, 512)):
            for tensor in (2, 4, 8):
                for concurrency in (4, 8, 16, 32, 64, 128):
                    row = _row(key, constants, inputs, outputs, tensor, concurrency)
                    wobble = 1 + 0.02 * math.sin(len(lines))
                    fields = {
                        "backend": backend,
                        "model_path": model,
                        "system": system,
                        "precision": precision,
                        "mode": "agg",
                        "isl": inputs,
                        "osl": outputs,
                        "batch_size": concurrency,
                        "tp_size": tensor,
                        "silicon_ttft_ms": 150.0 + concurrency,
                        "silicon_tpot_ms": row.tpot_seconds * 1e3 * wobble,
                    }
                    lines.append(",".join([str(len(lines)), *(str(fields[name]) for name in COLUMNS), "1", "", "1"]))
    return lines


@pytest.fixture(scope="session")
def made_run() -> MadeRun:
    """Forty requests, more than the KV room holds at a time."""
    settings = EngineSettings(
        engine=EngineKey(model="llama-3.1-8b", gpu="rtx-4090", backend="vllm", precision=Precision.FP16),
        version="made",
        tensor=1,
        kv_tokens=8192,
        block_tokens=16,
        max_sequences=64,
        max_batched_tokens=2048,
        chunked_prefill=True,
        prefix_caching=False,
        async_scheduling=False,
    )
    blank = [
        RunRequest(
            request_id=f"made-{place}",
            input_tokens=200 + 137 * place % 900,
            output_tokens=40 + 61 * place % 160,
            arrival_seconds=0.11 * place,
            queued_seconds=0.0,
            scheduled_seconds=0.0,
            first_token_seconds=0.0,
            last_token_seconds=0.0,
        )
        for place in range(40)
    ]
    run = EngineRun(source="made", settings=settings, requests=tuple(blank), clock_offset_seconds=0.0)
    instance = instance_of(settings.engine, tensor=1, catalogue=default())
    times = simulate_run(run, Calibrated(instance, RUN_TRUTH))
    client = 2.0e9
    lines = []
    for request, ttft, whole in zip(blank, times.ttft, times.end_to_end, strict=True):
        arrival = client + request.arrival_seconds
        waited = 0.0 if request.arrival_seconds == 0 else 0.004
        lines.append(
            json.dumps(
                {
                    "request_id": request.request_id,
                    "input_toks": request.input_tokens,
                    "output_toks": request.output_tokens,
                    "arrival_time": arrival,
                    "queued_ts": arrival + CLOCK_OFFSET + waited,
                    "scheduled_ts": arrival + CLOCK_OFFSET + waited,
                    "first_token_ts": arrival + CLOCK_OFFSET + ttft,
                    "last_token_ts": arrival + CLOCK_OFFSET + whole,
                }
            )
        )
    meta = {
        "model": "meta-llama/Llama-3.1-8B",
        "vllm_version": "made",
        "engine_kwargs": {"tensor_parallel_size": 1, "data_parallel_size": 1, "dtype": "bfloat16"},
        "kv_cache": {"num_kv_tokens": 8192, "block_size": 16, "enable_prefix_caching": False},
        "hardware": {"device_name": "NVIDIA GeForce RTX 4090", "device_count": 1},
        "resolved_config": {
            "scheduler_config": {
                "max_num_seqs": 64,
                "max_num_batched_tokens": 2048,
                "enable_chunked_prefill": True,
                "async_scheduling": False,
            }
        },
    }
    return MadeRun(meta=json.dumps(meta), lines=lines)


@pytest.fixture
def measurement() -> Callable[..., Measurement]:
    """A row, with whatever is named changed."""
    plain = Measurement(
        line=2,
        engine=EngineKey(model="llama-3.1-70b", gpu="h100", backend="vllm", precision=Precision.FP8),
        input_tokens=1024,
        output_tokens=256,
        concurrency=8,
        tensor=4,
        ttft_seconds=0.1,
        tpot_seconds=0.01,
    )

    def make(**changes: object) -> Measurement:
        return replace(plain, **changes)  # type: ignore[arg-type]

    return make


def _model(path: str) -> str:
    return default().model(path).name


def _row(
    key: EngineKey, constants: CalibratedConstants, inputs: int, outputs: int, tensor: int, concurrency: int
) -> Measurement:
    row = Measurement(
        line=0,
        engine=key,
        input_tokens=inputs,
        output_tokens=outputs,
        concurrency=concurrency,
        tensor=tensor,
        ttft_seconds=1.0,
        tpot_seconds=1.0,
    )
    load = load_of(row, default())
    return replace(row, tpot_seconds=steady_tpot_seconds(Calibrated(load.instance, constants), load))
