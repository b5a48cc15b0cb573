"""One instance during a run: its batching loop, its KV ledger, and what the cluster knows about it."""

from __future__ import annotations

from enum import IntEnum
from math import isnan

from disagg_engine.batching import BatchingLoop, Iteration
from disagg_engine.kv import BlockLedger, CountingLedger
from disagg_engine.kv.protocol import KvLedger
from disagg_simulator.cluster.landing import LandingLedger
from disagg_simulator.deployment import Group, Ledger
from disagg_simulator.recording import Gaps, InstanceRecord

NEVER = float("inf")


class Phase(IntEnum):
    """Where an instance is in its life; only a serving one is chosen."""

    STARTING = 0
    SERVING = 1
    DRAINING = 2
    GONE = 3


class Member:
    """Mutable state of one instance; `number` counts all instances of a run.

    live: requests that have a leg or pinned KV here, in the order they came. prompts: how many of a prefill instance's
    are not done. due: when the loop next wants to be stepped, as far as the heap knows. flight: the iteration planned
    last, until it is complete. skips and gaps: what its loops are made with. landing: where pushed KV lands; None for
    pulls.
    """

    __slots__ = (
        "due",
        "flight",
        "gaps",
        "group",
        "landing",
        "ledger",
        "live",
        "loop",
        "number",
        "phase",
        "prompts",
        "pushed",
        "record",
        "role",
        "skips",
        "slowdown",
    )

    def __init__(
        self, number: int, group: Group, *, name: str, started_seconds: float, skips: bool, gaps: bool, pushed: bool
    ) -> None:
        self.number = number
        self.group = group
        self.role = group.role
        self.record = InstanceRecord(
            name=name,
            role=group.role,
            gpus=group.instance.gpus,
            capacity_tokens=group.capacity_tokens,
            started_seconds=started_seconds,
        )
        self.phase = Phase.STARTING
        self.skips = skips and not pushed
        self.gaps = gaps
        self.pushed = pushed
        self.renew()

    @property
    def stopped(self) -> bool:
        """Whether it is gone for good."""
        return not isnan(self.record.stopped_seconds)

    def renew(self) -> None:
        """A new process with nothing on it."""
        group = self.group
        ledger: KvLedger
        if group.ledger is Ledger.BLOCKS:
            ledger = BlockLedger(capacity_tokens=group.capacity_tokens, block_tokens=group.block_tokens)
        else:
            ledger = CountingLedger(capacity_tokens=group.capacity_tokens, block_tokens=group.block_tokens)
        self.landing = LandingLedger(ledger) if self.pushed else None
        self.ledger = self.landing or ledger
        self.loop = BatchingLoop(
            config=group.batching,
            time_model=group.time_model,
            ledger=self.ledger,
            event_skipping=self.skips,
            record_gaps=self.gaps,
        )
        self.live: dict[int, None] = {}
        self.prompts = 0
        self.due = NEVER
        self.flight: Iteration | None = None
        self.slowdown = 1.0

    def close_books(self, *, now: float, gaps: Gaps | None) -> None:
        """Put down what the process did, before it is gone or the run ends; an iteration under way counts in part.

        A window under way has been cut by then. gaps: the run's, which its steps belong to.
        """
        record = self.record
        counts = self.loop.counts()
        record.prefix_queried_tokens += counts.prefix_queried_tokens
        record.prefix_hit_tokens += counts.prefix_hit_tokens
        flight = self.flight
        if flight is not None:
            record.busy_seconds += max(0.0, min(now, flight.free_seconds) - flight.start_seconds)
            if flight.steps > 1:
                done = sum(end <= now for end in flight.step_ends())
                record.iterations += done
                # A static batch computes ended sequences along.
                record.output_tokens += done * min(flight.decode_sequences, counts.running)
                if gaps is not None:
                    for gap in self.loop.gaps_in_flight():
                        gaps.add(gap.seconds, gap.sequences)
        if self.landing is not None:
            record.kv_dropped += self.landing.dropped
            record.peak_kv_tokens = max(record.peak_kv_tokens, self.landing.peak_tokens)

    def note(self, now: float) -> None:
        """Add the present to the series."""
        record, counts = self.record, self.loop.counts()
        if record.series_seconds and record.series_seconds[-1] == now:
            for column in (
                record.series_seconds,
                record.series_running,
                record.series_waiting,
                record.series_kv_tokens,
            ):
                column.pop()
        record.series_seconds.append(now)
        record.series_running.append(counts.running)
        record.series_waiting.append(counts.waiting)
        record.series_kv_tokens.append(self.ledger.used_tokens)

    def slice(self, iteration: Iteration) -> None:
        """Add an iteration to the timeline."""
        record = self.record
        record.slice_start_seconds.append(iteration.start_seconds)
        record.slice_end_seconds.append(iteration.end_seconds)
        record.slice_prompt_tokens.append(iteration.prefill_tokens)
        record.slice_sequences.append(iteration.decode_sequences)
