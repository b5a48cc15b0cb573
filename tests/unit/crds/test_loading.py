"""Documents load to frozen values; what is wrong is said with field, value and remedy."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from disagg_crds import DisaggDeployment, Role, SpecError, load_deployment

GOOD = """\
apiVersion: disagg.dev/v1alpha1
kind: DisaggDeployment
metadata: {name: chat}
spec:
  model: opt-13b
  slo: {ttftSeconds: 0.25, tpotSeconds: 1}
  prefill: {replicas: 2, gpu: {type: a100-80gb}, parallelism: {tensor: 2}}
  decode:
    gpu: {type: a100-80gb}
    autoscaling: {max: 4, initial: 2}
    template: {resources: {requests: {cpu: 1, memory: 2Gi}, limits: null}, nodeSelector: null}
"""


def load(text: str) -> DisaggDeployment:
    (deployment,) = load_deployment(text)
    return deployment


def message(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_deployment(text)
    return str(caught.value)


def test_defaults_are_filled_in() -> None:
    spec = load(GOOD).spec
    assert spec.slo.attainment == 0.9
    assert spec.engine.simulated.block_tokens == 16
    assert spec.placement.required_level == "nvidia.com/gpu.clique"
    assert spec.placement.preferred_level is None
    assert spec.prefill is not None
    assert spec.prefill.gpu.resource_name == "nvidia.com/gpu"


def test_derived_numbers() -> None:
    spec = load(GOOD).spec
    prefill, decode = spec.roles[Role.PREFILL], spec.roles[Role.DECODE]
    assert list(spec.roles) == [Role.PREFILL, Role.DECODE]
    assert (prefill.gpus_per_instance, prefill.initial_replicas, prefill.base_instances) == (2, 2, 1)
    assert (decode.gpus_per_instance, decode.initial_replicas, decode.base_instances) == (1, 2, 1)
    assert spec.initial_gpus == 6
    assert (prefill.planned, decode.planned, spec.planned) == (False, True, True)


def test_a_gpu_resource_is_named_with_its_domain() -> None:
    text = GOOD.replace("type: a100-80gb", "type: a100-80gb, resourceName: gpu", 1)
    assert "resourceName" in message(text)
    assert load(text.replace("resourceName: gpu", "resourceName: amd.com/gpu"))


def test_no_required_level_when_empty() -> None:
    spec = load(GOOD + "  placement: {required: ''}\n").spec
    assert spec.placement.required_level is None


def test_zero_replicas_need_no_gang() -> None:
    spec = load(GOOD.replace("replicas: 2", "replicas: 0")).spec
    assert spec.roles[Role.PREFILL].base_instances == 0


def test_null_is_absent_as_for_the_api_server() -> None:
    template = load(GOOD).spec.roles[Role.DECODE].template
    assert template.resources.limits == {}
    assert template.node_selector == {}
    assert template.resources.requests == {"cpu": "1", "memory": "2Gi"}


def test_round_trip() -> None:
    deployment = load(GOOD)
    assert DisaggDeployment.model_validate(deployment.to_dict()) == deployment


def test_values_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(GOOD).spec.model = "other"  # type: ignore[misc]


def test_several_documents_and_empty_ones() -> None:
    text = f"---\n{GOOD}---\n---\n{GOOD.replace('name: chat', 'name: code')}"
    assert [deployment.name for deployment in load_deployment(text)] == ["chat", "code"]


def test_an_unknown_field_names_its_neighbour() -> None:
    text = message(GOOD.replace("replicas: 2", "replcias: 2"))
    assert "DisaggDeployment chat" in text
    assert "spec.prefill.replcias: unknown field; did you mean replicas?" in text


def test_a_wrong_type_shows_the_value_and_the_remedy() -> None:
    text = message(GOOD.replace("replicas: 2", "replicas: '2'"))
    assert text == "DisaggDeployment chat: spec.prefill.replicas: got '2'; give a whole number without quotes"


def test_every_problem_is_reported_at_once() -> None:
    text = message(GOOD.replace("replicas: 2", "replicas: two").replace("ttftSeconds: 0.25", "ttftSeconds: .nan"))
    assert "spec.prefill.replicas: got 'two'" in text
    assert "spec.slo.ttftSeconds: got nan; must be a finite number" in text


def test_a_missing_field_is_named() -> None:
    assert "spec.slo.tpotSeconds: is required" in message(GOOD.replace(", tpotSeconds: 1", ""))


def test_a_list_entry_is_named_by_its_index() -> None:
    text = message(GOOD + "  router: {template: {env: [{name: A}, {name: 1B}]}}\n")
    assert "spec.router.template.env[1].name: got '1B'; must match" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no document found"),
        ("a: [", "YAML: line 1, column"),
        ("kind: Service\napiVersion: v1\n", "is apiVersion 'v1', kind 'Service'; expected 'disagg.dev/v1alpha1'"),
        (f"{GOOD}---\n- 1\n", "document 2: found a list; expected a mapping"),
    ],
)
def test_text_that_is_no_deployment(text: str, expected: str) -> None:
    assert expected in message(text)
