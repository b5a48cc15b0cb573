"""Whole deployments under a virtual clock: plan here, then see it happen in the cluster.

The batching loop, time model, routing choice and planner decision are those of the pods; this package brings them
together on a heap of events instead of a network, and reports what a client would have seen.

    deployment   what is simulated            `Deployment`, `Group`, `Link`
    options      how a run is done            `Options`, `Fault`
    simulate     requests in, recording out   `simulate(deployment, requests, seed=…)`
    recording    what a run leaves behind     `Recording`: columns a request, series an instance
    report       figures that people compare  `Result`
    goodput      the highest rate that holds both SLOs

Everything is pure: no I/O, no clock, and randomness only from the seed that is handed in, so the same seed gives the
same bytes.
"""
