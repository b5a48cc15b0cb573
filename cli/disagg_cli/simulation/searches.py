"""A parsed command line, searched for its goodput."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from math import isfinite
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.simulation.loads import build_source, requests_of
from disagg_cli.simulation.runs import options_of, slo_of
from disagg_contract import __version__
from disagg_engine.errors import EngineError
from disagg_simulator.deployment import Deployment
from disagg_simulator.errors import SimulatorError
from disagg_simulator.goodput import DEFAULT_GROWTH, Goodput, Search, Trial, find_goodput
from disagg_simulator.report import deployment_to_json
from disagg_simulator.trials import Source, Trials

INSTANCE_REQUESTS = 500
"""Requests of a trial for each instance at least, so that large deployments get beyond their start-up too."""


def search_goodput(arguments: argparse.Namespace, deployment: Deployment) -> tuple[Goodput, str]:
    """The goodput of a deployment under the load of the flags, and what that load is called. Raises `UsageError`."""
    if arguments.concurrency:
        raise UsageError("--concurrency is a closed loop, which has no rate to search")
    if arguments.prefill_max or arguments.decode_max:
        raise UsageError("goodput is that of a fleet of one size; leave out --prefill-max and --decode-max")
    source = build_source(arguments)
    instances = sum(group.replicas for group in deployment.groups)
    requests = max(requests_of(arguments, deployment.mode), INSTANCE_REQUESTS * instances)
    growth = DEFAULT_GROWTH
    if arguments.trace:
        requests = len(source(1.0, arguments.requests or 2**62))
    elif arguments.requests:
        requests = arguments.requests
    if arguments.trace or arguments.requests:
        growth = 1
    trials = Trials(
        deployment, source, slo_of(arguments), seed=arguments.seed, options=options_of(arguments, deployment)
    )
    try:
        search = Search(
            target=arguments.target,
            tolerance=arguments.tolerance,
            start=arguments.start,
            requests=requests,
            growth=growth,
        )
        found = find_goodput(trials, search)
    except (EngineError, SimulatorError) as error:
        raise UsageError(str(error)) from None
    if found.unbounded:
        raise UsageError(
            f"{requests} requests meet the promises however fast they come, so that there is no highest rate; more "
            "--requests, tighter promises or longer answers would show one"
        )
    return found, _named(arguments, source)


def _named(arguments: argparse.Namespace, source: Source) -> str:
    """What the load is called, whatever its rate."""
    return str(arguments.workload) if arguments.workload else source(1.0, 1).name


def trials_of(arguments: argparse.Namespace, deployment: Deployment) -> Trials:
    """Trials of a deployment under the load of the flags."""
    source = build_source(arguments)
    return Trials(deployment, source, slo_of(arguments), seed=arguments.seed, options=options_of(arguments, deployment))


def to_json(found: Goodput, deployment: Deployment, arguments: argparse.Namespace, workload: str) -> dict[str, Any]:
    """The answer as JSON values; where it is infeasible, the attainment is that of the nearest miss."""
    shown = found.best or found.nearest
    return {
        "versions": {"disagg": __version__},
        "seed": arguments.seed,
        "workload": workload,
        "deployment": deployment_to_json(deployment),
        "first_token": deployment.first_token.value,
        "slo": asdict(slo_of(arguments)),
        "target": found.search.target,
        "feasible": not found.infeasible,
        "goodput_requests_per_second": found.requests_per_second,
        "goodput_per_gpu": found.requests_per_second / deployment.gpus,
        "gpus": deployment.gpus,
        "attainment": asdict(shown.attainment),
        "nearest_miss": _trial(found.nearest) if found.infeasible else None,
        "interval_requests_per_second": [found.low, found.high if isfinite(found.high) else None],
        "requests": shown.requests,
        "requests_over_context": shown.over_context,
        "evaluations": found.evaluations,
        "trials": [_trial(trial) for trial in found.trials],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "rate": trial.rate,
        "requests": trial.requests,
        "attainment": asdict(trial.attainment),
        "attainment_interval": [trial.low, trial.high],
        "stable": trial.stable,
    }
