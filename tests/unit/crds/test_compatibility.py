"""A served version only grows (ADR 25).

``served/`` holds the schemas as they were served last, without texts. ``DISAGG_UPDATE_SERVED=1`` writes them anew,
which is part of a release and of nothing else.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disagg_crds.compatibility import breaking_changes
from disagg_crds.crd import KINDS, Kind, build_crd

SERVED = Path(__file__).parent / "served"
Schema = dict[str, Any]

BEFORE: Schema = {
    "type": "object",
    "required": ["model"],
    "properties": {
        "model": {"type": "string", "maxLength": 63},
        "policy": {"type": "string", "enum": ["kv", "round-robin"], "default": "kv"},
        "replicas": {"type": "integer", "minimum": 0, "maximum": 64},
        "free": {"type": "string"},
        "labels": {"type": "object", "maxProperties": 4, "additionalProperties": {"type": "string"}},
        "env": {
            "type": "array",
            "maxItems": 8,
            "items": {"type": "object", "properties": {"name": {"type": "string"}}},
        },
    },
}


def bare(node: Any) -> Any:
    """Without texts and rules, which may be reworded."""
    if isinstance(node, list):
        return [bare(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: bare(value)
        for key, value in node.items()
        if key != "x-kubernetes-validations" and not (key == "description" and isinstance(value, str))
    }


@pytest.mark.parametrize("kind", KINDS, ids=[kind.short_name for kind in KINDS])
def test_what_was_served_still_holds(kind: Kind) -> None:
    versions = build_crd(kind, version="0")["spec"]["versions"]
    for version in versions:
        path = SERVED / f"{version['name']}-{kind.plural}.json"
        schema = version["schema"]["openAPIV3Schema"]
        if os.environ.get("DISAGG_UPDATE_SERVED"):
            path.write_text(json.dumps(bare(schema), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        assert breaking_changes(json.loads(path.read_text(encoding="utf-8")), schema) == []


def test_one_version_is_stored_and_every_version_is_served_until_it_is_gone() -> None:
    for kind in KINDS:
        spec = build_crd(kind, version="0")["spec"]
        assert [version["storage"] for version in spec["versions"]].count(True) == 1
        assert "conversion" not in spec, "a conversion webhook would make objects unreadable while the operator is down"


def changed(change: Callable[[Schema], object]) -> list[str]:
    after = copy.deepcopy(BEFORE)
    change(after["properties"])
    return breaking_changes(BEFORE, after)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda p: p.pop("free"), ".free: is gone"),
        (lambda p: p["replicas"].update(type="string"), ".replicas: type was 'integer' and is 'string'"),
        (lambda p: p["replicas"].update(maximum=32), ".replicas: maximum was 64 and is 32"),
        (lambda p: p["replicas"].update(minimum=1), ".replicas: minimum was 0 and is 1"),
        (lambda p: p["replicas"].update(exclusiveMinimum=True), ".replicas: minimum 0 itself is no longer taken"),
        (lambda p: p["model"].update(pattern="^a$"), ".model: pattern '^a$' is new"),
        (lambda p: p["free"].update(maxLength=9), ".free: maxLength was open and is 9"),
        (lambda p: p["free"].update(enum=["a"]), ".free: takes 'a' only"),
        (lambda p: p["policy"].update(enum=["kv"]), ".policy: no longer takes 'round-robin'"),
        (lambda p: p["policy"].update(default="round-robin"), ".policy: default was 'kv' and is 'round-robin'"),
        (lambda p: p["labels"].pop("additionalProperties"), ".labels: additionalProperties are gone"),
        (lambda p: p["env"]["items"].update(required=["name"]), ".env[]: name is required now"),
        (lambda p: p["env"]["items"]["properties"].pop("name"), ".env[].name: is gone"),
    ],
)
def test_what_breaks_is_named(change: Callable[[Schema], object], complaint: str) -> None:
    assert changed(change) == [complaint]


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.update(new={"type": "string"}),
        lambda p: p["policy"]["enum"].append("least-loaded"),
        lambda p: p["replicas"].update(maximum=128),
        lambda p: p["free"].update(default="x"),
        lambda p: p["model"].update(description="said better"),
    ],
)
def test_growing_breaks_nothing(change: Callable[[Schema], object]) -> None:
    assert changed(change) == []
