"""A deployment as its pods are: one batching loop an instance, a link between the roles, one heap of events.

What flows in are requests, faults and decisions of the planner; what flows out is the recording. The loops, ledgers,
time models, routing choice and planner are the pods' own, so this lane works with every policy and ledger and is what
the flat arrays of the fast lane must equal.

Order at equal times, by rule: finished iterations first, in order of the instances' numbers (what the end of one
causes elsewhere, the decode leg of a prefilled prompt for one, happens at once); then what happens to instances
(faults, starts, the planner's tick); then arrivals of KV, in the order their transfers were told; then requests, in
their order; then the plans of iterations, in order of the instances' numbers. A transfer that takes no time has ended
before anything else happens at that time.
"""

from disagg_simulator.cluster.lane import simulate_cluster
from disagg_simulator.cluster.links import link_named

__all__ = ["link_named", "simulate_cluster"]
