"""Speculative decoding by acceptance rate.

A small draft model proposes k tokens, one after another; the model verifies them in one pass over k + 1 tokens a
sequence and keeps the longest correct prefix and one token of its own. If each proposal is accepted with probability a,
independently, a step yields on average

    E = 1 + a + … + aᵏ = (1 − aᵏ⁺¹) / (1 − a)       (Leviathan et al., ICML 2023, equation 1)

The step costs the verifying pass, priced by the time model as k + 1 new tokens a sequence, and k passes of the draft
model, each a given share of a plain decode step. Without draws a sequence has ⌊E · m⌋ tokens after m steps, which is
the mean without the noise; with draws each step's number follows from a uniform number for (request, step).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import floor
from numbers import Integral

from disagg_engine.errors import SettingError

Draw = Callable[[str, int], float]
"""A number in [0, 1) for a request and the number of its step; the same for the same arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """draft_tokens: k. acceptance: a, in [0, 1]. draft_cost: a draft pass as a share of a plain decode step."""

    draft_tokens: int
    acceptance: float
    draft_cost: float = 0.0
    draw: Draw | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.draft_tokens, Integral) and self.draft_tokens >= 1):
            raise SettingError(field="draft_tokens", value=self.draft_tokens, wanted="a whole number, at least 1")
        if not 0.0 <= self.acceptance <= 1.0:
            raise SettingError(field="acceptance", value=self.acceptance, wanted="a probability, between 0 and 1")
        if not 0.0 <= self.draft_cost < float("inf"):
            raise SettingError(field="draft_cost", value=self.draft_cost, wanted="a finite share, 0 or more")

    @property
    def expected_tokens(self) -> float:
        """Mean tokens of a step, E above: between 1 and k + 1."""
        return sum(self.acceptance**position for position in range(self.draft_tokens + 1))

    def tokens(self, request_id: str, step: int) -> int:
        """Tokens that step number `step` (from 0) of a request yields, 1 … k + 1."""
        if self.draw is None:
            expected = self.expected_tokens
            return floor(expected * (step + 1) + 1e-9) - floor(expected * step + 1e-9)
        chance, accepted = self.draw(request_id, step), 0
        # The chance that at least n proposals are accepted is aⁿ.
        while accepted < self.draft_tokens and chance < self.acceptance ** (accepted + 1):
            accepted += 1
        return 1 + accepted
