"""ARIMA models of statsmodels as candidates for `forecast.BestOf`.

Two orders compete by AICc: (0, 1, 1), exponential smoothing, which follows a level through noise, and (1, 1, 1), which
also follows a slope that persists. Both difference once, so their likelihoods are over the same data and comparable.
The history is bounded (`series.HISTORY`) and so are the iterations of the optimiser, which bounds the time of a fit to
about a tenth of a second.

A fit starts from our own parameters: statsmodels' starting values come with warnings on ordinary short series. Warnings
that are left (convergence, overflow) say nothing that the score does not say, and are silenced around the fit only.

The library takes seconds of CPU to import, so the first fit does it: until there is something to fit, at the earliest
after five intervals, a planner starts and decides without.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import partial

from disagg_planner.core.forecast import BestOf, Fit, Fitter

ORDERS: tuple[tuple[int, int, int], ...] = ((0, 1, 1), (1, 1, 1))
MOST_ITERATIONS = 50


def fit_arima(order: tuple[int, int, int], values: Sequence[float], steps: int) -> Fit:
    """Fit one order and look `steps` ahead. Raises ValueError when the series is too short or the fit breaks down."""
    import numpy as np
    from statsmodels.tsa.arima.model import ARIMA

    p, d, q = order
    free = p + q + 1
    used = len(values) - d
    if used < free + 3:
        raise ValueError(f"{len(values)} points are too few for ARIMA{order}")
    endog = np.asarray(values, dtype=float)
    variance = float(np.var(np.diff(endog, n=d))) if d else float(np.var(endog))
    start = np.array([0.1] * p + [-0.1] * q + [max(variance, 1e-9)])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        model = ARIMA(endog, order=order, trend="n")
        result = model.fit(
            start_params=start,
            cov_type="none",
            method_kwargs={"maxiter": MOST_ITERATIONS, "disp": 0, "warn_convergence": False},
        )
        path = np.asarray(result.forecast(steps), dtype=float)
        score = float(result.aic) + 2 * free * (free + 1) / (used - free - 1)
    if not math.isfinite(score):
        raise ValueError(f"ARIMA{order} has no likelihood on this series")
    return Fit(path=tuple(float(value) for value in path), score=score)


def fitters(orders: Sequence[tuple[int, int, int]] = ORDERS) -> dict[str, Fitter]:
    """Candidates by name."""
    return {f"arima{order}".replace(" ", ""): partial(fit_arima, order) for order in orders}


def arima_predictor() -> BestOf:
    """The default predictor."""
    return BestOf(fitters())
