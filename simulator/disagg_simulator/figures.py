"""A recording's columns as arrays: latencies, and who met which objective.

All arrays have one entry a request that arrived before the run ended, in order of arrival; what never happened is NaN.
A request that was refused, lost or not finished misses every objective. An answer of one token has no time per output
token and meets that objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disagg_load.report import Slo
from disagg_simulator.recording import Outcome, Recording
from disagg_simulator.statistics import Bools, Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Figures:
    """Seconds of each request; `completed` says which were answered in full.

    over_context: requests whose prompt and answer together exceed the model's context. Pods refuse them with status
    400; a simulation serves them like any other where they fit into the KV room.
    """

    arrival: Floats
    queueing: Floats
    prefill: Floats
    transfer: Floats
    ttft: Floats
    tpot: Floats
    finish: Floats
    tokens: NDArray[np.int32]
    outcome: NDArray[np.uint8]
    over_context: int

    @classmethod
    def of(cls, recording: Recording) -> Figures:
        """The figures of a recording. Requests that a run cut off at some time never saw are left out."""
        arrival = _array(recording.requests.arrival_seconds)
        outcome = np.frombuffer(recording.outcome, dtype=np.uint8)
        seen = slice(0, int(np.searchsorted(arrival, recording.end_seconds, side="right")))
        if outcome[seen.stop :].any():
            seen = slice(0, arrival.size)
        arrival, outcome = arrival[seen], outcome[seen]
        start, end, first, finish = (
            _array(column)[seen]
            for column in (
                recording.prefill_start,
                recording.prefill_end,
                recording.first_token,
                recording.finish,
            )
        )
        tokens = np.frombuffer(recording.tokens, dtype=np.int32)[seen]
        many = tokens > 1
        tpot = np.full(arrival.size, np.nan)
        tpot[many] = (finish[many] - first[many]) / (tokens[many] - 1)
        return cls(
            arrival=arrival,
            queueing=start - arrival,
            prefill=end - start,
            transfer=first - end,
            ttft=first - arrival,
            tpot=tpot,
            finish=finish,
            tokens=tokens,
            outcome=outcome,
            over_context=_over_context(recording, arrival.size),
        )

    @property
    def completed(self) -> Bools:
        """Which requests were answered in full."""
        answered: Bools = self.outcome == int(Outcome.COMPLETED)
        return answered

    def count(self, outcome: Outcome) -> int:
        """How many requests ended that way."""
        return int(np.count_nonzero(self.outcome == int(outcome)))

    def met(self, slo: Slo) -> tuple[Bools, Bools]:
        """Which requests met the objective for the first token, and which the one for each further token."""
        completed = self.completed
        ttft = completed & (self.ttft <= slo.ttft_seconds)
        tpot = completed & ~(self.tpot > slo.tpot_seconds)
        return ttft, tpot


def _over_context(recording: Recording, count: int) -> int:
    prompts, answers = (
        np.frombuffer(column, dtype=np.int32)[:count].astype(np.int64)
        for column in (recording.requests.input_tokens, recording.requests.output_tokens)
    )
    longest = recording.deployment.groups[0].instance.model.max_context_tokens
    return int(np.count_nonzero(prompts + answers > longest))


def _array(column: Any) -> Floats:
    return np.frombuffer(column, dtype=np.float64)
