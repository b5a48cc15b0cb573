"""What every time model shares: decode steps from their straight pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod

from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel.lines import DecodeLine, window_seconds
from disagg_engine.timemodel.shapes import BatchShape


class Windowed(ABC):
    """A time model of an instance that can say its decode steps as pieces; they are worked out once a batch size."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._known_lines: dict[int, tuple[DecodeLine, ...]] = {}

    @abstractmethod
    def _lines(self, sequences: int) -> tuple[DecodeLine, ...]:
        """The pieces for at least one sequence."""

    def decode_lines(self, sequences: int, /) -> tuple[DecodeLine, ...]:
        """See TimeModel. Raises SettingError without sequences."""
        lines = self._known_lines.get(sequences)
        if lines is None:
            if sequences < 1:
                raise SettingError(field="sequences", value=sequences, wanted="at least 1")
            lines = self._known_lines[sequences] = self._lines(sequences)
        return lines

    def decode_window(self, sequences: int, context_tokens: int, steps: int, /) -> float | None:
        """See TimeModel."""
        if self.instance.pipeline > 1:
            return None
        lines = self.decode_lines(sequences)
        return window_seconds(lines, sequences=sequences, context_tokens=context_tokens, steps=steps)


def checked_sums(batch: BatchShape) -> tuple[int, float, int]:
    """Of the chunks: new tokens, pairs Σ l·k + l²/2, cached tokens; in one pass. Refuses what `check` refuses."""
    tokens, pairs, cached = 0, 0.0, 0
    for chunk in batch.chunks:
        new, held = chunk.new_tokens, chunk.cached_tokens
        tokens += new
        cached += held
        pairs += new * (held + 0.5 * new)
    if tokens + batch.decode_sequences < 1 or batch.decode_sequences < 0 or batch.decode_context_tokens < 0:
        check(batch)
    return tokens, pairs, cached


def check(batch: BatchShape) -> None:
    """Refuse an iteration without work, or with counts below 0."""
    if batch.new_tokens < 1 or batch.decode_sequences < 0 or batch.decode_context_tokens < 0:
        raise SettingError(field="batch", value=batch, wanted="at least one new token and no negative counts")


def chunk_pairs(batch: BatchShape) -> float:
    """Pairs of a new token and one before it over the chunks: Σ l·k + l²/2 for l new tokens after k."""
    return sum(chunk.new_tokens * (chunk.cached_tokens + 0.5 * chunk.new_tokens) for chunk in batch.chunks)
