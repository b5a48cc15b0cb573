"""The CRDs as a real API server sees them: the same answers as the models give, defaults, columns, /scale, pruning."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from disagg_crds import DisaggDeployment, load_deployment, read_deployment
from disagg_crds.generate import distribution_version, generated_files
from tests.support.kube import Kube, wait_until

Document = dict[str, Any]
Build = Callable[[str, Document], Document]
Ask = Callable[[Document, Document], str]
VERSION = distribution_version("disagg")
EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def kube(crds: Kube, module_namespace: Kube) -> Kube:
    return module_namespace


@pytest.fixture(scope="module")
def objects(kubeconfig: Path) -> client.CustomObjectsApi:
    """The API server without a kubectl process a question."""
    return client.CustomObjectsApi(config.new_client_from_config(str(kubeconfig)))


@pytest.fixture
def ask(kube: Kube, objects: client.CustomObjectsApi, rule_base: Build) -> Ask:
    """`ask(case, patch)`: the API server's complaint about a document, or "" when it would take it."""

    def asked(case: Document, patch: Document) -> str:
        document = rule_base(case["kind"], patch)
        place = ("disagg.dev", "v1alpha1", kube.namespace, f"{case['kind'].lower()}s")
        how = {"dry_run": "All", "field_validation": "Strict"}
        try:
            if case.get("update"):
                # A rule about changes needs something to change.
                before = rule_base(case["kind"], {})
                kube.apply(before)
                objects.patch_namespaced_custom_object(*place, before["metadata"]["name"], patch, **how)
            else:
                objects.create_namespaced_custom_object(*place, document, **how)
        except client.ApiException as error:
            return str(json.loads(error.body)["message"])
        return ""

    return asked


def test_rule_accepts(ask: Ask, rule_case: Document) -> None:
    assert ask(rule_case, rule_case["accept"]) == ""


def test_rule_rejects_with_its_message(ask: Ask, rule_case: Document) -> None:
    assert rule_case["rule"] in ask(rule_case, rule_case["reject"])


def test_schema_rejects_and_names_the_field(ask: Ask, schema_case: Document) -> None:
    assert schema_case["field"] in ask(schema_case, schema_case["reject"])


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_every_example_is_accepted_as_it_is_read(kube: Kube, path: Path) -> None:
    """Server and models fill in the same defaults."""
    text = path.read_text(encoding="utf-8")
    answer = kube("apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=text)
    (local,) = load_deployment(text)
    assert read_deployment(json.loads(answer)).spec == local.spec
    stored = json.loads(answer)["spec"]
    assert stored["slo"]["attainment"] == 0.9
    assert stored["engine"]["simulated"]["blockTokens"] == 16


def test_defaults_of_the_server_are_those_of_the_models(kube: Kube, rule_base: Build) -> None:
    answer = kube(
        "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=yaml.safe_dump(rule_base("DisaggDeployment", {}))
    )
    stored = json.loads(answer)["spec"]
    local = without_empty(read_deployment(json.loads(answer)).spec.to_dict())
    assert without_empty(stored) == local


def without_empty(value: Any) -> Any:
    """Empty lists and maps mean the same as absent ones."""
    if isinstance(value, dict):
        found = {key: without_empty(child) for key, child in value.items()}
        return {key: child for key, child in found.items() if child not in ({}, [])}
    return value


def test_op9_what_the_status_models_write_is_kept(kube: Kube, rule_base: Build) -> None:
    kube.apply(rule_base("DisaggDeployment", {"metadata": {"name": "statusful"}}))
    status = {
        "observedGeneration": 1,
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "InstancesNotScheduled",
                "message": "2 of 2 wait",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "observedGeneration": 1,
            }
        ],
        "roles": {"prefill": {"desired": 2, "current": 2, "gated": 2, "scheduled": 0, "ready": 0, "summary": "0/2"}},
        "groups": {"prefill": {"replicas": 2}},
        "placement": {
            "domain": "d1",
            "level": "nvidia.com/gpu.clique",
            "score": 0.5,
            "message": "m",
            "bestDomain": "d2",
            "missing": {"nvidia.com/gpu": "1"},
            "attempts": 3,
            "lastAttemptTime": "2026-01-01T00:00:00Z",
            "excludedDomains": ["d3"],
            "assignments": [{"uid": "u-1", "pod": "chat-1", "node": "node-1"}],
        },
        "router": {"desired": 1, "ready": 1, "summary": "1/1"},
        "endpoint": "http://statusful-router.default:8000",
        "revision": "abc",
    }
    patch = {"apiVersion": "disagg.dev/v1alpha1", "kind": "DisaggDeployment", "metadata": {"name": "statusful"}}
    kube(
        "apply", "--server-side", "--subresource=status", "--field-manager=disagg-operator", "-f", "-",
        stdin=yaml.safe_dump({**patch, "status": status}),
    )  # fmt: skip
    stored = kube.get("dd", "statusful")
    assert stored is not None
    assert stored["status"] == status
    assert DisaggDeployment.model_validate(stored).status.to_dict() == status

    line = kube("get", "dd", "statusful").splitlines()
    assert line[0].split() == ["NAME", "MODEL", "READY", "REASON", "PREFILL", "DECODE", "DOMAIN", "AGE"]
    assert line[1].split()[:5] == ["statusful", "opt-13b", "False", "InstancesNotScheduled", "0/2"]
    assert "0/2" in kube("get", "disagg")
    assert "2 of 2 wait" in kube("get", "dd", "-o", "wide")


def test_two_writers_own_conditions_of_their_own(kube: Kube, rule_base: Build) -> None:
    kube.apply(rule_base("DisaggDeployment", {"metadata": {"name": "shared"}}))
    for manager, type_ in (("disagg-operator", "Ready"), ("disagg-planner", "MetricsAvailable")):
        condition = {"type": type_, "status": "True", "reason": "Because", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        document = {
            "apiVersion": "disagg.dev/v1alpha1",
            "kind": "DisaggDeployment",
            "metadata": {"name": "shared"},
            "status": {"conditions": [condition]},
        }
        kube(
            "apply", "--server-side", "--subresource=status", f"--field-manager={manager}", "-f", "-",
            stdin=yaml.safe_dump(document),
        )  # fmt: skip
    assert kube.condition("dd", "shared", "Ready")
    assert kube.condition("dd", "shared", "MetricsAvailable")


def test_groups_scale_through_the_subresource(kube: Kube, rule_base: Build) -> None:
    kube.apply(rule_base("DisaggGroup", {"metadata": {"name": "scaled"}}))
    kube("scale", "dg/scaled", "--replicas=3")
    group = kube.get("dg", "scaled")
    assert group is not None
    assert group["spec"]["replicas"] == 3
    answer = kube("scale", "dg/scaled", "--replicas=1025", check=False)
    assert "1024" in answer
    status = {"status": {"replicas": 2, "readyReplicas": 1, "selector": "disagg.dev/leader=true"}}
    kube("patch", "dg", "scaled", "--subresource=status", "--type=merge", "-p", json.dumps(status))
    path = f"/apis/disagg.dev/v1alpha1/namespaces/{kube.namespace}/disagggroups/scaled/scale"
    scale = json.loads(kube.raw(path))
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": "disagg.dev/leader=true"}


def test_explain_teaches(kube: Kube) -> None:
    assert "Time to first token, seconds." in kube("explain", "dd.spec.slo")
    assert "Node label keys from the widest to the narrowest domain." in kube("explain", "dd.spec.placement.levels")


def test_hc1_crds_are_upgraded_in_place(kube: Kube, rule_base: Build, crds: Kube) -> None:
    """A field that an older CRD lacks is kept after the CRD of this version was applied over it."""
    crd = yaml.safe_load(generated_files(version=VERSION)["crds/disagg.dev_disagggroups.yaml"])
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["updatedReplicas"]
    kube.apply(rule_base("DisaggGroup", {"metadata": {"name": "upgraded"}}))
    patch = json.dumps({"status": {"updatedReplicas": 1}})

    def kept() -> bool:
        kube("patch", "dg", "upgraded", "--subresource=status", "--type=merge", "-p", patch)
        group = kube.get("dg", "upgraded")
        return bool(group and "updatedReplicas" in group.get("status", {}))

    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    kube(*apply, stdin=yaml.safe_dump(crd))
    try:
        wait_until(lambda: not kept_after_clearing(kube, kept), "the old schema prunes", timeout_seconds=60)
    finally:
        kube(*apply, stdin=generated_files(version=VERSION)["crds/disagg.dev_disagggroups.yaml"])
    wait_until(kept, "the new schema keeps the field", timeout_seconds=60)


def kept_after_clearing(kube: Kube, kept: Callable[[], bool]) -> bool:
    kube(
        "patch", "dg", "upgraded", "--subresource=status", "--type=merge", "-p", '{"status": {"updatedReplicas": null}}'
    )
    return kept()


def server_side(kube: Kube, manager: str, document: Document, *, check: bool = True) -> str:
    arguments = ("apply", "--server-side", f"--field-manager={manager}", "-f", "-")
    return kube(*arguments, stdin=yaml.safe_dump(document), check=check)


def test_writers_apply_their_own_parts_without_conflicts(kube: Kube, rule_base: Build) -> None:
    """A repository's document again and again, a second writer beside it, and the operator's status."""
    whole = rule_base("DisaggDeployment", {"metadata": {"name": "applied"}})
    whole["spec"]["prefill"]["template"] = {"env": [{"name": "A", "value": "1"}], "labels": {"team": "search"}}
    head = {key: whole[key] for key in ("apiVersion", "kind", "metadata")}
    server_side(kube, "repository", whole)
    env = [{"name": "B", "value": "2"}]
    gpu = {"gpu": {"type": "a100-80gb"}}
    required = {"model": "opt-13b", "slo": whole["spec"]["slo"]}
    part = {**required, "prefill": {**gpu, "replicas": 2, "template": {"env": env}}, "decode": whole["spec"]["decode"]}
    server_side(kube, "platform", {**head, "spec": part})
    server_side(kube, "repository", whole)
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Because",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    kube(
        "apply", "--server-side", "--subresource=status", "--field-manager=disagg-operator", "-f", "-",
        stdin=yaml.safe_dump({**head, "status": {"conditions": [condition]}}),
    )  # fmt: skip
    whole["spec"]["prefill"]["template"]["env"] = [{"name": "A", "value": "3"}]
    server_side(kube, "repository", whole)
    stored = kube.get("dd", "applied")
    assert stored is not None
    assert stored["spec"]["prefill"]["template"]["env"] == [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}]
    assert kube.condition("dd", "applied", "Ready")


def test_who_says_something_else_is_told_whose_it_is(kube: Kube, rule_base: Build) -> None:
    whole = rule_base("DisaggDeployment", {"metadata": {"name": "contested"}})
    server_side(kube, "repository", whole)
    whole["spec"]["prefill"]["replicas"] = 3
    answer = server_side(kube, "somebody", whole, check=False)
    assert 'conflict with "repository": .spec.prefill.replicas' in answer


def test_the_operator_and_a_scaler_do_not_fight_over_replicas(kube: Kube, rule_base: Build) -> None:
    """A group that somebody scales is applied without replicas afterwards, and keeps what the scaler wrote."""
    group = rule_base("DisaggGroup", {"metadata": {"name": "shared-group"}})
    server_side(kube, "disagg-operator", group)
    kube("scale", "dg/shared-group", "--replicas=5")
    del group["spec"]["replicas"]
    group["metadata"]["labels"] = {"kept": "true"}
    server_side(kube, "disagg-operator", group)
    stored = kube.get("dg", "shared-group")
    assert stored is not None
    assert stored["metadata"]["labels"] == {"kept": "true"}
    assert stored["spec"]["replicas"] == 5


def test_the_next_version_reads_what_this_one_wrote_without_a_webhook(crds: Kube, kube: Kube, rule_base: Build) -> None:
    """The steps of ADR 25 on a group of the test's own: served beside, stored, and the old one away."""
    crd = yaml.safe_load(generated_files(version=VERSION)["crds/disagg.dev_disagggroups.yaml"])
    crd["spec"]["group"] = "next.disagg.dev"
    crd["spec"]["names"] |= {"shortNames": [], "categories": []}
    crd["metadata"] = {"name": "disagggroups.next.disagg.dev"}
    (old,) = crd["spec"]["versions"]
    new = {**old, "name": "v1beta1", "storage": False}
    crd["spec"]["versions"] = [old, new]
    group = rule_base("DisaggGroup", {"metadata": {"name": "older"}}) | {"apiVersion": "next.disagg.dev/v1alpha1"}
    try:
        crds.apply(crd)
        crds("wait", f"crd/{crd['metadata']['name']}", "--for=condition=Established", "--timeout=60s")
        wait_until(lambda: "created" in kube.apply(group, check=False), "the kind is there", timeout_seconds=60)
        read = kube.get("disagggroups.v1beta1.next.disagg.dev", "older")
        assert read is not None
        assert (read["apiVersion"], read["spec"]) == ("next.disagg.dev/v1beta1", group["spec"])

        old["storage"], new["storage"] = False, True
        old["deprecated"] = True
        crds.apply(crd)

        def rewritten() -> bool:
            kube("label", "disagggroups.v1beta1.next.disagg.dev", "older", "stored=anew", "--overwrite")
            found = crds.get("crd", crd["metadata"]["name"])
            return bool(found and found["status"]["storedVersions"] == ["v1alpha1", "v1beta1"])

        wait_until(rewritten, "both versions may lie in storage", timeout_seconds=60)
        only_new = json.dumps({"status": {"storedVersions": ["v1beta1"]}})
        crds("patch", "crd", crd["metadata"]["name"], "--subresource=status", "--type=merge", "-p", only_new)
        crd["spec"]["versions"] = [new]
        crds.apply(crd)
        kept = kube.get("disagggroups.v1beta1.next.disagg.dev", "older")
        assert kept is not None
        assert kept["metadata"]["uid"] == read["metadata"]["uid"]
    finally:
        crds("delete", "crd", crd["metadata"]["name"], "--ignore-not-found", "--wait=true", "--timeout=60s")


def test_every_field_of_the_spec_is_explained(kube: Kube) -> None:
    """`kubectl explain` reads what the server publishes: no field without a sentence."""
    document = json.loads(kube.raw("/openapi/v3/apis/disagg.dev/v1alpha1"))
    kinds = {
        name.rsplit(".", 1)[1]: node for name, node in document["components"]["schemas"].items() if ".disagg." in name
    }

    def silent(node: Document, path: str) -> list[str]:
        found = []
        for name, child in node.get("properties", {}).items():
            inner = {**child, **child.get("items", {})}
            if not child.get("description"):
                found.append(f"{path}.{name}")
            found += silent(inner, f"{path}.{name}")
        return found

    for kind in ("DisaggDeployment", "DisaggGroup"):
        node = next(node for name, node in kinds.items() if name == kind)
        for section in ("spec", "status"):
            assert silent(node["properties"][section], f"{kind}.{section}") == []
