"""What settings may be chosen from.

These names stand in flags, in custom resources and in results. They are apart from the settings of the programs
(:mod:`disagg_contract.config`), because a simulation needs the names alone and should not wait for the rest.
"""

from enum import StrEnum


class RoutingPolicy(StrEnum):
    KV = "kv"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"


class Predictor(StrEnum):
    ARIMA = "arima"
    CONSTANT = "constant"


class PlannerMode(StrEnum):
    ACTIVE = "active"
    ADVISORY = "advisory"


class BatchPolicy(StrEnum):
    PREFILL_FIRST = "prefill-first"
    CHUNKED = "chunked"
    ITERATION = "iteration"
    STATIC = "static"


class QueueOrder(StrEnum):
    FCFS = "fcfs"
    SHORTEST_FIRST = "shortest-first"
    PREEMPTIVE = "preemptive"


class Admission(StrEnum):
    RESERVE = "reserve"
    PREEMPT = "preempt"
