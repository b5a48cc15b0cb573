"""Constants from one recorded run, found by running the batching loop itself.

No line of a run says how long an iteration took, but every line depends on all iterations of its time. So the loop is
run over the recorded arrivals with the engine's own settings, and the constants are those whose requests come out like
the measured ones: residuals are log(modelled / measured) of TPOT and of end to end time, over the first share of the
requests in order of arrival. The rest is held out: it takes part in the simulated run, as it took part in the real one,
but its times never enter the fit. A run on one GPU at one precision says nothing about tensor parallelism or KV read
less well than weights, so those constants stay at their priors.

Preemptions make the run's outcome jump by small amounts as constants change; the steps by which the fit feels its way
are wide enough to see past them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from disagg_engine.batching import Admission, BatchingConfig, BatchingLoop, BatchPolicy
from disagg_engine.catalogue import Catalogue
from disagg_engine.kv import BlockLedger, CountingLedger, KvLedger
from disagg_engine.timemodel import TimeModel
from disagg_engine.timemodel.calibrated import Calibrated, CalibratedConstants
from disagg_engine.timemodel.calibration import Fit, Fitted, rounded

from .deviation import errors_of
from .fitting import CONSTANTS, PULL
from .loops import Arrival, Times, replay
from .runs import EngineRun, EngineSettings, RunRequest
from .steady import instance_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TRAINING_SHARE = 0.5
FITTED = ("compute_efficiency", "memory_efficiency", "layer_seconds", "sequence_seconds")
_STEP = 0.02
_SOFT = 0.1
_MOST_RUNS = 12


def training(run: EngineRun) -> int:
    """How many requests, the first in order of arrival, the fit may see."""
    return max(1, int(len(run.requests) * TRAINING_SHARE))


def simulate_run(run: EngineRun, time_model: TimeModel) -> Times:
    """The run's requests through the batching loop with the engine's settings.

    Admission is vLLM's: what fits now, keeping no room free, and the last admitted is thrown out when room runs out.
    Where the engine caches prefixes, each prompt has keys of its own: nothing is shared between requests, whose texts
    are not recorded, but one that was thrown out finds what is left of its prompt.
    """
    settings = run.settings
    config = BatchingConfig(
        policy=BatchPolicy.CHUNKED if settings.chunked_prefill else BatchPolicy.PREFILL_FIRST,
        admission=Admission.PREEMPT,
        chunk_tokens=settings.max_batched_tokens,
        max_batched_tokens=settings.max_batched_tokens,
        max_sequences=settings.max_sequences,
        watermark=0.0,
    )
    ledger: KvLedger
    if settings.prefix_caching:
        ledger = BlockLedger(capacity_tokens=settings.kv_tokens, block_tokens=settings.block_tokens)
    else:
        ledger = CountingLedger(capacity_tokens=settings.kv_tokens, block_tokens=settings.block_tokens)
    loop = BatchingLoop(config=config, time_model=time_model, ledger=ledger, event_skipping=True)
    return replay(loop, [_arrival(place, request, settings) for place, request in enumerate(run.requests)])


def _arrival(place: int, request: RunRequest, settings: EngineSettings) -> Arrival:
    blocks = request.input_tokens // settings.block_tokens if settings.prefix_caching else 0
    return Arrival(
        seconds=request.arrival_seconds,
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        block_keys=tuple((place, block) for block in range(blocks)),
    )


def calibrate_run(run: EngineRun, catalogue: Catalogue) -> Fitted:
    """Constants from the first requests of the run; see the module's docstring."""
    import numpy as np
    from scipy.optimize import least_squares

    instance = instance_of(run.settings.engine, tensor=run.settings.tensor, catalogue=catalogue)
    seen = training(run)
    requests = run.requests[:seen]
    free = [constant for constant in CONSTANTS if constant.name in FITTED]
    prior = {constant.name: constant.prior for constant in CONSTANTS}
    prior["kv_factor"] = 1.0
    centre = np.log([constant.prior for constant in free])
    widths = np.array([constant.width for constant in free])
    measured = np.log(_outcome([(request.tpot_seconds, request.end_to_end_seconds) for request in requests]))

    def constants(values: NDArray[np.float64]) -> CalibratedConstants:
        found = {constant.name: float(np.exp(value)) for constant, value in zip(free, values, strict=True)}
        return CalibratedConstants(**{**prior, **found})

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        times = simulate_run(run, Calibrated(instance, constants(values)))
        modelled = np.log(_outcome(list(zip(times.tpot[:seen], times.end_to_end[:seen], strict=True))))
        return np.concatenate([modelled - measured, PULL * (values - centre) / widths])

    found = least_squares(
        residuals,
        centre,
        bounds=(np.log([constant.low for constant in free]), np.log([constant.high for constant in free])),
        loss="soft_l1",
        f_scale=_SOFT,
        x_scale=widths,
        diff_step=_STEP,
        max_nfev=_MOST_RUNS,
    )
    fitted = CalibratedConstants(**{name: rounded(value) for name, value in asdict(constants(found.x)).items()})
    return Fitted(constants=fitted, fit=_fit(run, Calibrated(instance, fitted), requests))


def _outcome(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """TPOT, then end to end times; answers of one token have no TPOT."""
    return [tpot for tpot, _ in pairs if tpot == tpot] + [whole for _, whole in pairs]


def _fit(run: EngineRun, time_model: TimeModel, requests: Sequence[RunRequest]) -> Fit:
    times = simulate_run(run, time_model)
    pairs = [
        (modelled, request.tpot_seconds)
        for modelled, request in zip(times.tpot, requests, strict=False)
        if request.output_tokens > 1
    ]
    errors = errors_of([modelled for modelled, _ in pairs], [measured for _, measured in pairs])
    inputs = [request.input_tokens for request in requests]
    outputs = [request.output_tokens for request in requests]
    return Fit(
        rows=len(requests),
        mape=rounded(errors.mape) if errors else 0.0,
        concurrency=(1, run.settings.max_sequences),
        input_tokens=(min(inputs), max(inputs)),
        output_tokens=(min(outputs), max(outputs)),
        tensor=(run.settings.tensor, run.settings.tensor),
    )
