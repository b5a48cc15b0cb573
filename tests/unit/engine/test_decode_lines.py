"""Closed forms of decode windows against plain stepping."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_engine.timemodel import DecodeLine, line_at, steps_within, window_seconds

# A bend, a falling piece (measured tables have them) and a rising end.
LINES = (DecodeLine(1000.0, 0.02, 1e-6), DecodeLine(2500.5, 0.023, -2e-6), DecodeLine(math.inf, 0.0155, 1e-6))


def stepped(sequences: int, context: int, steps: int) -> list[float]:
    """When each step ends."""
    ends, now = [], 0.0
    for step in range(steps):
        at = context + step * sequences
        now += line_at(LINES, at).step_seconds(at)
        ends.append(now)
    return ends


@given(st.integers(1, 300), st.integers(0, 4000), st.integers(0, 300))
def test_window_equals_stepping(sequences: int, context: int, steps: int) -> None:
    expected = stepped(sequences, context, steps)[-1] if steps else 0.0
    found = window_seconds(LINES, sequences=sequences, context_tokens=context, steps=steps)
    assert found == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 300), st.integers(0, 4000), st.floats(0.0, 5.0), st.integers(0, 300))
def test_steps_within_a_span_equal_stepping(sequences: int, context: int, seconds: float, limit: int) -> None:
    ends = stepped(sequences, context, limit)
    steps, taken = steps_within(LINES, sequences=sequences, context_tokens=context, seconds=seconds, limit=limit)
    assert taken <= seconds + 1e-9
    assert taken == pytest.approx(ends[steps - 1] if steps else 0.0, abs=1e-9)
    assert steps == limit or ends[steps] > seconds - 1e-9


def test_a_span_that_ends_with_a_step_counts_it() -> None:
    line = (DecodeLine(math.inf, 0.25, 0.0),)
    assert steps_within(line, sequences=4, context_tokens=0, seconds=1.0, limit=10) == (4, 1.0)
    assert steps_within(line, sequences=4, context_tokens=0, seconds=0.2, limit=10) == (0, 0.0)
    assert steps_within(line, sequences=4, context_tokens=0, seconds=9.0, limit=10) == (10, 2.5)
