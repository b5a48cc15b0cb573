"""Which instance takes a request: the cluster's rules on one whole number an instance.

The load of an instance is (amount, requests): the amount is prompt tokens for prefill, KV blocks of prompts for decode
and colocated. The pair is kept as amount · 2**32 + requests, so that the least loaded is a plain minimum.
"""

from __future__ import annotations

from random import Random


def least(load: list[int], rng: Random) -> int:
    """Place of the least load; among equals one by lot, drawn as the router's policies draw."""
    if len(load) == 2:
        one, other = load
        if one != other:
            return 0 if one < other else 1
    lowest = min(load)
    equals = load.count(lowest)
    if equals == 1:
        return load.index(lowest)
    return [place for place, amount in enumerate(load) if amount == lowest][int(rng.random() * equals)]
