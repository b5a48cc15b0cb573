"""How a simulation is run: what is recorded, when it stops, and what happens to it on the way."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING

from disagg_contract.labels import Role
from disagg_simulator.errors import OptionError

if TYPE_CHECKING:  # forecasting takes a while to import, and few runs have a planner
    from disagg_simulator.planner import PlannerSetup


class Lane(StrEnum):
    """Which code runs the engine's rules; all give the same numbers to 1e-9 s.

    AUTO: the fast lane where it applies, else the cluster. FAST: flat arrays, for the common deployments. CLUSTER: the
    pods' own batching loops, skipping over equal decode iterations. STEPPER: the same, one iteration at a time.
    """

    AUTO = "auto"
    FAST = "fast"
    CLUSTER = "cluster"
    STEPPER = "stepper"


class FaultKind(StrEnum):
    """KILL: an instance is lost with its KV. SLOW: its iterations take `factor` times as long."""

    KILL = "kill"
    SLOW = "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of instance number `index` of a role at `at_seconds`, over after `for_seconds` (inf: never).

    A killed instance comes back, empty, after `for_seconds`.
    """

    at_seconds: float
    role: Role
    index: int = 0
    kind: FaultKind = FaultKind.KILL
    for_seconds: float = float("inf")
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not (isfinite(self.at_seconds) and self.at_seconds >= 0):
            raise OptionError(field="fault.at_seconds", value=self.at_seconds, wanted="a finite number, 0 or more")
        if not self.for_seconds > 0:
            raise OptionError(field="fault.for_seconds", value=self.for_seconds, wanted="above 0")
        if self.index < 0:
            raise OptionError(field="fault.index", value=self.index, wanted="0 or more")
        if self.kind is FaultKind.SLOW and not (isfinite(self.factor) and self.factor > 0):
            raise OptionError(field="fault.factor", value=self.factor, wanted="a finite number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """gaps: record times between tokens. series: record occupancy and timelines of instances.

    until_seconds: stop then; what is under way stays unfinished. concurrency: closed loop, that many requests at a
    time, each next one sent when one ends (arrival times then say nothing but the order); 0 is open loop.

    retry: a request that was lost with an instance starts again elsewhere, with the tokens already sent as part of its
    prompt, as a router does that can; else it has failed. planner: scales the deployment while it runs.
    """

    lane: Lane = Lane.AUTO
    gaps: bool = False
    series: bool = False
    until_seconds: float = float("inf")
    concurrency: int = 0
    faults: tuple[Fault, ...] = ()
    retry: bool = True
    planner: PlannerSetup | None = None

    def __post_init__(self) -> None:
        if not self.until_seconds > 0:
            raise OptionError(field="until_seconds", value=self.until_seconds, wanted="above 0")
        if self.concurrency < 0:
            raise OptionError(field="concurrency", value=self.concurrency, wanted="0 (open loop) or more")


DEFAULTS = Options()
