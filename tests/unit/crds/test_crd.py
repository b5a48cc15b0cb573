"""The generated CRDs: structural, bounded, small, up to date."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_crds import generate
from disagg_crds.base import Model
from disagg_crds.conditions import ConditionType
from disagg_crds.crd import KINDS, Kind, build_crd
from disagg_crds.schema import structural_schema

ROOT = Path(__file__).resolve().parents[3]
VERSION = generate.distribution_version("disagg")


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def schema_of(kind: Kind) -> dict[str, Any]:
    version = build_crd(kind, version=VERSION)["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


@pytest.fixture(params=KINDS, ids=[kind.short_name for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_schemas_are_structural(kind: Kind) -> None:
    for path, node in nodes(schema_of(kind)):
        assert not {"$ref", "anyOf", "allOf", "oneOf", "title", "const", "$defs"} & set(node), path
        assert ("type" in node) != bool(node.get("x-kubernetes-int-or-string")), path
        assert isinstance(node.get("exclusiveMinimum", True), bool), path


def test_everything_is_described(kind: Kind) -> None:
    for path, node in nodes(schema_of(kind)):
        leaf = path.rsplit(".", 1)[-1]
        if path and not leaf.endswith("[]") and leaf != "metadata":
            assert node.get("description"), path


def test_lists_maps_and_texts_of_the_spec_are_bounded(kind: Kind) -> None:
    for path, node in nodes(schema_of(kind)["properties"]["spec"]):
        if node.get("type") == "array":
            assert "maxItems" in node, path
            assert "x-kubernetes-list-type" in node, path
        if node.get("type") == "object" and "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node, path


def test_a_status_has_no_defaults(kind: Kind) -> None:
    for path, node in nodes(schema_of(kind)["properties"]["status"]):
        assert "default" not in node, path


def test_op9_every_status_key_survives_pruning(kind: Kind) -> None:
    """The API server drops what the schema does not name: the models may write nothing else."""
    annotation = kind.model.model_fields["status"].annotation
    assert isinstance(annotation, type)
    assert issubclass(annotation, Model)
    written = {info.alias for info in annotation.model_fields.values()}
    written |= {field.alias for field in annotation.model_computed_fields.values()}
    assert written == set(schema_of(kind)["properties"]["status"]["properties"])


def test_hc2_crds_fit_into_a_client_side_apply(kind: Kind) -> None:
    assert len(json.dumps(build_crd(kind, version=VERSION))) < 200 * 1024


def test_pk3_crds_carry_the_version(kind: Kind) -> None:
    assert build_crd(kind, version=VERSION)["metadata"]["labels"]["app.kubernetes.io/version"] == VERSION


def test_groups_scale_and_deployments_do_not() -> None:
    by_name = {kind.short_name: build_crd(kind, version=VERSION)["spec"]["versions"][0] for kind in KINDS}
    assert by_name["dd"]["subresources"] == {"status": {}}
    assert by_name["dg"]["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


def test_columns_read_paths_that_exist(kind: Kind) -> None:
    schema = schema_of(kind)
    for column in kind.columns:
        if column.path.startswith(".metadata"):
            continue
        node = schema
        for part in column.path.split("[?")[0].strip(".").split("."):
            node = node["properties"][part] if "properties" in node else node["additionalProperties"]
        if "[?" in column.path:
            type_, field = column.path.split('"')[1], column.path.rsplit(".", 1)[1]
            assert type_ in set(ConditionType)
            assert field in node["items"]["properties"]


def test_conditions_are_a_map_by_type(kind: Kind) -> None:
    conditions = schema_of(kind)["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_nested_defaults_apply_to_an_absent_parent() -> None:
    spec = schema_of(KINDS[0])["properties"]["spec"]
    assert spec["properties"]["engine"]["default"] == {}
    assert spec["properties"]["placement"]["properties"]["levels"]["default"] == [
        "nvidia.com/gpu.clique",
        "kubernetes.io/hostname",
    ]
    assert "default" not in spec["properties"]["prefill"]
    assert "default" not in spec["properties"]["slo"]


def test_two_types_for_one_field_are_refused() -> None:
    class Torn(Model):
        value: int | str

    with pytest.raises(ValueError, match="one type a node"):
        structural_schema(Torn)


def test_generated_files_are_up_to_date() -> None:
    assert generate.stale_files(ROOT, version=VERSION) == []


def test_check_names_the_stale_file_and_write_repairs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check", "--root", str(tmp_path)]) == 1
    assert "crds/disagg.dev_disaggdeployments.yaml is out of date" in capsys.readouterr().err
    assert generate.main(["--write", "--root", str(tmp_path)]) == 0
    assert generate.main(["--check", "--root", str(tmp_path)]) == 0


def test_print_needs_no_source_tree(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--print"]) == 0
    names = [crd["metadata"]["name"] for crd in yaml.safe_load_all(capsys.readouterr().out)]
    assert names == ["disaggdeployments.disagg.dev", "disagggroups.disagg.dev"]
