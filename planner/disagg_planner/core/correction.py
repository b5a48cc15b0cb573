"""How much slower the instances are than their profile.

k = observed / predicted latency, with queueing left out on both sides, clamped to [0.5, 2]. Observed is the time that
the instances of a role spent in iterations; predicted is the time that the profile gives for the very work they did:

- prefill: iterations · TTFT(prompt tokens an iteration). A prefill step takes an affine time in its tokens, so the mean
  step stands for all, whether prompts came alone or in batches.
- decode: iterations · TPOT(context, tokens an iteration) + recomputed prompt tokens / prefill tokens per second. The
  tokens of an iteration are its batch, so that a full batch is not taken for a slow GPU.

With p pipeline stages an instance is busy for 1/p of an iteration's latency, and a decode iteration is one of p
micro-batches.

Engines that do not export these counters fall back to mean latencies: a prompt's own prefill time against the profile's
TTFT, and the TPOT of requests against the profile's at the concurrency that Little's law gives.

With too little to go by, or a prediction that is not positive, the previous factor stays.
"""

from __future__ import annotations

from disagg_planner.core.interpolation import ProfileTable
from disagg_planner.core.observation import Observation, finite

LOWEST = 0.5
HIGHEST = 2.0
FEWEST_ITERATIONS = 5.0
FEWEST_REQUESTS = 3.0


def factor(observed: float | None, predicted: float | None, previous: float) -> float:
    """observed / predicted within [0.5, 2], or `previous` when either is unknown or not positive."""
    if observed is None or predicted is None or not observed > 0 or not predicted > 0:
        return previous
    value = finite(observed / predicted)
    return previous if value is None else min(max(value, LOWEST), HIGHEST)


def prefill_factor(table: ProfileTable, observation: Observation, *, input_tokens: float, previous: float) -> float:
    """k_TTFT of one window; `input_tokens` are the uncached ones of a mean prompt."""
    work = observation.prefill_work
    if work is not None and work.iterations >= FEWEST_ITERATIONS and work.prompt_tokens > 0:
        predicted = work.iterations * table.ttft_seconds(work.prompt_tokens / work.iterations)
        predicted /= max(table.profile.prefill_pipeline, 1)
        return factor(work.busy_seconds, predicted, previous)
    if work is None and observation.started >= FEWEST_REQUESTS:
        return factor(observation.prefill_seconds, table.ttft_seconds(input_tokens), previous)
    return previous


def decode_factor(
    table: ProfileTable,
    observation: Observation,
    *,
    context_tokens: float,
    output_tokens: float,
    instances: int,
    previous: float,
) -> float:
    """k_TPOT of one window; `instances` of decode shared the load."""
    work = observation.decode_work
    if work is not None and work.iterations >= FEWEST_ITERATIONS and work.answer_tokens > 0:
        stages = max(table.profile.decode_pipeline, 1)
        step = table.tpot_seconds(context_tokens, stages * work.answer_tokens / work.iterations) / stages
        recomputed = work.prompt_tokens / table.prefill_tokens_per_second(context_tokens)
        return factor(work.busy_seconds, work.iterations * step + recomputed, previous)
    if work is None and observation.tpot is not None and instances > 0 and observation.started >= FEWEST_REQUESTS:
        seconds = observation.tpot.mean_seconds
        batch = observation.rate * output_tokens * seconds / instances
        return factor(seconds, table.tpot_seconds(context_tokens, batch), previous)
    return previous
