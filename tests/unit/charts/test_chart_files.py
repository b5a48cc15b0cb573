"""The chart's files agree with each other and with the package."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[3] / "charts" / "disagg"
VALUES_TEXT = (CHART / "values.yaml").read_text(encoding="utf-8")
VALUES: dict[str, Any] = yaml.safe_load(VALUES_TEXT)
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        found: dict[str, Any] = SCHEMA["definitions"][node["$ref"].rsplit("/", 1)[-1]]
        return found
    return node


def sections(schema: dict[str, Any], values: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Every section of our own (not those that follow a Kubernetes type) with its default values."""
    yield path, schema, values
    for name, child in schema["properties"].items():
        inner = resolved(child)
        if inner.get("type") == "object" and "properties" in inner and isinstance(values, dict) and name in values:
            yield from sections(inner, values[name], f"{path}.{name}")


def test_pk3_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (version("disagg"), version("disagg"))
    assert VALUES["image"]["tag"] == ""


def test_hc5_schema_and_values_name_the_same_settings() -> None:
    for path, schema, values in sections(SCHEMA, VALUES):
        assert schema["additionalProperties"] is False, path
        assert set(schema["properties"]) - {"global"} == set(values), path


def test_every_own_setting_is_documented() -> None:
    """A comment stands right above every setting but those that Kubernetes and image references define."""
    known = {"resources", "requests", "limits", "nodeSelector", "tolerations", "affinity", "priorityClassName"}
    known |= {"podLabels", "podAnnotations", "annotations", "repository", "tag", "digest", "pullPolicy"}
    lines = VALUES_TEXT.splitlines()
    for number, line in enumerate(lines):
        found = re.match(r"(\s*)([A-Za-z]+): ", line)
        if found and found[2] not in known:
            assert re.match(rf"{found[1]}# ", lines[number - 1]), f"line {number + 1}: {line}"


def test_schema_knows_no_unused_definition() -> None:
    text = json.dumps(SCHEMA)
    for name in SCHEMA["definitions"]:
        assert f'"#/definitions/{name}"' in text
