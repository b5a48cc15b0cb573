"""Constants from measured rows: which are held out, and how the rest is fitted.

What flows in: closed-loop rows. What flows out: `Calibration`, constants for each engine and pooled ones over all. The
model is `timemodel.calibrated` inside `steady`. Residuals are log(modelled / measured) TPOT, so that 5 ms and 200 ms
count alike, with a soft L1 loss beyond 10 %, because some rows were measured on a machine in trouble. Constants are
fitted as logarithms within physical bounds. Each fit is drawn towards a prior, the pooled one towards the reference's
roofline and an engine's towards the pooled one: `PULL` of an engine's fit weighs a constant that is a prior's width
away like a row that is off by as much, so two rows hardly move it and twenty fix it.

Held out, and never seen by any fit: of each series (rows of one engine, input, output and tensor size) every second
concurrency, in ascending order, the second first. A series of one row has nothing to hold out and is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from disagg_engine.catalogue import Catalogue
from disagg_engine.timemodel.calibrated import CalibratedConstants, Sizes, sizes_of, terms
from disagg_engine.timemodel.calibration import Calibration, EngineKey, Fit, Fitted, rounded

from .deviation import errors_of
from .silicon import Measurement
from .steady import load_of, shape, shares

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RULE = "of each series (engine, input, output, tensor) every second concurrency is held out, the second first"


class _Constant(NamedTuple):
    """A fitted constant: the prior and its width (as a logarithm), and the bounds."""

    name: str
    prior: float
    width: float
    low: float
    high: float


CONSTANTS = (
    # Large batches may run a little above the data sheet's peak, which is stated at a clock that some boards exceed.
    _Constant("compute_efficiency", 0.7, 0.7, 0.05, 1.2),
    _Constant("memory_efficiency", 0.8, 0.5, 0.1, 1.0),
    _Constant("kv_factor", 1.0, 0.7, 0.2, 4.0),
    _Constant("layer_seconds", 5e-5, 1.0, 1e-7, 1e-3),
    _Constant("sequence_seconds", 2e-5, 1.5, 1e-9, 2e-3),
    _Constant("tensor_penalty", 0.15, 1.0, 1e-3, 1.0),
)
POOLED_PULL = 0.05
PULL = 0.1
_SOFT = 0.1
"""Residual from which on a row counts less than quadratically."""


def held_out(rows: Sequence[Measurement]) -> tuple[bool, ...]:
    """For each row whether it is kept out of every fit; see the module's docstring."""
    series: dict[tuple[object, ...], set[int]] = {}
    for row in rows:
        series.setdefault(_series(row), set()).add(row.concurrency)
    ranks = {key: {value: rank for rank, value in enumerate(sorted(found))} for key, found in series.items()}
    return tuple(ranks[_series(row)][row.concurrency] % 2 == 1 for row in rows)


def _series(row: Measurement) -> tuple[object, ...]:
    return (row.engine, row.input_tokens, row.output_tokens, row.tensor)


def calibrate(rows: Sequence[Measurement], catalogue: Catalogue, *, sources: Sequence[str] = ()) -> Calibration:
    """Constants from the rows that are not held out. Raises ValueError without any."""
    training = [row for row, kept in zip(rows, held_out(rows), strict=True) if not kept]
    if not training:
        raise ValueError("there are no rows to calibrate on")
    table = Table(training, catalogue)
    pooled = fit(table, prior={constant.name: constant.prior for constant in CONSTANTS}, pull=POOLED_PULL)
    engines: dict[EngineKey, Fitted] = {}
    for engine in sorted({row.engine for row in training}, key=str):
        own = [row for row in training if row.engine == engine]
        own_table = Table(own, catalogue)
        engines[engine] = _fitted(own_table, fit(own_table, prior=asdict(pooled), pull=PULL))
    return Calibration(engines=engines, pooled=_fitted(table, pooled), sources=tuple(sources), rule=RULE)


def leave_one_out(rows: Sequence[Measurement], catalogue: Catalogue) -> dict[tuple[str, str, str], list[float]]:
    """TPOT of whole groups that the pooled fit has not seen.

    A group is (model, GPU, backend), all precisions of it. For each: the modelled TPOT of all its rows, in seconds and
    in their order, by a pooled fit to the training rows of the other groups.
    """
    kept = held_out(rows)
    found: dict[tuple[str, str, str], list[float]] = {}
    prior = {constant.name: constant.prior for constant in CONSTANTS}
    for group in sorted({group_of(row) for row in rows}):
        others = [row for row, out in zip(rows, kept, strict=True) if not out and group_of(row) != group]
        if not others:
            continue
        pooled = fit(Table(others, catalogue), prior=prior, pull=POOLED_PULL)
        found[group] = Table([row for row in rows if group_of(row) == group], catalogue).tpot_seconds(pooled)
    return found


def group_of(row: Measurement) -> tuple[str, str, str]:
    """Model, GPU and backend."""
    return (row.engine.model, row.engine.gpu, row.engine.backend)


class Table:
    """Rows as arrays: every iteration of every row's steady state in one flat batch."""

    def __init__(self, rows: Sequence[Measurement], catalogue: Catalogue) -> None:
        import numpy as np

        self.rows = rows
        self.measured = np.array([row.tpot_seconds for row in rows])
        sizes: list[Sizes] = []
        sums: list[tuple[float, ...]] = []
        for place, row in enumerate(rows):
            load = load_of(row, catalogue)
            of_row = sizes_of(load.instance)
            for share in shares(load):
                batch = shape(load, share)
                tokens = batch.prefill_tokens
                pairs = 0.5 * tokens * load.input_tokens
                sums.append((place, share.weight, tokens, pairs, share.sequences, batch.decode_context_tokens))
                sizes.append(of_row)
        columns = np.array(sums).T
        self._place = columns[0].astype(int)
        self._weight, self._tokens, self._pairs, self._sequences, self._context = columns[1:]
        self._sizes = Sizes(*np.array(sizes, dtype=float).T)

    def tpot(self, constants: CalibratedConstants) -> NDArray[np.float64]:
        """Modelled TPOT of each row, in seconds; equal to `steady_tpot_seconds` of the same model."""
        import numpy as np

        compute, memory, overhead = terms(
            constants,
            self._sizes,
            prefill_tokens=self._tokens,
            prefill_pairs=self._pairs,
            prefill_cached=0.0,
            sequences=self._sequences,
            context_tokens=self._context,
        )
        seconds = self._weight * (np.maximum(compute, memory) + overhead)
        tpot: NDArray[np.float64] = np.bincount(self._place, weights=seconds, minlength=len(self.rows)).astype(float)
        return tpot

    def tpot_seconds(self, constants: CalibratedConstants) -> list[float]:
        """The same as plain numbers."""
        return [float(value) for value in self.tpot(constants)]


def fit(table: Table, *, prior: dict[str, float], pull: float) -> CalibratedConstants:
    """The constants that fit the table best, drawn towards `prior`."""
    import numpy as np
    from scipy.optimize import least_squares

    low, high = (np.log([getattr(constant, name) for constant in CONSTANTS]) for name in ("low", "high"))
    widths = np.array([constant.width for constant in CONSTANTS])
    centre = np.log([prior[constant.name] for constant in CONSTANTS])

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        rows = np.log(table.tpot(constants_of(values)) / table.measured)
        return np.concatenate([rows, pull * (values - centre) / widths])

    start = np.clip(centre, low + 1e-6, high - 1e-6)
    found = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=_SOFT, x_scale=widths)
    return constants_of(found.x)


def constants_of(logarithms: Any) -> CalibratedConstants:
    """Constants from their logarithms, in the order of `CONSTANTS`."""
    import numpy as np

    values = {constant.name: float(np.exp(value)) for constant, value in zip(CONSTANTS, logarithms, strict=True)}
    return CalibratedConstants(**values)


def _fitted(table: Table, constants: CalibratedConstants) -> Fitted:
    rows = table.rows
    constants = CalibratedConstants(**{name: rounded(value) for name, value in asdict(constants).items()})
    errors = errors_of(table.tpot_seconds(constants), [row.tpot_seconds for row in rows])
    assert errors is not None

    def span(field: str) -> tuple[int, int]:
        values = [getattr(row, field) for row in rows]
        return min(values), max(values)

    return Fitted(
        constants=constants,
        fit=Fit(
            rows=len(rows),
            mape=rounded(errors.mape),
            concurrency=span("concurrency"),
            input_tokens=span("input_tokens"),
            output_tokens=span("output_tokens"),
            tensor=span("tensor"),
        ),
    )
