"""Requests in, recording out: the one entry to all lanes of the simulator."""

from __future__ import annotations

from disagg_load.columns import Columns
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.deployment import Deployment
from disagg_simulator.fast import applies, simulate_fast
from disagg_simulator.options import DEFAULTS, Lane, Options
from disagg_simulator.recording import Recording


def simulate(deployment: Deployment, requests: Columns, *, seed: int, options: Options = DEFAULTS) -> Recording:
    """Run `requests` through `deployment`.

    seed: of ties in the routing; the same seed gives the same bytes. Raises DeploymentError, OptionError (also for the
    fast lane where it does not apply), and ModelDoesNotFitError where the model leaves no room for KV.
    """
    if options.lane is Lane.FAST or (options.lane is Lane.AUTO and applies(deployment, requests, options)):
        return simulate_fast(deployment, requests, seed=seed, options=options)
    return simulate_cluster(deployment, requests, seed=seed, options=options)
