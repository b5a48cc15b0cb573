"""Requests in, recording out: the one entry to all lanes of the simulator.

A lane is imported by the first run that takes it: programs that simulate one thing start sooner.
"""

from __future__ import annotations

from itertools import islice
from math import inf
from operator import le

from disagg_load.columns import Columns
from disagg_load.errors import WorkloadError
from disagg_simulator.deployment import Deployment, Ledger
from disagg_simulator.options import DEFAULTS, Lane, Options
from disagg_simulator.recording import Recording


def simulate(deployment: Deployment, requests: Columns, *, seed: int, options: Options = DEFAULTS) -> Recording:
    """Run `requests` through `deployment`.

    seed: of ties in the routing; the same seed gives the same bytes. Raises DeploymentError, OptionError (also for the
    fast lanes where none applies), ModelDoesNotFitError where the model leaves no room for KV, and WorkloadError for
    requests that make no sense, by their number.
    """
    _check(requests)
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


def _check(requests: Columns) -> None:
    """Times are numbers of 0 and more that ascend, and every request has a prompt and an answer.

    In plain loops that run in C: a nanosecond matters where a million requests a second would.
    """
    if not len(requests):
        return
    times = requests.arrival_seconds
    if not (times[0] >= 0 and times[-1] < inf and all(map(le, times, islice(times, 1, None)))):
        before = 0.0
        for number, seconds in enumerate(times):
            if not before <= seconds < inf:
                raise WorkloadError(
                    f"request {number} arrives at {seconds} s, the one before it at {before} s; arrivals must be "
                    "numbers of 0 and more that ascend"
                )
            before = seconds
    for name in ("input_tokens", "output_tokens"):
        column = getattr(requests, name)
        if min(column) < 1:
            number = next(number for number, tokens in enumerate(column) if tokens < 1)
            raise WorkloadError(f"request {number} has {column[number]} {name}; it needs at least 1")
