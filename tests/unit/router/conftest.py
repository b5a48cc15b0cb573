"""Workers and requests for tests of the router's core."""

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from disagg_contract.discovery import DiscoveredWorker, WorkerInfo
from disagg_contract.labels import Role
from disagg_contract.openai import Endpoint
from disagg_router.core.bodies import Inbound, parse_inbound
from disagg_router.core.fleet import Fleet, Worker

MODEL = "opt-13b"


class Made:
    """Makes workers of a fleet."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self._numbers = count(1)

    def row(self, role: Role = Role.WORKER, **changes: Any) -> DiscoveredWorker:
        number = next(self._numbers)
        fields = {"uid": f"u{number}", "name": f"w{number}", "role": role, "host": "10.0.0.1", "port": 8000 + number}
        return DiscoveredWorker(**{**fields, **changes})

    def info(self, role: Role = Role.WORKER, **changes: Any) -> WorkerInfo:
        fields = {
            "engine_id": f"e{next(self._numbers)}",
            "role": role,
            "model": MODEL,
            "gpu": "h100",
            "block_tokens": 16,
            "kv_capacity_tokens": 16_000,
            "max_context_tokens": 2048,
            "tokenizer_digest": "t",
            "template_digest": "c",
            "hash_digest": "h",
            "ready": True,
        }
        return WorkerInfo(**{**fields, **changes})

    def worker(self, role: Role = Role.WORKER, **changes: Any) -> Worker:
        return self.fleet.join(self.row(role), self.info(role, **changes))


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture(scope="session")
def make_made() -> type[Made]:
    """For hypothesis, which wants a fresh one an example."""
    return Made


@pytest.fixture
def request_of() -> Callable[..., Inbound]:
    """``request_of(stream=True)``: a parsed request; ``endpoint`` chooses chat."""

    def make(endpoint: Endpoint = Endpoint.COMPLETIONS, **fields: Any) -> Inbound:
        prompt = {"messages": [{"role": "user", "content": "hi"}]} if endpoint is Endpoint.CHAT else {"prompt": "hi"}
        return parse_inbound(endpoint, msgspec.json.encode({"model": MODEL, **prompt, **fields}))

    return make
