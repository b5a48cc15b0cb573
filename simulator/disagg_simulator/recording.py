"""What a run leaves behind: a few columns a request, and a few series an instance.

Everything a report needs is computed from these afterwards, so the lanes of the simulator only write numbers down.
Times are seconds of the virtual clock; NaN means that it never happened. A request's time to first token splits into
queueing (arrival to prefill start), prefill (to prefill end) and transfer (to first token; 0 where the prefill emits
it), which sum to the whole by construction. After a preemption or a failure `prefill_start` and `prefill_end` are those
of the computation whose token the client got.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum

from disagg_contract.labels import Role
from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment


class Outcome(IntEnum):
    """How a request ended; the values of `Recording.outcome`.

    UNFINISHED: the run stopped before it was done. REFUSED: larger than the pool. FAILED: lost to a fault.
    """

    UNFINISHED = 0
    COMPLETED = 1
    REFUSED = 2
    FAILED = 3


@dataclass(slots=True, kw_only=True)
class Gaps:
    """Times between neighbouring tokens of a request: `count[i]` gaps of `seconds[i]` each."""

    seconds: array[float] = field(default_factory=lambda: array("d"))
    count: array[int] = field(default_factory=lambda: array("q"))

    def add(self, seconds: float, count: int) -> None:
        """Note `count` gaps of that length."""
        self.seconds.append(seconds)
        self.count.append(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """What the planner decided for one role, and why. `needed` is None where it held for want of figures.

    reason is one of the planner's reasons; sentence is the same for people.
    """

    at_seconds: float
    role: Role
    current: int
    needed: int | None
    target: int
    reason: str
    sentence: str


@dataclass(slots=True, kw_only=True)
class InstanceRecord:
    """One instance's run.

    started_seconds and stopped_seconds: when it existed (stopped: NaN where it lived to the end). busy_seconds: time
    the first pipeline stage worked. peak_kv_tokens and kv_dropped tell of KV that was pushed here: the most room asked
    for at a time, above the capacity in an overrun, and how often KV was lost for want of it. The series hold one entry
    a recorded change: at `series_seconds`, the instance had `series_running` sequences, `series_waiting` in its queue
    and `series_kv_tokens` of KV in use; and one entry an iteration (or window of equal decode iterations) in the
    `slice_*` columns, for timelines: prompt tokens computed and sequences decoded in it. They stay empty unless
    `Options.series` asks for them.
    """

    name: str
    role: Role
    gpus: int
    capacity_tokens: int
    started_seconds: float = 0.0
    stopped_seconds: float = float("nan")
    busy_seconds: float = 0.0
    iterations: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    peak_kv_tokens: int = 0
    kv_dropped: int = 0
    series_seconds: array[float] = field(default_factory=lambda: array("d"))
    series_running: array[int] = field(default_factory=lambda: array("i"))
    series_waiting: array[int] = field(default_factory=lambda: array("i"))
    series_kv_tokens: array[int] = field(default_factory=lambda: array("q"))
    slice_start_seconds: array[float] = field(default_factory=lambda: array("d"))
    slice_end_seconds: array[float] = field(default_factory=lambda: array("d"))
    slice_prompt_tokens: array[int] = field(default_factory=lambda: array("i"))
    slice_sequences: array[int] = field(default_factory=lambda: array("i"))


def _nans(count: int) -> array[float]:
    return array("d", [float("nan")]) * count


@dataclass(slots=True, kw_only=True, eq=False)
class Recording:
    """The run of `requests` through `deployment`. Columns have one entry a request, in order of arrival.

    prefill_instance and decode_instance index `instances` (−1: none; equal where colocated). tokens: output tokens that
    the client got. end_seconds: the virtual time at which the run ended. gaps: None unless asked for.
    transfer_tokens: tokens whose KV crossed the link. retries: how often a request was lost with an instance and, where
    the options say so, started again. decisions: the planner's, where there was one.
    """

    deployment: Deployment
    requests: Columns
    seed: int
    prefill_start: array[float]
    prefill_end: array[float]
    first_token: array[float]
    finish: array[float]
    prefill_instance: array[int]
    decode_instance: array[int]
    tokens: array[int]
    outcome: bytearray
    instances: list[InstanceRecord] = field(default_factory=list)
    gaps: Gaps | None = None
    end_seconds: float = 0.0
    transfer_tokens: int = 0
    retries: int = 0
    decisions: list[ScalingDecision] = field(default_factory=list)

    @classmethod
    def empty(cls, deployment: Deployment, requests: Columns, *, seed: int, gaps: bool = False) -> Recording:
        """A recording in which nothing has happened yet."""
        count = len(requests)
        return cls(
            deployment=deployment,
            requests=requests,
            seed=seed,
            prefill_start=_nans(count),
            prefill_end=_nans(count),
            first_token=_nans(count),
            finish=_nans(count),
            prefill_instance=array("h", [-1]) * count,
            decode_instance=array("h", [-1]) * count,
            tokens=array("i", [0]) * count,
            outcome=bytearray(count),
            gaps=Gaps() if gaps else None,
        )
