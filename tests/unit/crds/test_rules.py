"""Every rule across fields accepts what it should and refuses what it should, in the models' words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_crds import SpecError, read_deployment, read_group
from disagg_crds.base import Model, Rule
from disagg_crds.crd import KINDS

Document = dict[str, Any]
READERS: dict[str, Callable[[Document], Model]] = {"DisaggDeployment": read_deployment, "DisaggGroup": read_group}
CASES = yaml.safe_load(Path(__file__).with_name("rule_cases.yaml").read_text(encoding="utf-8"))


def all_models(model: type[Model] = Model) -> Iterator[type[Model]]:
    for child in model.__subclasses__():
        yield child
        yield from all_models(child)


def all_rules() -> dict[str, Rule]:
    assert KINDS
    return {rule.message: rule for model in all_models() for rule in model.rules}


def test_every_rule_has_a_case() -> None:
    assert {case["rule"] for case in CASES["cases"]} == set(all_rules())


def test_rule_accepts(rule_case: Document, base_of: Callable[[str, Document], Document]) -> None:
    document = base_of(rule_case["kind"], rule_case["accept"])
    assert READERS[rule_case["kind"]](document).to_dict()["spec"]


def test_rule_rejects_with_its_message(rule_case: Document, base_of: Callable[[str, Document], Document]) -> None:
    rule = all_rules()[rule_case["rule"]]
    if rule.transition:
        assert rule_case["update"]
        assert "oldSelf" in rule.cel
        return
    with pytest.raises(SpecError) as caught:
        READERS[rule_case["kind"]](base_of(rule_case["kind"], rule_case["reject"]))
    assert [problem.message for problem in caught.value.problems] == [rule.message]
    if rule.field is not None:
        assert caught.value.problems[0].path.endswith(rule.field)


def test_schema_rejects_and_names_the_field(
    schema_case: Document, base_of: Callable[[str, Document], Document]
) -> None:
    with pytest.raises(SpecError) as caught:
        READERS[schema_case["kind"]](base_of(schema_case["kind"], schema_case["reject"]))
    assert [problem.path for problem in caught.value.problems] == [schema_case["field"]]
