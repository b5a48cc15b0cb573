"""The cluster lane's entry: a run with its faults and its planner."""

from __future__ import annotations

from disagg_load.columns import Columns
from disagg_simulator.cluster.faults import schedule_faults
from disagg_simulator.cluster.meter import Meter
from disagg_simulator.cluster.planning import Planning
from disagg_simulator.cluster.run import ClusterRun
from disagg_simulator.deployment import Deployment
from disagg_simulator.options import DEFAULTS, Options
from disagg_simulator.recording import Recording
from disagg_simulator.routing import Routing


def simulate_cluster(
    deployment: Deployment,
    requests: Columns,
    *,
    seed: int,
    options: Options = DEFAULTS,
    routing: Routing | None = None,
) -> Recording:
    """Run `requests` through `deployment` with the pods' own parts. `routing`: instead of the deployment's policy."""
    meter = None if options.planner is None else Meter()
    run = ClusterRun(deployment, requests, seed=seed, options=options, routing=routing, meter=meter)
    schedule_faults(run)
    if options.planner is not None and meter is not None:
        Planning(run, options.planner, meter)
    return run.run()
