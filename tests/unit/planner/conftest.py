"""Builders for the planner's tests: a profile, windows of load, groups, and a planner without a shell.

The profile is OPT-13B on an A100-80GB, computed here from the literature's time model, independently of the engine:
2 · params · tokens / (peak · 0.7 n/(n+100)) + 1 ms for prefill, (weights + KV) / (0.8 · bandwidth) + 1 ms for decode.
"""

from __future__ import annotations

import os

# Before anything loads the linear algebra; see disagg_planner.main.load_predictor.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from disagg_contract.labels import Role
from disagg_contract.profile import DecodePoint, PrefillPoint, Profile
from disagg_planner.core.decision import Decision, decide
from disagg_planner.core.fleet import Group
from disagg_planner.core.forecast import LastValue, Predictor
from disagg_planner.core.interpolation import ProfileTable
from disagg_planner.core.observation import Latency, Observation, Work
from disagg_planner.core.settings import RoleSettings, Settings
from disagg_planner.core.signals import Problem, ProblemKind
from disagg_planner.core.state import State, assess, look

PARAMETERS, LAYERS, HIDDEN, KV_BYTES = 13e9, 40, 5120, 819_200
PEAK, BANDWIDTH, USABLE = 312e12, 2.039e12, 74e9


def prefill_seconds(tokens: float) -> float:
    flops = 2 * PARAMETERS * tokens + 4 * HIDDEN * LAYERS * tokens**2 / 2
    return flops / (PEAK * 0.7 * tokens / (tokens + 100)) + 1e-3


def decode_seconds(context: float, batch: float) -> float:
    return (2 * PARAMETERS + batch * (context + 1) * KV_BYTES) / (0.8 * BANDWIDTH) + 1e-3


def opt_13b() -> Profile:
    room = int((USABLE - 2 * PARAMETERS) / KV_BYTES)
    prefill = tuple(
        PrefillPoint(n, prefill_seconds(n), n / prefill_seconds(n)) for n in (128, 256, 512, 755, 1024, 1536, 2048)
    )
    decode = tuple(
        DecodePoint(context, batch, decode_seconds(context, batch), batch / decode_seconds(context, batch))
        for context in (128, 256, 512, 855, 1024, 2048)
        for batch in (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
        if batch * context <= room
    )
    return Profile("opt-13b", "a100-80gb", "a100-80gb", 1, 1, 1, 1, room, KV_BYTES, prefill, decode)


def flat_profile(*, ttft: float = 0.25, speed: float = 4000.0, tpot: float = 0.02, decode: float = 1000.0) -> Profile:
    """A profile with one point of each: the same everywhere."""
    return Profile(
        "flat", "gpu", "gpu", 1, 1, 1, 1, 100_000, 1.0,
        (PrefillPoint(1000, ttft, speed),), (DecodePoint(1000, 20, tpot, decode),),
    )  # fmt: skip


@pytest.fixture
def profile() -> Profile:
    return opt_13b()


@pytest.fixture
def table(profile: Profile) -> ProfileTable:
    return ProfileTable(profile)


@pytest.fixture
def flat() -> Callable[..., ProfileTable]:
    def build(**values: float) -> ProfileTable:
        return ProfileTable(flat_profile(**values))

    return build


@pytest.fixture
def settings() -> Settings:
    """chat-13b: OPT-13B, TTFT 0.25 s, TPOT 0.1 s, 1 to 4 of each, every 30 s, quick to come down."""
    return Settings(
        slo_ttft_seconds=0.25,
        slo_tpot_seconds=0.1,
        attainment=0.9,
        roles={role: RoleSettings(minimum=1, maximum=4) for role in (Role.PREFILL, Role.DECODE)},
        interval_seconds=30.0,
        stabilization_seconds=60.0,
        pending_seconds=300.0,
    )


def latency(seconds: float, slo: float) -> Latency:
    return Latency(mean_seconds=seconds, share=1.0 if seconds <= slo else 0.2, quantile=None)


def window(
    at: float,
    rate: float,
    *,
    isl: float = 755.0,
    osl: float = 200.0,
    seconds: float = 30.0,
    slow: float = 1.0,
    ttft: float | None = None,
    tpot: float | None = None,
    decodes: int = 1,
    slo_ttft: float = 0.25,
    slo_tpot: float = 0.1,
) -> Observation:
    """What a healthy fleet shows at a rate: prompts one by one, decodes at the batch that Little's law gives."""
    if rate == 0:
        return Observation(at_seconds=at, window_seconds=seconds, started=0.0)
    prompts = rate * seconds
    per_instance, weights = rate * osl / decodes, decode_seconds(isl + osl / 2, 0)
    per_sequence = decode_seconds(isl + osl / 2, 1) - weights
    batch = min(per_instance * slow * weights / max(1 - per_instance * slow * per_sequence, 0.02), 64.0)
    step = slow * decode_seconds(isl + osl / 2, batch)
    seen_ttft = slow * prefill_seconds(isl) * 1.2 if ttft is None else ttft
    seen_tpot = step if tpot is None else tpot
    iterations = decodes * seconds / step
    return Observation(
        at_seconds=at,
        window_seconds=seconds,
        started=prompts,
        input_tokens=isl,
        output_tokens=osl,
        ttft=latency(seen_ttft, slo_ttft),
        tpot=latency(seen_tpot, slo_tpot),
        prefill_work=Work(
            iterations=prompts, busy_seconds=prompts * slow * prefill_seconds(isl), prompt_tokens=prompts * isl
        ),
        decode_work=Work(iterations=iterations, busy_seconds=iterations * step, answer_tokens=iterations * batch),
        transfer_seconds=0.003,
    )


@pytest.fixture
def load() -> Callable[..., Observation]:
    return window


@pytest.fixture
def outage() -> Callable[..., Observation]:
    def build(at: float, kind: ProblemKind = ProblemKind.MISSING) -> Observation:
        return Observation(at_seconds=at, window_seconds=30.0, problem=Problem(kind, "no samples"))

    return build


@dataclass
class Simulated:
    """A planner's core and a fleet that obeys: new instances are ready `ready_after` seconds after the ask."""

    settings: Settings
    table: ProfileTable
    prefill: int = 1
    decode: int = 1
    predictor: Predictor = field(default_factory=LastValue)
    ready_after: float = 0.0
    schedulable: bool = True
    state: State = field(default_factory=State)
    now: float = 0.0
    asked: list[tuple[float, dict[Role, int]]] = field(default_factory=list)
    _pending: dict[Role, list[float]] = field(default_factory=lambda: {Role.PREFILL: [], Role.DECODE: []})

    def replicas(self) -> dict[Role, int]:
        return {Role.PREFILL: self.prefill, Role.DECODE: self.decode}

    def fleet(self) -> Mapping[Role, Group]:
        groups = {}
        for role, count in self.replicas().items():
            self._pending[role] = [at for at in self._pending[role] if at > self.now]
            waiting = min(len(self._pending[role]), count)
            groups[role] = Group(replicas=count, existing=count, ready=count - waiting)
        return groups

    def tick(self, observation: Observation, *, obey: bool = True) -> Decision:
        """One decision at the observation's time, one interval after the last."""
        self.now = observation.at_seconds
        fleet = self.fleet()
        self.state = look(self.state, fleet, self.settings, now=self.now)
        assessment, self.state = assess(
            self.state, observation, predictor=self.predictor, table=self.table, fleet=fleet, settings=self.settings
        )
        decision, self.state = decide(
            self.state, assessment, fleet, table=self.table, settings=self.settings, now=self.now
        )
        if decision.changes and obey:
            self._obey(decision.targets)
        return decision

    def _obey(self, targets: dict[Role, int]) -> None:
        self.asked.append((self.now, targets))
        ready_at = self.now + self.ready_after if self.schedulable else float("inf")
        for role, before in self.replicas().items():
            added = max(targets[role] - before, 0)
            self._pending[role] += [ready_at] * added if ready_at > self.now else []
            self._pending[role] = self._pending[role][: targets[role]]
        self.prefill, self.decode = targets[Role.PREFILL], targets[Role.DECODE]

    def run(self, rate: Callable[[float], float], *, ticks: int, **values: float) -> list[Decision]:
        """`ticks` intervals under `rate(time)`."""
        decisions = []
        for _ in range(ticks):
            at = self.now + self.settings.interval_seconds
            decisions.append(self.tick(window(at, rate(at), decodes=self.decode, **values)))  # type: ignore[arg-type]
        return decisions


@pytest.fixture
def planner(settings: Settings, table: ProfileTable) -> Callable[..., Simulated]:
    def build(**values: object) -> Simulated:
        changes = {name: values.pop(name) for name in list(values) if hasattr(settings, name)}
        chosen = replace(settings, **changes)  # type: ignore[arg-type]
        return Simulated(settings=chosen, table=values.pop("table", table), **values)  # type: ignore[arg-type]

    return build
