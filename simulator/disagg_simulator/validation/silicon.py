"""Measured rows: TTFT and TPOT of a model on a GPU under a serving program, at a concurrency.

The columns are those of AIConfigurator's table of silicon measurements. `mode` tells the kinds apart: `agg` rows come
from instances that do both phases, `disagg` rows from prefill and decode instances of their own. A blank precision
counts as FP16; one at the end of a model's name (-FP8, -NVFP4) says the same as that column. `batch_size` is the
concurrency of one instance (where several were driven together, the total is in the notes and of no use here). Rows
with pipeline stages, data-parallel attention or expert parallelism are left out and counted; anything that is not a
number where one must be is an error with its line.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from disagg_engine.catalogue import Catalogue, Precision
from disagg_engine.errors import UnknownNameError
from disagg_engine.timemodel.calibration import EngineKey
from disagg_simulator.errors import MeasurementError

from .reading import Row

COLUMNS = (
    "backend",
    "model_path",
    "system",
    "precision",
    "mode",
    "isl",
    "osl",
    "batch_size",
    "tp_size",
    "silicon_ttft_ms",
    "silicon_tpot_ms",
)

_NARROWED = re.compile(r"-(?:NV)?FP[48](?:-dynamic|-block)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One row of an instance that does both phases. Names are the catalogue's; `line` is the row's in its file."""

    line: int
    engine: EngineKey
    input_tokens: int
    output_tokens: int
    concurrency: int
    tensor: int
    ttft_seconds: float
    tpot_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMeasurement:
    """One row of prefill and decode instances; batches are those of one instance."""

    line: int
    engine: EngineKey
    input_tokens: int
    output_tokens: int
    prefill_instances: int
    prefill_tensor: int
    prefill_batch: int
    decode_instances: int
    decode_tensor: int
    decode_batch: int
    ttft_seconds: float
    tpot_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Silicon:
    """A table of measurements. `left_out` counts rows that nothing here models, by reason."""

    source: str
    rows: tuple[Measurement, ...]
    split: tuple[SplitMeasurement, ...]
    left_out: Mapping[str, int]


def read_silicon(lines: Iterable[str], *, source: str, catalogue: Catalogue) -> Silicon:
    """The measurements of a CSV file's lines. Raises MeasurementError, naming line and field.

    A model or GPU that the catalogue lacks is an error too: extend the catalogue.
    """
    reader = csv.DictReader(lines)
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise MeasurementError(source=source, line=1, problem=f"the header lacks {', '.join(missing)}")
    rows: list[Measurement] = []
    split: list[SplitMeasurement] = []
    left_out: Counter[str] = Counter()
    for plain in reader:
        row = Row(plain, source=source, line=reader.line_num)
        mode = row.text("mode")
        if mode not in ("agg", "disagg"):
            row.fail(f"mode is {mode!r}, agg or disagg is needed")
        reason = _unmodelled(row, ("prefill_", "decode_") if mode == "disagg" else ("",))
        if reason:
            left_out[reason] += 1
        elif mode == "agg":
            rows.append(_measurement(row, catalogue))
        else:
            split.append(_split(row, catalogue))
    if not rows and not split:
        raise MeasurementError(source=source, line=None, problem="it has no rows that could be compared")
    return Silicon(source=source, rows=tuple(rows), split=tuple(split), left_out=dict(sorted(left_out.items())))


def _unmodelled(row: Row, prefixes: tuple[str, ...]) -> str:
    for prefix in prefixes:
        for field, reason in (
            ("pp_size", "pipeline stages"),
            ("attention_dp_size", "data-parallel attention"),
            ("moe_ep_size", "expert parallelism"),
        ):
            # A dense model has no experts to spread: some programs then write 0.
            if row.fields.get(f"{prefix}{field}") not in ("0", None) and row.whole(f"{prefix}{field}", blank=1) > 1:
                return reason
    return ""


def _engine(row: Row, catalogue: Catalogue) -> EngineKey:
    precision = row.text("precision") or Precision.FP16.value
    if precision not in list(Precision):
        row.fail(f"precision is {precision!r}, one of {', '.join(Precision)} (or blank) is needed")
    backend = row.text("backend")
    if not backend:
        row.fail("backend is blank, the serving program's name is needed")
    try:
        gpu = catalogue.gpu(row.text("system")).name
    except UnknownNameError as error:
        row.fail(f"system: {error}")
    model = _model(row, catalogue)
    return EngineKey(model=model, gpu=gpu, backend=backend, precision=Precision(precision))


def _model(row: Row, catalogue: Catalogue) -> str:
    path = row.text("model_path")
    plain = _NARROWED.sub("", path.rpartition("/")[2])
    for name in (path, plain, plain.removesuffix("-Instruct")):
        with suppress(UnknownNameError):
            return catalogue.model(name).name
    known = ", ".join(model.name for model in catalogue.models)
    return row.fail(f"model_path is {path!r}, a model of the catalogue is needed: {known}")


def _measurement(row: Row, catalogue: Catalogue) -> Measurement:
    assert row.line is not None
    return Measurement(
        line=row.line,
        engine=_engine(row, catalogue),
        input_tokens=row.whole("isl"),
        output_tokens=row.whole("osl"),
        concurrency=row.whole("batch_size"),
        tensor=row.whole("tp_size"),
        ttft_seconds=row.number("silicon_ttft_ms") / 1e3,
        tpot_seconds=row.number("silicon_tpot_ms") / 1e3,
    )


def _split(row: Row, catalogue: Catalogue) -> SplitMeasurement:
    assert row.line is not None
    return SplitMeasurement(
        line=row.line,
        engine=_engine(row, catalogue),
        input_tokens=row.whole("isl"),
        output_tokens=row.whole("osl"),
        prefill_instances=row.whole("prefill_num_workers"),
        prefill_tensor=row.whole("prefill_tp_size"),
        prefill_batch=row.whole("prefill_batch_size"),
        decode_instances=row.whole("decode_num_workers"),
        decode_tensor=row.whole("decode_tp_size"),
        decode_batch=row.whole("decode_batch_size"),
        ttft_seconds=row.number("silicon_ttft_ms") / 1e3,
        tpot_seconds=row.number("silicon_tpot_ms") / 1e3,
    )
