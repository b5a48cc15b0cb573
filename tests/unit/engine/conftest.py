"""Shared by the engine's tests: the reference instance, simple time models, and a driver that checks as it goes.

The driver is the smallest correct driver of a `BatchingLoop`: inputs by time, engine time as `next_seconds` says. After
every step it checks what must always hold: requests are conserved (WB3), time never runs back, tokens come once each
and in order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from disagg_engine.batching import BatchingLoop, Completed, FirstToken, Iteration, Request, Transfer, Work
from disagg_engine.catalogue import Catalogue, default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, DecodeLine, IterationCost, Roofline, window_seconds


@dataclass(frozen=True)
class LinearTime:
    """A time model for tests: fixed + per_token · new tokens + per_context · tokens read back."""

    fixed: float = 0.01
    per_token: float = 0.001
    per_context: float = 0.0
    stages: int = 1
    closed_form: bool = False

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        seconds = self.fixed + self.per_token * batch.new_tokens + self.per_context * batch.reread_tokens
        return IterationCost(
            seconds=seconds,
            compute_seconds=seconds,
            memory_seconds=0.0,
            stage_seconds=seconds / self.stages,
            bound="compute",
        )

    def decode_window(self, sequences: int, context_tokens: int, steps: int, /) -> float | None:
        if not self.closed_form:
            return None
        return window_seconds(
            self.decode_lines(sequences), sequences=sequences, context_tokens=context_tokens, steps=steps
        )

    def decode_lines(self, sequences: int, /) -> tuple[DecodeLine, ...]:
        return (DecodeLine(math.inf, self.fixed + self.per_token * sequences, self.per_context),)


@dataclass
class Driver:
    """Drives one loop to idleness. `pull_seconds` answers each transfer; hooks see what happens."""

    loop: BatchingLoop
    pull_seconds: Callable[[Transfer], float | None] = lambda transfer: 0.0
    first_token: FirstToken = FirstToken.LOGITS
    on_emission: Callable[[str, int, float], None] | None = None
    tokens: dict[str, list[float]] = field(default_factory=dict)
    marks: dict[str, dict[int, float]] = field(default_factory=dict)
    iterations: list[Iteration] = field(default_factory=list)
    completed: list[Completed] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    clock: float = 0.0
    steps: int = 0
    _inputs: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    _sequence: int = 0

    def at(self, seconds: float, action: Callable[[float], None]) -> None:
        """Do something to the loop at that engine time, before the plan of that time."""
        self._sequence += 1
        heapq.heappush(self._inputs, (seconds, self._sequence, action))

    def submit(self, request: Request, *, at: float = 0.0) -> None:
        self.at(at, lambda now: self.loop.submit(request, now=now))

    def submit_all(self, requests: Iterable[Request], *, at: float = 0.0, every: float = 0.0) -> None:
        for index, request in enumerate(requests):
            self.submit(request, at=at + index * every)

    def run(self, *, until: float = float("inf"), limit: int = 100_000) -> Driver:
        while True:
            due = self.loop.next_seconds()
            pending = self._inputs[0][0] if self._inputs else None
            times = [seconds for seconds in (due, pending) if seconds is not None]
            if not times or min(times) > until:
                return self
            self.steps += 1
            assert self.steps < limit, f"no end after {limit} steps: {self.loop.counts()}"
            now = min(times)
            assert now >= self.clock, f"time ran back from {self.clock} to {now}"
            self.clock = now
            if now == due:
                self._complete(now)
            while self._inputs and self._inputs[0][0] <= now:
                heapq.heappop(self._inputs)[2](now)
            self._pull(self.loop.start_transfers(now=now), now)
            if self.loop.next_seconds() == now:
                plan = self.loop.plan(now=now)
                self.preempted.extend(plan.preempted)
                if plan.iteration is not None:
                    assert plan.iteration.start_seconds == now
                    assert plan.iteration.end_seconds > now
                self._pull(plan.transfers, now)
            self.check()

    def check(self) -> None:
        counts = self.loop.counts()
        assert counts.submitted == (
            counts.refused
            + counts.waiting
            + counts.pulling
            + counts.running
            + counts.finished
            + counts.cancelled
            + counts.failed
        ), counts
        assert 0 <= self.loop.ledger.used_tokens <= self.loop.ledger.capacity_tokens

    def _complete(self, now: float) -> None:
        for done in self.loop.complete(now=now):
            self.completed.append(done)
            self.iterations.append(done.iteration)
            self.works.extend(done.works)
            for emission in done.emissions:
                self._emit(emission.request_id, emission.index, emission.seconds)

    def _emit(self, request_id: str, index: int, seconds: float) -> None:
        self.marks.setdefault(request_id, {})[index] = seconds
        if self.loop.event_skipping:  # tells first and last tokens alone
            return
        times = self.tokens.setdefault(request_id, [])
        offset = 1 if self.first_token is FirstToken.PREFILL and not times else 0
        if not times and offset and index == 2:
            times.append(float("nan"))  # the prefill leg emitted the first
        assert index == len(times) + 1, f"{request_id}: token {index} after {len(times)}"
        times.append(seconds)
        if self.on_emission is not None:
            self.on_emission(request_id, index, seconds)

    def _pull(self, transfers: Iterable[Transfer], now: float) -> None:
        for transfer in transfers:
            self.transfers.append(transfer)
            seconds = self.pull_seconds(transfer)
            if seconds is not None:
                self.at(now + seconds, lambda then, request_id=transfer.request_id: self._arrive(request_id, then))

    def _arrive(self, request_id: str, now: float) -> None:
        if request_id not in self.loop:  # cancelled meanwhile
            return
        emission = self.loop.kv_arrived(request_id, now=now, first_token=self.first_token)
        if emission is not None:
            self._emit(emission.request_id, emission.index, emission.seconds)


@pytest.fixture(scope="session")
def driver() -> type[Driver]:
    return Driver


@pytest.fixture(scope="session")
def linear_time() -> type[LinearTime]:
    return LinearTime


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return default()


@pytest.fixture(scope="session")
def instance_of(catalogue: Catalogue) -> Callable[..., Instance]:
    def build(model: str = "opt-13b", gpu: str = "a100-80gb", tensor: int = 1, pipeline: int = 1) -> Instance:
        return Instance(model=catalogue.model(model), gpu=catalogue.gpu(gpu), tensor=tensor, pipeline=pipeline)

    return build


@pytest.fixture(scope="session")
def opt13b(instance_of: Callable[..., Instance]) -> Roofline:
    """The time model of the reference rows: OPT-13B on one A100-80GB."""
    return Roofline(instance_of())
