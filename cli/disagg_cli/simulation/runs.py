"""A parsed command line, simulated."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from disagg_cli.errors import UsageError
from disagg_cli.simulation.deployments import build_deployment
from disagg_cli.simulation.loads import build_load
from disagg_cli.simulation.planning import build_planner
from disagg_engine.errors import EngineError
from disagg_load.report import Slo
from disagg_simulator.deployment import Deployment
from disagg_simulator.errors import SimulatorError
from disagg_simulator.options import Options
from disagg_simulator.recording import Recording
from disagg_simulator.report import Result, build_result
from disagg_simulator.simulate import simulate

SERIES_REQUESTS = 10_000
"""Up to so many requests the occupancy of KV over time is recorded too, which the simulator's fast lanes don't do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One simulation and what came of it."""

    recording: Recording
    result: Result


def slo_of(arguments: argparse.Namespace) -> Slo:
    """What is promised."""
    return Slo(ttft_seconds=arguments.ttft, tpot_seconds=arguments.tpot)


def options_of(
    arguments: argparse.Namespace, deployment: Deployment, *, gaps: bool = False, series: bool = False
) -> Options:
    """How the run of a deployment is done. Raises `UsageError`."""
    until = arguments.until
    return Options(
        gaps=gaps,
        series=series,
        until_seconds=float("inf") if until is None else until,
        concurrency=arguments.concurrency or 0,
        faults=tuple(arguments.fault),
        retry=not arguments.no_retry,
        planner=build_planner(arguments, deployment),
    )


def simulate_once(arguments: argparse.Namespace, *, series: bool = False) -> Run:
    """Simulate what the flags describe. series: whatever their number of requests. Raises `UsageError`."""
    deployment = build_deployment(arguments)
    load = build_load(arguments, deployment.mode)
    try:
        recording = simulate(
            deployment,
            load,
            seed=arguments.seed,
            options=options_of(arguments, deployment, gaps=True, series=series or len(load) <= SERIES_REQUESTS),
        )
    except (EngineError, SimulatorError) as error:
        raise UsageError(str(error)) from None
    return Run(recording=recording, result=build_result(recording, slo_of(arguments)))
