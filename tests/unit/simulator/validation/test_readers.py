"""Measurement files: read as they stand, or refused by file, line and field."""

import json
from dataclasses import replace
from typing import Any

import pytest

from disagg_engine.catalogue import Precision, default
from disagg_simulator.errors import MeasurementError
from disagg_simulator.validation.silicon import Silicon, read_silicon


def read(lines: list[str]) -> Silicon:
    return read_silicon(lines, source="table.csv", catalogue=default())


def with_field(lines: list[str], *, line: int, field: str, value: str) -> list[str]:
    names = lines[0].split(",")
    cells = lines[line - 1].split(",")
    cells[names.index(field)] = value
    return [*lines[: line - 1], ",".join(cells), *lines[line:]]


def test_rows_carry_catalogue_names_and_seconds(silicon_lines: list[str]) -> None:
    silicon = read(silicon_lines)
    assert len(silicon.rows) == len(silicon_lines) - 1
    first = silicon.rows[0]
    assert (first.engine.model, first.engine.gpu, first.engine.precision) == ("llama-3.1-70b", "h100", "fp8")
    assert first.line == 2
    assert first.ttft_seconds == pytest.approx(0.154)
    assert {row.engine.precision for row in silicon.rows if row.engine.backend == "sglang"} == {Precision.FP16}


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("isl", "", "isl is ''"),
        ("isl", "12.5", "isl is '12.5', a whole number"),
        ("osl", "-3", "osl is '-3'"),
        ("batch_size", "0", "batch_size is '0'"),
        ("silicon_tpot_ms", "nan", "silicon_tpot_ms is 'nan', a finite number above 0"),
        ("silicon_ttft_ms", "inf", "silicon_ttft_ms is 'inf'"),
        ("precision", "fp3", "precision is 'fp3', one of fp16, fp8, fp4"),
        ("mode", "other", "mode is 'other'"),
        ("backend", "", "backend is blank"),
        ("model_path", "acme/unheard-of", "model_path is 'acme/unheard-of'"),
        ("system", "abacus", "system: unknown GPU 'abacus'"),
    ],
)
def test_a_malformed_row_is_refused_with_line_and_field(
    silicon_lines: list[str], field: str, value: str, says: str
) -> None:
    with pytest.raises(MeasurementError) as caught:
        read(with_field(silicon_lines, line=7, field=field, value=value))
    assert str(caught.value).startswith("table.csv, line 7: ")
    assert says in str(caught.value)


def test_a_table_without_a_column_or_without_rows_is_refused(silicon_lines: list[str]) -> None:
    with pytest.raises(MeasurementError, match="line 1: the header lacks osl"):
        read([silicon_lines[0].replace(",osl,", ",other,"), *silicon_lines[1:]])
    with pytest.raises(MeasurementError, match="no rows"):
        read(silicon_lines[:1])


@pytest.mark.parametrize(
    ("field", "reason"), [("pp_size", "pipeline stages"), ("attention_dp_size", "data-parallel attention")]
)
def test_rows_nothing_here_models_are_left_out_and_counted(silicon_lines: list[str], field: str, reason: str) -> None:
    silicon = read(with_field(silicon_lines, line=3, field=field, value="2"))
    assert silicon.left_out == {reason: 1}
    assert len(silicon.rows) == len(silicon_lines) - 2


def test_names_of_narrowed_models_are_the_models(silicon_lines: list[str]) -> None:
    silicon = read(with_field(silicon_lines, line=2, field="model_path", value="nvidia/Llama-3.1-8B-Instruct-FP8"))
    assert silicon.rows[0].engine.model == "llama-3.1-8b"


def test_a_run_is_told_on_one_clock(made_run: Any) -> None:
    run = made_run.read()
    assert run.clock_offset_seconds == pytest.approx(-1.7e9)
    assert run.requests[0].arrival_seconds == 0.0
    assert run.requests[0].queued_seconds == pytest.approx(0.0, abs=1e-6)
    assert run.requests[1].queued_seconds - run.requests[1].arrival_seconds == pytest.approx(0.004, abs=1e-6)
    assert all(request.ttft_seconds > 0 for request in run.requests)
    assert run.settings.kv_tokens == 8192


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("input_toks", 0, "input_toks is 0"),
        ("output_toks", "many", "output_toks is 'many'"),
        ("arrival_time", None, "arrival_time is None"),
        ("arrival_time", True, "arrival_time is True"),
        ("first_token_ts", 1.0, "first_token_ts is 1.0, after a time of"),
    ],
)
def test_a_malformed_request_is_refused_with_line_and_field(
    made_run: Any, field: str, value: object, says: str
) -> None:
    with pytest.raises(MeasurementError) as caught:
        made_run.with_field(line=5, field=field, value=value).read()
    assert str(caught.value).startswith("requests.jsonl, line 5: ")
    assert says in str(caught.value)


def test_a_line_that_is_no_json_and_a_meta_without_a_setting_are_refused(made_run: Any) -> None:
    with pytest.raises(MeasurementError, match=r"requests.jsonl, line 2: it is not JSON"):
        replace(made_run, lines=[made_run.lines[0], "{"]).read()
    meta = json.loads(made_run.meta)
    del meta["kv_cache"]["num_kv_tokens"]
    with pytest.raises(MeasurementError, match=r"meta.json: num_kv_tokens is None"):
        replace(made_run, meta=json.dumps(meta)).read()
    with pytest.raises(MeasurementError, match="no requests"):
        replace(made_run, lines=[]).read()
