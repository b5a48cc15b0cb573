"""Requests in, recording out: the one entry to all lanes of the simulator.

A lane is imported by the first run that takes it: programs that simulate one thing start sooner.
"""

from __future__ import annotations

from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment, Ledger
from disagg_simulator.options import DEFAULTS, Lane, Options
from disagg_simulator.recording import Recording


def simulate(deployment: Deployment, requests: Columns, *, seed: int, options: Options = DEFAULTS) -> Recording:
    """Run `requests` through `deployment`.

    seed: of ties in the routing; the same seed gives the same bytes. Raises DeploymentError, OptionError (also for the
    fast lanes where none applies), and ModelDoesNotFitError where the model leaves no room for KV.
    """
    if options.lane in (Lane.AUTO, Lane.FAST):
        if deployment.groups[0].ledger is Ledger.BLOCKS:
            from disagg_simulator import prefixes

            if prefixes.applies(deployment, requests, options):
                return prefixes.simulate_prefixes(deployment, requests, seed=seed, options=options)
        from disagg_simulator import fast

        if options.lane is Lane.FAST or fast.applies(deployment, requests, options):
            return fast.simulate_fast(deployment, requests, seed=seed, options=options)
    from disagg_simulator.cluster import simulate_cluster

    return simulate_cluster(deployment, requests, seed=seed, options=options)
