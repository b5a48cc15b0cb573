"""A replay without a server: the trace goes through the simulator and comes out as the report of a replay.

The report is made by the very code that judges real replays, from one record a request. Times between tokens are not
kept request by request, so their distribution is put in afterwards.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import isnan

from disagg_cli.errors import UsageError
from disagg_cli.simulation.deployments import build_deployment
from disagg_cli.simulation.runs import options_of
from disagg_cli.simulation.tables import describe
from disagg_engine.errors import EngineError
from disagg_load.columns import Columns
from disagg_load.records import Outcome as Ended
from disagg_load.records import RequestRecord
from disagg_load.report import ReplayFacts, Report, Slo, build_report
from disagg_load.requests import Workload
from disagg_simulator.errors import SimulatorError
from disagg_simulator.recording import Outcome, Recording
from disagg_simulator.report import build_result
from disagg_simulator.simulate import simulate

_ENDS = {
    Outcome.COMPLETED: (Ended.COMPLETED, ""),
    Outcome.UNFINISHED: (Ended.TIMEOUT, "not finished when the simulation ended"),
    Outcome.REFUSED: (Ended.STATUS, "larger than the KV room of an instance"),
    Outcome.FAILED: (Ended.BROKEN, "lost with its instance"),
}


def replay_simulated(arguments: argparse.Namespace, workload: Workload, *, slo: Slo) -> Report:
    """Simulate the workload on the deployment of the flags. Raises `UsageError`."""
    own = argparse.Namespace(**vars(arguments), ttft=slo.ttft_seconds, tpot=slo.tpot_seconds)
    deployment = build_deployment(own)
    requests = Columns.of(workload).at_rate(arguments.rate_scale)
    try:
        recording = simulate(
            deployment, requests, seed=arguments.seed, options=options_of(arguments, deployment, gaps=True)
        )
    except (EngineError, SimulatorError) as error:
        raise UsageError(str(error)) from None
    report = build_report(
        records_of(recording),
        slo=slo,
        facts=ReplayFacts(
            trace=workload.name,
            url=f"simulated: {describe(deployment)}; first token by {arguments.first_token}, {arguments.admission}",
            model=deployment.groups[0].instance.model.name,
            seed=arguments.seed,
            rate_scale=arguments.rate_scale,
            time_scale=1.0,
            planned=len(requests),
            interrupted=False,
        ),
    )
    result = build_result(recording, slo)
    return replace(report, tbt_seconds=result.tbt_seconds, requests_over_context=result.requests_over_context)


def records_of(recording: Recording) -> list[RequestRecord]:
    """One record a request, as a client of the simulated deployment would have kept it."""
    records = []
    for index, arrival in enumerate(recording.requests.arrival_seconds):
        ended, message = _ENDS[Outcome(recording.outcome[index])]
        first, finish = recording.first_token[index], recording.finish[index]
        finish = max(arrival, recording.end_seconds) if isnan(finish) else finish
        answered = ended is Ended.COMPLETED
        records.append(
            RequestRecord(
                index=index,
                scheduled_seconds=arrival,
                sent_seconds=arrival,
                finished_seconds=finish,
                outcome=ended,
                input_tokens=recording.requests.input_tokens[index],
                asked_tokens=recording.requests.output_tokens[index],
                tokens=recording.tokens[index],
                first_token_seconds=None if isnan(first) else first,
                last_token_seconds=finish if answered else None,
                message=message,
            )
        )
    return records
