"""Kernel measurements from the package `aiconfigurator-core`: found, read, and handed to the engine's time model.

The package keeps a folder for each system, kind of kernel, engine and version of it, with a Parquet file of rows in it.
The newest version that has the file counts; of several kernels that do the same, the fastest. Both the package and
pyarrow come with the extra `disagg[kernels]` and are loaded only here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from disagg_engine.errors import EngineError
from disagg_engine.instance import Instance
from disagg_engine.timemodel.kernels import Kernels, KernelShapes, KernelTables, kernel_shapes

from .errors import UsageError

Rows = Iterable[Mapping[str, Any]]
ReadRows = Callable[[Path, Mapping[str, Any], Sequence[str]], Rows]
"""Rows of a file in which the columns of the mapping have those values; the last argument names the columns wanted."""

BACKENDS = ("vllm", "trtllm", "sglang")
MISSING = (
    "the time model kernels needs measured kernels: pip install aiconfigurator-core pyarrow (the extra disagg[kernels])"
)

_SYSTEMS = {
    "a100-80gb": "a100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "gb200-nvl72": "gb200",
    "l40s": "l40s",
}
_PRODUCT_TYPES = {"fp16": "bfloat16", "fp8": "fp8", "fp4": "nvfp4"}
_KV_TYPES = {"fp16": "bfloat16", "fp8": "fp8"}
_MILLISECOND = 1e-3


def kernel_time_model(
    instance: Instance, *, backend: str, folder: Path | None = None, read_rows: ReadRows | None = None
) -> Kernels:
    """The time model of an instance in the engine `backend`. Raises `UsageError`.

    folder: the data folder, by default the installed package's. read_rows: how a file is read, by default with pyarrow.
    """
    if backend not in BACKENDS:
        raise UsageError(f"--backend is {backend}; kernels are known of {', '.join(BACKENDS)}")
    if instance.gpu.name not in _SYSTEMS:
        raise UsageError(f"no kernels of {instance.gpu.name} are known; known are {', '.join(_SYSTEMS)}")
    try:
        shapes = kernel_shapes(instance)
        tables = _Reader(
            system=(folder or _installed()) / _SYSTEMS[instance.gpu.name],
            backend=backend,
            read_rows=read_rows or _parquet_rows(),
        ).tables(instance, shapes)
        return Kernels(instance, tables=tables)
    except EngineError as error:
        raise UsageError(str(error)) from None


def _installed() -> Path:
    found = find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        raise UsageError(MISSING)
    return Path(found.submodule_search_locations[0]) / "systems" / "data"


def _parquet_rows() -> ReadRows:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError(MISSING) from None

    def read(path: Path, where: Mapping[str, Any], columns: Sequence[str]) -> Rows:
        known = set(parquet.read_schema(path).names)
        filters = [(column, "==", value) for column, value in where.items() if column in known]
        table = parquet.read_table(path, columns=list(columns), filters=filters or None)
        rows: Rows = table.to_pylist()
        return rows

    return read


class _Reader:
    def __init__(self, *, system: Path, backend: str, read_rows: ReadRows) -> None:
        self._system, self._backend, self._read_rows = system, backend, read_rows

    def tables(self, instance: Instance, shapes: KernelShapes) -> KernelTables:
        heads = {
            "num_heads": shapes.heads,
            "num_key_value_heads": shapes.kv_heads,
            "head_dim": shapes.head_size,
            "kv_cache_dtype": _KV_TYPES[instance.kv_precision.value],
            "attn_dtype": "bfloat16",
            "beam_width": 1,
            "window_size": 0,
        }
        products = self._points(
            "gemm", "gemm_perf", {"gemm_dtype": _PRODUCT_TYPES[instance.weight_precision.value]}, ("n", "k"), "m"
        )
        prompts = self._points("attention", "context_attention_perf", {**heads, "step": 0}, ("batch_size",), "isl")
        decodes = self._points("attention", "generation_attention_perf", heads, ("step",), "batch_size")
        sums: dict[tuple[int, ...], dict[int, float]] = {}
        if instance.tensor > 1:
            sums = self._points("comm", "custom_allreduce_perf", {"num_gpus": instance.tensor}, (), "message_size")
        return KernelTables(
            products={(key[0], key[1]): list(points.items()) for key, points in products.items()},
            prompts={key[0]: list(points.items()) for key, points in prompts.items()},
            decodes={key[0]: list(points.items()) for key, points in decodes.items()},
            sums=list(sums[()].items()) if sums else (),
        )

    def _points(
        self, kind: str, name: str, where: Mapping[str, Any], keys: Sequence[str], size: str
    ) -> dict[tuple[int, ...], dict[int, float]]:
        """Seconds by size, for each value of the key columns."""
        path = self._newest(kind, f"{name}.parquet")
        found: dict[tuple[int, ...], dict[int, float]] = {}
        for row in self._read_rows(path, where, (*keys, size, "latency")):
            points = found.setdefault(tuple(int(row[key]) for key in keys), {})
            seconds = float(row["latency"]) * _MILLISECOND
            points[int(row[size])] = min(seconds, points.get(int(row[size]), seconds))
        if not found:
            wanted = ", ".join(f"{column} {value}" for column, value in where.items())
            raise UsageError(f"{self._backend} on {self._system.name} has no measured {name} for {wanted}")
        return found

    def _newest(self, kind: str, file: str) -> Path:
        folder = self._system / kind / self._backend
        versions = [path.parent for path in folder.glob(f"*/{file}")]
        if not versions:
            raise UsageError(f"{self._backend} on {self._system.name} has no measured kernels of kind {kind} ({file})")
        return max(versions, key=lambda path: _version(path.name)) / file


def _version(name: str) -> list[tuple[int, str]]:
    """1.3.0rc20 above 1.3.0rc9: numbers compare as numbers."""
    return [(int(number or 0), word) for number, word in re.findall(r"(\d+)|([a-z]+)", name)]
