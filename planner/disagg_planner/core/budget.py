"""Keeping both groups within the GPUs that a deployment may use.

When what is wanted does not fit, both groups shrink in proportion (rounded down; what is left over goes to decode, then
to prefill), but never below their minimum. Two rules on top. A group that wants more must not get less than it has
because the other one wants more still: then it keeps what it has and the other takes the rest. And when even that
would shrink a group that wants to grow, neither moves. The result is never above the budget as long as the minima fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One group: instances it has and wants, GPUs of each, and its minimum."""

    current: int
    wanted: int
    gpus: int
    minimum: int

    @property
    def grows(self) -> bool:
        return self.wanted > self.current


def fit(prefill: Leg, decode: Leg, budget: int) -> tuple[int, int]:
    """(prefill, decode) instances within `budget` GPUs; 0 means no bound."""
    if budget <= 0 or prefill.wanted * prefill.gpus + decode.wanted * decode.gpus <= budget:
        return prefill.wanted, decode.wanted
    p, d = _shrink(prefill, decode, budget)
    if prefill.current * prefill.gpus + decode.current * decode.gpus > budget:
        return p, d
    if prefill.grows and p < prefill.current:
        p = prefill.current
        d = min(decode.wanted, max(decode.minimum, (budget - p * prefill.gpus) // decode.gpus))
    elif decode.grows and d < decode.current:
        d = decode.current
        p = min(prefill.wanted, max(prefill.minimum, (budget - d * decode.gpus) // prefill.gpus))
    undercut = (prefill.grows and p < prefill.current) or (decode.grows and d < decode.current)
    if undercut or p * prefill.gpus + d * decode.gpus > budget:
        return prefill.current, decode.current
    return p, d


def _shrink(prefill: Leg, decode: Leg, budget: int) -> tuple[int, int]:
    share = budget / (prefill.wanted * prefill.gpus + decode.wanted * decode.gpus)
    room_for_prefill = (budget - decode.minimum * decode.gpus) // prefill.gpus
    p = min(max(math.floor(prefill.wanted * share), prefill.minimum), max(room_for_prefill, 0))
    d = min(decode.wanted, max((budget - p * prefill.gpus) // decode.gpus, 0))
    p = min(prefill.wanted, max((budget - d * decode.gpus) // prefill.gpus, 0))
    return p, d
