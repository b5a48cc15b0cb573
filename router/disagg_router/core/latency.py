"""From what passed at the relay to the latencies of a request.

TTFT counts from the complete request to the first token, prefill leg and queueing included; TPOT is the time between
the first and the last token over the tokens after the first, of one choice. Both are the client's view, in the
engine's seconds: wall seconds times the worker's time scale.

An answer that is not streamed shows its tokens all at once. Then only the worker knows: it says how long its leg took
to the first token, and the router adds what passed before the leg was sent. A worker that says nothing leaves the
request without TTFT and TPOT, which is better than a made-up one.
"""

from dataclasses import dataclass

from disagg_router.core.stream import StreamMeter


@dataclass(frozen=True, slots=True)
class Latency:
    """Engine seconds; None: unknown, or no such thing (one token has no TPOT)."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None


def streamed(meter: StreamMeter, *, started: float, time_scale: float, choices: int) -> Latency:
    """Latency of a stream; ``started`` on the clock that the meter was fed with."""
    if meter.first is None or meter.last is None:
        return Latency()
    after_first = meter.output_tokens / choices - 1
    tpot = (meter.last - meter.first) / after_first * time_scale if after_first > 0 else None
    return Latency((meter.first - started) * time_scale, tpot)


def reported(
    ttft_seconds: float | None, tpot_seconds: float | None, *, before_leg_seconds: float, time_scale: float
) -> Latency:
    """Latency of an answer in one piece, from the worker's report about its leg (engine seconds)."""
    if ttft_seconds is None:
        return Latency()
    return Latency(before_leg_seconds * time_scale + ttft_seconds, tpot_seconds)
