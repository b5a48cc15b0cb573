"""Everything that was measured, as one calibration: tables of rows and recorded runs."""

from __future__ import annotations

from collections.abc import Sequence

from disagg_engine.catalogue import Catalogue
from disagg_engine.timemodel.calibration import Calibration
from disagg_simulator.errors import MeasurementError

from .fitting import RULE, calibrate
from .run_fit import TRAINING_SHARE, calibrate_run
from .runs import EngineRun
from .silicon import Silicon


def calibrate_all(silicon: Sequence[Silicon], runs: Sequence[EngineRun], catalogue: Catalogue) -> Calibration:
    """Constants for every measured engine, pooled ones if there are tables.

    Raises MeasurementError where two files measure the same engine in ways that can't be fitted together.
    """
    rows = [row for table in silicon for row in table.rows]
    tables = calibrate(rows, catalogue) if rows else Calibration(engines={})
    engines = dict(tables.engines)
    for run in runs:
        if run.settings.engine in engines:
            problem = f"{run.settings.engine} is measured in another file too; calibrate on one of them"
            raise MeasurementError(source=run.source, line=None, problem=problem)
        engines[run.settings.engine] = calibrate_run(run, catalogue)
    rules = [RULE] if rows else []
    if runs:
        rules.append(f"of each run the last {1 - TRAINING_SHARE:.0%} of the requests, by arrival, are held out")
    return Calibration(
        engines={engine: engines[engine] for engine in sorted(engines, key=str)},
        pooled=tables.pooled,
        sources=(*(table.source for table in silicon), *(run.source for run in runs)),
        rule="; ".join(rules),
    )
