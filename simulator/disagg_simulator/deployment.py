"""What is simulated: groups of instances, the link between them, and how requests are routed.

A deployment is a value. Disaggregated, requests go to a prefill instance, their KV crosses the link, and a decode
instance finishes them; colocated, one instance does both. The two halves alone are simulated as well, because they
bound what a pair can do: prefill-only ends a request with its first token, decode-only finds the KV of every arrival
already in place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from numbers import Integral

from disagg_contract.choices import RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig, FirstToken
from disagg_engine.instance import Instance
from disagg_engine.timemodel import TimeModel
from disagg_simulator.errors import DeploymentError


class Mode(StrEnum):
    """Which phases run where."""

    COLOCATED = "colocated"
    DISAGGREGATED = "disaggregated"
    PREFILL_ONLY = "prefill-only"
    DECODE_ONLY = "decode-only"


class Transfer(StrEnum):
    """Who decides when KV travels.

    PULL: the decode instance fetches it once it has room; until then it stays in prefill memory and holds new prompts
    back. PUSH: the prefill instance sends it at once, whatever room the decode instance has.
    """

    PULL = "pull"
    PUSH = "push"


class Sharing(StrEnum):
    """Who queues on the same link, first come first served.

    NONE: every transfer has the bandwidth for itself. PAIR: transfers between the same two instances. SOURCE: all
    transfers out of one instance. ALL: one link between the two groups (REFERENCE row 20).
    """

    NONE = "none"
    PAIR = "pair"
    SOURCE = "source"
    ALL = "all"


class Ledger(StrEnum):
    """How KV room is kept: counted, or in blocks that prefixes can be found in."""

    COUNTING = "counting"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All instances of one role, alike.

    batching: of each instance; its role must be the group's. kv_capacity_tokens: room of each, 0 for what the instance
    has. startup_seconds: from being asked for to serving, for instances added during a run.
    """

    instance: Instance
    time_model: TimeModel
    batching: BatchingConfig
    replicas: int = 1
    kv_capacity_tokens: int = 0
    ledger: Ledger = Ledger.COUNTING
    block_tokens: int = 1
    startup_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("replicas", 1), ("kv_capacity_tokens", 0), ("block_tokens", 1)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or int(value) < least:
                raise DeploymentError(
                    field=f"{self.role}.{name}", value=value, wanted=f"a whole number, at least {least}"
                )
        if not (isfinite(self.startup_seconds) and self.startup_seconds >= 0):
            raise DeploymentError(
                field=f"{self.role}.startup_seconds", value=self.startup_seconds, wanted="a finite number, 0 or more"
            )

    @property
    def role(self) -> Role:
        """Role of every instance."""
        return self.batching.role

    @property
    def gpus(self) -> int:
        """GPUs of all instances."""
        return self.replicas * self.instance.gpus

    @property
    def capacity_tokens(self) -> int:
        """KV room of one instance. Raises ModelDoesNotFitError where the model does not fit."""
        return self.kv_capacity_tokens or self.instance.kv_capacity_tokens()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How KV travels from prefill to decode: `bytes_per_second` each way, `latency_seconds` before the first byte."""

    name: str = "nvlink"
    bytes_per_second: float
    latency_seconds: float = 0.0
    sharing: Sharing = Sharing.SOURCE

    def __post_init__(self) -> None:
        if not self.bytes_per_second > 0:
            raise DeploymentError(
                field="link.bytes_per_second", value=self.bytes_per_second, wanted="a number above 0 (or infinity)"
            )
        if not (isfinite(self.latency_seconds) and self.latency_seconds >= 0):
            raise DeploymentError(
                field="link.latency_seconds", value=self.latency_seconds, wanted="a finite number, 0 or more"
            )


INSTANT = Link(name="instant", bytes_per_second=float("inf"), sharing=Sharing.NONE)
"""No transfer time at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One deployment; `prefill`, `decode` and `workers` are the groups of each role (several where GPU types mix).

    first_token: who emits the first token of a pulled request. PREFILL is how the reference rows count, LOGITS what
    the pods do. overlap_weight: weight of prefix hits in the `kv` policy.
    """

    mode: Mode
    prefill: tuple[Group, ...] = ()
    decode: tuple[Group, ...] = ()
    workers: tuple[Group, ...] = ()
    link: Link = INSTANT
    transfer: Transfer = Transfer.PULL
    first_token: FirstToken = FirstToken.PREFILL
    routing: RoutingPolicy = RoutingPolicy.LEAST_LOADED
    overlap_weight: float = 1.0
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        wanted = {
            Mode.COLOCATED: {"workers"},
            Mode.DISAGGREGATED: {"prefill", "decode"},
            Mode.PREFILL_ONLY: {"prefill"},
            Mode.DECODE_ONLY: {"decode"},
        }[self.mode]
        if not (isfinite(self.overlap_weight) and self.overlap_weight >= 0):
            raise DeploymentError(
                field="overlap_weight", value=self.overlap_weight, wanted="a finite number, 0 (load alone) or more"
            )
        for name, role in (("prefill", Role.PREFILL), ("decode", Role.DECODE), ("workers", Role.WORKER)):
            groups: tuple[Group, ...] = getattr(self, name)
            if bool(groups) != (name in wanted):
                amount = "one group or more" if name in wanted else "empty"
                raise DeploymentError(field=name, value=groups, wanted=f"{amount}: the mode is {self.mode}")
            for group in groups:
                if group.role is not role:
                    raise DeploymentError(
                        field=f"{name}.batching.role", value=group.role.value, wanted=f"{role.value!r}"
                    )
                if group.instance.model != self.groups[0].instance.model:
                    raise DeploymentError(
                        field=f"{name}.instance.model",
                        value=group.instance.model.name,
                        wanted=f"the same in all groups, {self.groups[0].instance.model.name!r}",
                    )
                if group.instance.kv_precision is not self.groups[0].instance.kv_precision:
                    raise DeploymentError(
                        field=f"{name}.instance.kv_precision",
                        value=group.instance.kv_precision.value,
                        wanted="the same in all groups, as KV travels as it is kept",
                    )

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups: prefill, decode, workers."""
        return (*self.prefill, *self.decode, *self.workers)

    @property
    def gpus(self) -> int:
        """GPUs of all instances."""
        return sum(group.gpus for group in self.groups)
