"""A lane for colocated instances that reuse prefixes behind a router: the cluster's rules with less bookkeeping.

Request for request the cluster lane builds what pods need: requests, sequences, iterations, works, emissions. Where
whole prompts go before decodes and room is reserved, nothing of that decides anything. An instance is then a queue, one
prompt batch or one window of decode steps, and a heap of the steps at which its sequences end; its ledger is a count
and the runs of blocks that can be found. Routing is the router's own choice, as in the cluster lane, and all numbers
are equal to that lane's (to 1e-9 s), which is tested on random workloads.

    runs       blocks of a workload's prompts that are always wanted together
    ledger     one instance's KV room, in runs
    instance   one instance: arrivals cut its window, prompts go first
    lane       the instances behind the router's choice, on one heap; `applies` says to which runs
"""

from disagg_simulator.prefixes.lane import applies, simulate_prefixes

__all__ = ["applies", "simulate_prefixes"]
