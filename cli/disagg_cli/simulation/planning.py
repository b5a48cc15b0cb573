"""From flags to a planner in the loop: the planner's own decision, on the profile of the simulated instances."""

from __future__ import annotations

import argparse

from disagg_cli.errors import UsageError
from disagg_contract.config import Predictor as PredictorName
from disagg_contract.labels import Role
from disagg_engine.errors import EngineError
from disagg_engine.profile import compute_profile
from disagg_planner.core.forecast import LastValue, Predictor
from disagg_planner.core.interpolation import ProfileTable
from disagg_planner.core.settings import RoleSettings, Settings
from disagg_simulator.deployment import Deployment, Group, Mode
from disagg_simulator.planner import PlannerSetup

DEFAULT_INTERVAL_SECONDS = 30.0


def build_planner(arguments: argparse.Namespace, deployment: Deployment) -> PlannerSetup | None:
    """The planner of a command line, None where none is asked for. Raises `UsageError`."""
    most = {Role.PREFILL: arguments.prefill_max, Role.DECODE: arguments.decode_max}
    if not any(most.values()):
        return None
    if deployment.mode is not Mode.DISAGGREGATED:
        flag = "--prefill-max" if arguments.prefill_max else "--decode-max"
        raise UsageError(f"{flag} is for disaggregated deployments; the mode is {deployment.mode}")
    groups = {Role.PREFILL: deployment.prefill[0], Role.DECODE: deployment.decode[0]}
    for role, group in groups.items():
        if most[role] and most[role] < group.replicas:
            raise UsageError(f"--{role}-max is {most[role]}, but --{role} starts with {group.replicas}")
    settings = Settings(
        slo_ttft_seconds=arguments.ttft,
        slo_tpot_seconds=arguments.tpot,
        roles={role: _bounds(group, most[role]) for role, group in groups.items()},
        interval_seconds=arguments.planner_interval or DEFAULT_INTERVAL_SECONDS,
        startup_seconds=arguments.startup or 0.0,
    )
    prefill, decode = groups[Role.PREFILL], groups[Role.DECODE]
    try:
        profile = compute_profile(
            prefill=prefill.instance,
            decode=decode.instance,
            prefill_batching=prefill.batching,
            decode_batching=decode.batching,
        )
    except EngineError as error:
        raise UsageError(str(error)) from None
    return PlannerSetup(settings=settings, table=ProfileTable(profile), predictor=_predictor(arguments.predictor))


def _bounds(group: Group, most: int | None) -> RoleSettings:
    gpus = group.instance.gpus
    if most is None:
        return RoleSettings(scaled=False, minimum=group.replicas, maximum=group.replicas, gpus=gpus)
    return RoleSettings(maximum=most, gpus=gpus)


def _predictor(name: str) -> Predictor:
    if name == PredictorName.CONSTANT:
        return LastValue()
    from disagg_planner.core.arima import arima_predictor

    return arima_predictor()
