"""The report on a recorded run: the whole batching loop against the engine, request by request.

Errors are told over all requests and over those that no fit has seen (`run_fit`). TTFT is also split by whether the
request had to wait: one that the engine scheduled within `PROMPT_SECONDS` of its arrival had room at once, and its TTFT
says how prompts are priced; the others' says how long the queue was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from disagg_engine.catalogue import Catalogue
from disagg_engine.errors import EngineError
from disagg_engine.instance import Instance
from disagg_engine.timemodel import TimeModel
from disagg_engine.timemodel.calibration import Calibration, EngineKey, rounded

from .deviation import Comparison, Errors, errors_of
from .loops import Times
from .report import Builder
from .run_fit import simulate_run, training
from .runs import EngineRun, RunRequest
from .steady import instance_of

PROMPT_SECONDS = 1.0

_QUANTITIES: Mapping[str, tuple[Callable[[Times], Sequence[float]], Callable[[RunRequest], float]]] = {
    "ttft_seconds": (lambda times: times.ttft, lambda request: request.ttft_seconds),
    "tpot_seconds": (lambda times: times.tpot, lambda request: request.tpot_seconds),
    "end_to_end_seconds": (lambda times: times.end_to_end, lambda request: request.end_to_end_seconds),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunErrors:
    """One time model in the loop, by quantity; TTFT also apart for requests with and without a wait."""

    name: str
    refused: str
    preemptions: int
    everything: Mapping[str, Comparison]
    held_out: Mapping[str, Comparison]
    ttft_at_once: Errors | None
    ttft_queued: Errors | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "refused": self.refused,
            "preemptions": self.preemptions,
            "all": {name: comparison.to_json() for name, comparison in self.everything.items()},
            "held_out": {name: comparison.to_json() for name, comparison in self.held_out.items()},
            "ttft_at_once": None if self.ttft_at_once is None else self.ttft_at_once.to_json(),
            "ttft_queued": None if self.ttft_queued is None else self.ttft_queued.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run and every time model that was tried on it."""

    run: EngineRun
    models: Sequence[RunErrors]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        settings = asdict(self.run.settings)
        settings["engine"] = str(self.run.settings.engine)
        return {
            "source": self.run.source,
            "settings": settings,
            "clock_offset_seconds": rounded(self.run.clock_offset_seconds),
            "requests": len(self.run.requests),
            "trained_on": training(self.run),
            "models": {model.name: model.to_json() for model in self.models},
        }


def run_report(
    run: EngineRun, *, calibration: Calibration, builders: Mapping[str, Builder], catalogue: Catalogue
) -> RunReport:
    """The report on one run. `builders` are the models besides the calibrated one."""

    def calibrated(instance: Instance, engine: EngineKey) -> TimeModel:
        return calibration.time_model(instance, backend=engine.backend)

    settings = run.settings
    instance = instance_of(settings.engine, tensor=settings.tensor, catalogue=catalogue)
    found = []
    for name, builder in {**builders, "calibrated": calibrated}.items():
        try:
            model = builder(instance, settings.engine)
        except EngineError as error:
            found.append(_refused(name, str(error)))
        else:
            found.append(_errors(name, run, simulate_run(run, model)))
    return RunReport(run=run, models=found)


def _errors(name: str, run: EngineRun, times: Times) -> RunErrors:
    requests = run.requests
    at_once = [request.scheduled_seconds - request.arrival_seconds <= PROMPT_SECONDS for request in requests]

    def ttft(wanted: bool) -> Errors | None:
        places = [place for place, value in enumerate(at_once) if value is wanted]
        return errors_of([times.ttft[place] for place in places], [requests[place].ttft_seconds for place in places])

    return RunErrors(
        name=name,
        refused="",
        preemptions=times.preemptions,
        everything=_compare(times, requests, start=0),
        held_out=_compare(times, requests, start=training(run)),
        ttft_at_once=ttft(True),
        ttft_queued=ttft(False),
    )


def _compare(times: Times, requests: Sequence[RunRequest], *, start: int) -> dict[str, Comparison]:
    found = {}
    for name, (modelled, measured) in _QUANTITIES.items():
        pairs = [
            (model, measured(request))
            for model, request in zip(modelled(times)[start:], requests[start:], strict=True)
            if isfinite(model)
        ]
        if pairs:
            found[name] = Comparison.of([model for model, _ in pairs], [real for _, real in pairs])
    return found


def _refused(name: str, reason: str) -> RunErrors:
    return RunErrors(
        name=name, refused=reason, preemptions=0, everything={}, held_out={}, ttft_at_once=None, ttft_queued=None
    )
