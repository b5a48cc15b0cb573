"""Fleets of 8 × H100 with Llama-3-8B, and what became of the sessions that were sent to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from disagg_contract.config import RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import Roofline
from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment, Group, Ledger, Mode
from disagg_simulator.recording import Recording


@dataclass(frozen=True)
class Fleet:
    """Colocated workers, one H100 each."""

    instance: Instance
    time_model: Roofline

    def prefill_seconds(self, tokens: int) -> float:
        """A prompt of that many tokens, alone and with nothing cached."""
        return self.time_model.counted_seconds(tokens, 0.5 * tokens * tokens, 0, 0, 0) if tokens else 0.0

    def deployment(
        self, routing: str, *, replicas: int = 8, overlap_weight: float = 1.0, block_tokens: int = 64
    ) -> Deployment:
        group = Group(
            instance=self.instance,
            time_model=self.time_model,
            batching=BatchingConfig(role=Role.WORKER),
            replicas=replicas,
            ledger=Ledger.BLOCKS,
            block_tokens=block_tokens,
        )
        return Deployment(
            mode=Mode.COLOCATED, workers=(group,), routing=RoutingPolicy(routing), overlap_weight=overlap_weight
        )


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    catalogue = default()
    instance = Instance(model=catalogue.model("llama-3-8b"), gpu=catalogue.gpu("h100"))
    return Fleet(instance, Roofline(instance))


@pytest.fixture(scope="session")
def p90_ttft() -> Callable[[Recording], float]:
    """Seconds."""

    def find(run: Recording) -> float:
        ttft = sorted(
            first - arrival for first, arrival in zip(run.first_token, run.requests.arrival_seconds, strict=True)
        )
        return ttft[int(0.9 * len(ttft))]

    return find


@pytest.fixture(scope="session")
def nodes_of_a_session() -> Callable[[Recording], float]:
    """How many instances the sessions of eight turns or more are spread over, in the mean."""

    def find(run: Recording) -> float:
        requests: Columns = run.requests
        assert requests.sessions is not None
        places: dict[int, list[int]] = defaultdict(list)
        for session, instance in zip(requests.sessions, run.prefill_instance, strict=True):
            places[session].append(instance)
        counts = [len(set(where)) for where in places.values() if len(where) >= 8]
        return sum(counts) / len(counts)

    return find
