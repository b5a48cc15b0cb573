"""Builders shared by the operator's unit tests."""

from collections.abc import Callable
from typing import Any

import pytest

from disagg_crds import DisaggDeployment, DisaggGroup, Role, read_deployment, read_group
from disagg_operator.core.fleet import Instance

SPEC: dict[str, Any] = {
    "model": "opt-13b",
    "slo": {"ttftSeconds": 0.25, "tpotSeconds": 0.1},
    "engine": {"simulated": {"startupSeconds": 3}},
    "prefill": {"replicas": 1, "gpu": {"type": "a100-80gb"}},
    "decode": {"autoscaling": {"mode": "planner", "min": 1, "max": 4}, "gpu": {"type": "a100-80gb"}},
}


@pytest.fixture
def make_deployment() -> Callable[..., DisaggDeployment]:
    """A deployment with changed spec fields; ``None`` takes a field away."""

    def make(name: str = "chat", **spec: Any) -> DisaggDeployment:
        merged = {key: value for key, value in {**SPEC, **spec}.items() if value is not None}
        metadata = {"name": name, "namespace": "team", "uid": f"uid-of-{name}", "generation": 1}
        document = {
            "apiVersion": "disagg.dev/v1alpha1",
            "kind": "DisaggDeployment",
            "metadata": metadata,
            "spec": merged,
        }
        return read_deployment(document)

    return make


@pytest.fixture
def make_group() -> Callable[..., DisaggGroup]:
    def make(name: str = "chat-prefill", role: str = "prefill", replicas: int = 1) -> DisaggGroup:
        return read_group(
            {
                "apiVersion": "disagg.dev/v1alpha1",
                "kind": "DisaggGroup",
                "metadata": {"name": name, "namespace": "team", "uid": f"uid-of-{name}", "generation": 1},
                "spec": {"deployment": "chat", "role": role, "replicas": replicas},
            }
        )

    return make


@pytest.fixture
def make_instance() -> Callable[..., Instance]:
    """A ready instance; ``state`` is one of gated, pinned, bound, ready."""
    serial = iter(range(10_000))

    def make(role: Role = Role.DECODE, state: str = "ready", **fields: Any) -> Instance:
        number = next(serial)
        given: dict[str, Any] = {
            "name": f"{role.value}-{number}",
            "uid": f"uid-{number}",
            "role": role,
            "gpus": 1,
            "created_at": float(number),
            "revision": "r1",
            "gang": "chat",
            "gated": state == "gated",
            "ready": state == "ready",
        }
        if state != "gated":
            given |= {"pinned_node": "node-a", "placed_at": 100.0}
        if state in ("bound", "ready"):
            given["node"] = "node-a"
        return Instance(**{**given, **fields})

    return make
