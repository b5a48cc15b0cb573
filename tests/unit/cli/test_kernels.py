"""Kernel tables in the layout of aiconfigurator-core: which file, which rows, what is said when they are missing."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from disagg_cli import kernels
from disagg_cli.errors import UsageError
from disagg_cli.kernels import kernel_time_model
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, Chunk


def build(tensor: int = 1, **precisions: Any) -> Instance:
    return Instance(model=default().model("llama-3.1-8b"), gpu=default().gpu("h100"), tensor=tensor, **precisions)


HEADS = {
    "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "kv_cache_dtype": "bfloat16", "attn_dtype": "bfloat16",
    "beam_width": 1, "window_size": 0,
}  # fmt: skip


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path, where: Mapping[str, Any], columns: Sequence[str]) -> list[dict[str, Any]]:
    """As the Parquet reader does: columns that a file lacks do not filter."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    kept = [row for row in rows if all(row.get(column, str(value)) == str(value) for column, value in where.items())]
    return [{column: row[column] for column in columns} for row in kept]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """1 ms a layer for products whatever the rows, 2 ms for a prompt's attention, 3 ms for a step's, 4 ms a sum."""
    system = tmp_path / "h100_sxm"
    shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]
    products = [
        {"gemm_dtype": kind, "m": m, "n": n, "k": k, "latency": latency}
        for n, k in shapes
        for m in (1, 8192)
        for kind, latency in (("bfloat16", 0.25), ("fp8", 0.125))
    ]
    write(system / "gemm/vllm/0.9.0/gemm_perf.parquet", [{**row, "latency": 99.0} for row in products])
    write(system / "gemm/vllm/0.24.0/gemm_perf.parquet", products)
    prompts = [{"batch_size": b, "isl": isl, "step": 0, **HEADS, "latency": 2.0} for b in (1, 8) for isl in (16, 4096)]
    slower = [{**row, "latency": 5.0} for row in prompts]  # another kernel for the same
    write(system / "attention/vllm/0.24.0/context_attention_perf.parquet", [*slower, *prompts])
    steps = [{"batch_size": b, "isl": 1, "step": s, **HEADS, "latency": 3.0} for b in (1, 256) for s in (1, 4095)]
    other = [{**row, "window_size": 128, "latency": 0.1} for row in steps]
    write(system / "attention/vllm/0.24.0/generation_attention_perf.parquet", [*other, *steps])
    sums = [{"num_gpus": 2, "message_size": size, "latency": 4.0} for size in (128, 10**9)]
    write(system / "comm/vllm/0.24.0/custom_allreduce_perf.parquet", sums)
    return tmp_path


def test_rows_of_the_newest_version_and_the_right_kernels_add_up(folder: Path) -> None:
    model = kernel_time_model(build(), backend="vllm", folder=folder, read_rows=read_csv)
    prompt = model.iteration_seconds(BatchShape(chunks=(Chunk(0, 512),)))
    assert prompt.seconds == pytest.approx(32 * (4 * 0.25e-3 + 2e-3) + 0.25e-3 + 1e-3)
    step = model.iteration_seconds(BatchShape(decode_sequences=4, decode_context_tokens=4000))
    assert step.seconds == pytest.approx(32 * (4 * 0.25e-3 + 3e-3) + 0.25e-3 + 1e-3)


def test_precision_chooses_the_rows(folder: Path) -> None:
    model = kernel_time_model(build(weight_precision="fp8"), backend="vllm", folder=folder, read_rows=read_csv)
    assert model.iteration_seconds(BatchShape(chunks=(Chunk(0, 512),))).seconds == pytest.approx(
        32 * (4 * 0.125e-3 + 2e-3) + 0.125e-3 + 1e-3
    )


def test_missing_measurements_are_named(folder: Path) -> None:
    with pytest.raises(UsageError, match="no measured context_attention_perf for num_heads 16, num_key_value_heads 4"):
        kernel_time_model(build(tensor=2), backend="vllm", folder=folder, read_rows=read_csv)
    with pytest.raises(UsageError, match="trtllm on h100_sxm has no measured kernels of kind gemm"):
        kernel_time_model(build(), backend="trtllm", folder=folder, read_rows=read_csv)
    with pytest.raises(UsageError, match="--backend is cuda; kernels are known of vllm"):
        kernel_time_model(build(), backend="cuda", folder=folder, read_rows=read_csv)


def test_systems_and_models_without_kernels_are_refused(folder: Path) -> None:
    known = default()
    a10g = Instance(model=known.model("llama-3.1-8b"), gpu=known.gpu("a10g"))
    with pytest.raises(UsageError, match="no kernels of a10g are known; known are a100-80gb"):
        kernel_time_model(a10g, backend="vllm", folder=folder, read_rows=read_csv)
    moe = Instance(model=known.model("deepseek-v3"), gpu=known.gpu("h100"), tensor=32)
    with pytest.raises(UsageError, match="a dense one without latent attention"):
        kernel_time_model(moe, backend="vllm", folder=folder, read_rows=read_csv)


def test_without_the_extra_its_name_is_said(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"pip install aiconfigurator-core pyarrow"):
        kernel_time_model(build(), backend="vllm", folder=folder)
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install aiconfigurator-core pyarrow"):
        kernel_time_model(build(), backend="vllm", read_rows=read_csv)


def test_pyarrow_filters_by_the_columns_that_a_file_has(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Older files lack some columns; pyarrow itself is an extra, so its two functions are stood in for."""
    asked: list[list[tuple[str, str, Any]]] = []

    def read_schema(path: Path) -> SimpleNamespace:
        return SimpleNamespace(names=path.read_text(encoding="utf-8").splitlines()[0].split(","))

    def read_table(path: Path, *, columns: list[str], filters: list[tuple[str, str, Any]] | None) -> SimpleNamespace:
        asked.append(filters or [])
        rows = read_csv(path, {column: value for column, _, value in filters or []}, columns)
        return SimpleNamespace(to_pylist=lambda: rows)

    parquet = SimpleNamespace(read_schema=read_schema, read_table=read_table)
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(parquet=parquet))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    model = kernel_time_model(build(tensor=1), backend="vllm", folder=folder)
    assert model.iteration_seconds(BatchShape(chunks=(Chunk(0, 512),))).seconds > 0
    assert asked[0] == [("gemm_dtype", "==", "bfloat16")]
    assert ("step", "==", 0) in asked[1]
    assert ("num_key_value_heads", "==", 8) in asked[2]


def test_versions_compare_as_numbers() -> None:
    names = ["0.9.0", "0.24.0", "1.3.0rc20", "1.3.0rc9", "0.5.14"]
    assert sorted(names, key=kernels._version) == ["0.5.14", "0.9.0", "0.24.0", "1.3.0rc9", "1.3.0rc20"]
