"""What one instance can do, measured or computed beforehand: the planner's knowledge of the hardware.

The engine computes a profile from its time model (and later ``disagg profile`` measures one); the planner interpolates
in it. Two tables, because the phases scale apart:

- prefill, over input length: seconds of one prompt on an idle instance, and prompt tokens per second when prompts queue
  back to back in full batches;
- decode, over context length and batch: seconds of one step and tokens per second of the instance. ``batch`` ends at
  what the KV room carries.

Rows are sorted; a planner clamps outside of them and never extrapolates.
"""

from dataclasses import dataclass
from typing import Final

from disagg_contract.documents import decode, encode

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """``ttft_seconds`` without queueing; ``tokens_per_second`` of an instance that is never idle."""

    input_tokens: int
    ttft_seconds: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """One step with ``batch`` sequences of ``context_tokens`` each."""

    context_tokens: int
    batch: int
    tpot_seconds: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Profile of one deployment's instances. Prefill and decode may run on different GPUs and parallelism."""

    model: str
    prefill_gpu: str
    decode_gpu: str
    prefill_tensor: int
    prefill_pipeline: int
    decode_tensor: int
    decode_pipeline: int
    kv_capacity_tokens: int
    kv_bytes_per_token: float
    prefill: tuple[PrefillPoint, ...]
    decode: tuple[DecodePoint, ...]
    source: str = "roofline"
    version: int = SCHEMA_VERSION

    def to_json(self) -> bytes:
        return encode(self)

    @staticmethod
    def from_json(raw: bytes | str, *, what: str = "profile") -> "Profile":
        return decode(raw, Profile, what=what)
