"""Every shipped example is a valid deployment, and is what its file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from disagg_crds import DisaggDeployment, Role, load_deployment

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def load(name: str) -> DisaggDeployment:
    (deployment,) = load_deployment((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    return deployment


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_example_is_valid_and_named_after_its_file(path: Path) -> None:
    assert [deployment.name for deployment in load_deployment(path.read_text(encoding="utf-8"))] == [path.stem]


def test_chat_13b_starts_as_one_pair_and_is_planned() -> None:
    spec = load("chat-13b").spec
    assert [(role, section.initial_replicas, section.planned) for role, section in spec.roles.items()] == [
        (Role.PREFILL, 1, True),
        (Role.DECODE, 1, True),
    ]
    assert (spec.slo.ttft_seconds, spec.slo.tpot_seconds) == (0.25, 0.1)


def test_chat_8b_is_fixed_at_two_of_each() -> None:
    spec = load("chat-8b").spec
    assert [(section.replicas, section.base_instances) for section in spec.roles.values()] == [(2, 1), (2, 1)]
    assert not spec.planned


def test_colocated_13b_differs_from_chat_13b_in_its_roles_alone() -> None:
    pair, colocated = load("chat-13b").spec, load("colocated-13b").spec
    assert list(colocated.roles) == [Role.WORKER]
    assert (colocated.model, colocated.slo, colocated.engine) == (pair.model, pair.slo, pair.engine)
    assert colocated.roles[Role.WORKER].gpu == pair.roles[Role.PREFILL].gpu


def test_demo_starts_with_two_of_each() -> None:
    assert [section.initial_replicas for section in load("demo").spec.roles.values()] == [2, 2]
