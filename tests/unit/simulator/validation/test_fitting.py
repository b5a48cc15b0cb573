"""Hold-out and fit: what was put in comes back, and nothing held out is ever looked at."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from disagg_engine.catalogue import default
from disagg_engine.errors import CatalogueError, SettingError, UnknownNameError
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, Chunk, Roofline
from disagg_engine.timemodel.calibrated import Calibrated, CalibratedConstants
from disagg_engine.timemodel.calibration import Calibration, EngineKey, read_calibration
from disagg_simulator.validation.deviation import errors_of
from disagg_simulator.validation.fitting import (
    CONSTANTS,
    PULL,
    Table,
    calibrate,
    fit,
    group_of,
    held_out,
    leave_one_out,
)
from disagg_simulator.validation.silicon import Measurement, Silicon, read_silicon
from disagg_simulator.validation.steady import load_of, steady_tpot_seconds


@pytest.fixture(scope="module")
def silicon(silicon_lines: list[str]) -> Silicon:
    return read_silicon(silicon_lines, source="table.csv", catalogue=default())


@pytest.fixture(scope="module")
def calibration(silicon: Silicon) -> Calibration:
    return calibrate(silicon.rows, default(), sources=["table.csv"])


def modelled(calibration: Calibration, row: Measurement) -> float:
    load = load_of(row, default())
    return steady_tpot_seconds(calibration.time_model(load.instance, backend=row.engine.backend), load)


def test_every_second_concurrency_of_a_series_is_held_out(measurement: Callable[..., Measurement]) -> None:
    rows = [measurement(concurrency=value) for value in (64, 8, 16, 32)]
    other = [measurement(concurrency=16, tensor=2), measurement(concurrency=8, input_tokens=4096)]
    assert held_out([*rows, *other]) == (True, False, True, False, False, False)


def test_rows_measured_twice_are_held_out_or_seen_together(measurement: Callable[..., Measurement]) -> None:
    rows = [measurement(concurrency=value) for value in (8, 16, 16, 8)]
    assert held_out(rows) == (False, True, True, False)


def test_the_constants_behind_a_table_are_recovered(
    silicon: Silicon, engines: dict[tuple[str, str, str, str], CalibratedConstants]
) -> None:
    prior = {constant.name: constant.prior for constant in CONSTANTS}
    for engine, truth in zip(dict.fromkeys(row.engine for row in silicon.rows), engines.values(), strict=True):
        exact = []
        for row in silicon.rows:
            if row.engine == engine:
                load = load_of(row, default())
                seconds = steady_tpot_seconds(Calibrated(load.instance, truth), load)
                exact.append(replace(row, tpot_seconds=seconds))
        found = fit(Table(exact, default()), prior=prior, pull=1e-6)
        for constant in CONSTANTS:
            assert getattr(found, constant.name) == pytest.approx(getattr(truth, constant.name), rel=0.02)


def test_few_rows_stay_near_the_prior_and_many_leave_it(silicon: Silicon) -> None:
    prior = {constant.name: constant.prior for constant in CONSTANTS}
    rows = [row for row in silicon.rows if row.engine.backend == "trtllm"]
    one, many = (fit(Table(part, default()), prior=prior, pull=PULL) for part in (rows[:1], rows))
    assert abs(one.memory_efficiency - 0.8) < abs(many.memory_efficiency - 0.8)
    assert one.tensor_penalty == pytest.approx(0.15, rel=0.2)


def test_held_out_rows_are_met_as_well_as_the_wobble_allows(silicon: Silicon, calibration: Calibration) -> None:
    kept = held_out(silicon.rows)
    unseen = [row for row, out in zip(silicon.rows, kept, strict=True) if out]
    errors = errors_of([modelled(calibration, row) for row in unseen], [row.tpot_seconds for row in unseen])
    assert errors is not None
    assert errors.count == len(silicon.rows) // 2
    assert errors.mape < 0.03


def test_held_out_rows_never_leak_into_the_fit(silicon: Silicon, calibration: Calibration) -> None:
    kept = held_out(silicon.rows)
    spoilt = [
        replace(row, tpot_seconds=row.tpot_seconds * 7, ttft_seconds=99.0) if out else row
        for row, out in zip(silicon.rows, kept, strict=True)
    ]
    assert calibrate(spoilt, default(), sources=["table.csv"]) == calibration


def test_a_group_left_out_is_never_seen_by_its_pooled_fit(silicon: Silicon) -> None:
    group = group_of(silicon.rows[0])
    spoilt = [
        replace(row, tpot_seconds=row.tpot_seconds * 7) if group_of(row) == group else row for row in silicon.rows
    ]
    plain = leave_one_out(silicon.rows, default())
    assert set(plain) == {group_of(row) for row in silicon.rows}
    assert leave_one_out(spoilt, default())[group] == plain[group]


def test_the_fit_and_the_loaded_model_give_the_same_figures(silicon: Silicon, calibration: Calibration) -> None:
    rows = [row for row in silicon.rows if row.engine.backend in ("sglang", "vllm")][::5]
    for engine in {row.engine for row in rows}:
        own = [row for row in rows if row.engine == engine]
        table = Table(own, default()).tpot_seconds(calibration.engines[engine].constants)
        assert table == pytest.approx([modelled(calibration, row) for row in own], rel=1e-12)


def test_a_calibration_survives_its_document(calibration: Calibration) -> None:
    document = calibration.to_document()
    assert read_calibration(document) == calibration
    assert document["pooled"]["fit"]["rows"] == sum(entry["fit"]["rows"] for entry in document["engines"])
    assert document["sources"] == ["table.csv"]


def test_a_document_that_is_none_is_refused_by_field(calibration: Calibration) -> None:
    document = calibration.to_document()
    with pytest.raises(CatalogueError, match="has kind 'other'"):
        read_calibration({**document, "kind": "other"})
    entry = document["engines"][0]
    with pytest.raises(CatalogueError, match=r"engines\[0\].precision is 'fp3'"):
        read_calibration({**document, "engines": [{**entry, "precision": "fp3"}]})
    broken = {**entry, "constants": {**entry["constants"], "memory_efficiency": 0.0}}
    with pytest.raises(CatalogueError, match=r"memory_efficiency is 0\.0"):
        read_calibration({**document, "engines": [broken]})
    with pytest.raises(CatalogueError, match="second entry"):
        read_calibration({**document, "engines": [entry, entry]})


def test_an_engine_nobody_measured_gets_the_pooled_constants_or_is_refused(calibration: Calibration) -> None:
    instance = Instance(model=default().model("llama-3.1-70b"), gpu=default().gpu("a100"), tensor=4)
    assert calibration.pooled is not None
    assert calibration.time_model(instance).constants == calibration.pooled.constants
    with pytest.raises(UnknownNameError, match=r"llama-3\.1-70b a100-80gb"):
        replace(calibration, pooled=None).time_model(instance)


def test_a_backend_must_be_named_where_several_were_measured(calibration: Calibration) -> None:
    key, fitted = next(iter(calibration.engines.items()))
    both = replace(calibration, engines={key: fitted, replace(key, backend="other"): fitted})
    with pytest.raises(SettingError, match="backend"):
        both.find(model=key.model, gpu=key.gpu)
    found = both.find(model=key.model, gpu=key.gpu, backend="other")
    assert found is not None
    assert found[0] == EngineKey(model=key.model, gpu=key.gpu, backend="other", precision=key.precision)


@pytest.mark.parametrize("field", ["compute_efficiency", "memory_efficiency", "kv_factor"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_constants_that_cannot_be_are_refused_by_name(field: str, value: float) -> None:
    plain = CalibratedConstants(
        compute_efficiency=0.5,
        memory_efficiency=0.5,
        kv_factor=1.0,
        layer_seconds=0.0,
        sequence_seconds=0.0,
        tensor_penalty=0.0,
    )
    with pytest.raises(SettingError, match=field):
        replace(plain, **{field: value})


def test_without_overheads_the_calibrated_model_is_the_roofline() -> None:
    instance = Instance(model=default().model("opt-13b"), gpu=default().gpu("a100"), tensor=2)
    own = instance.constants
    calibrated = Calibrated(
        instance,
        CalibratedConstants(
            compute_efficiency=own.compute_efficiency,
            memory_efficiency=own.memory_efficiency,
            kv_factor=1.0,
            layer_seconds=own.fixed_seconds / instance.model.layers,
            sequence_seconds=0.0,
            tensor_penalty=own.tensor_penalty,
            half_efficiency_tokens=own.half_efficiency_tokens,
        ),
    )
    roofline = Roofline(instance)
    for batch in (
        BatchShape(chunks=(Chunk(0, 512), Chunk(300, 40))),
        BatchShape(decode_sequences=32, decode_context_tokens=32 * 800),
        BatchShape(chunks=(Chunk(0, 256),), decode_sequences=8, decode_context_tokens=4000),
    ):
        assert calibrated.iteration_seconds(batch).seconds == pytest.approx(
            roofline.iteration_seconds(batch).seconds, rel=1e-12
        )
    for steps in (1, 7, 400):
        stepped = sum(
            calibrated.iteration_seconds(
                BatchShape(decode_sequences=16, decode_context_tokens=16 * (100 + step))
            ).seconds
            for step in range(steps)
        )
        assert calibrated.decode_window(16, 1600, steps) == pytest.approx(stepped, rel=1e-9)
