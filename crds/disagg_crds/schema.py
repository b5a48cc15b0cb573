"""From pydantic's JSON schema to what a CustomResourceDefinition accepts.

The API server wants a *structural* schema: one type a node, no `$ref`, no `anyOf` that only says "or null", OpenAPI 3.0
spelling of exclusive bounds. Optional fields become plain fields that are not required, since the API server prunes
nulls. Defaults stay, so that a stored object says what it means and CEL rules may rely on fields that have one; an
object whose fields all have defaults gets the default `{}`, without which the inner ones would not apply. Status
schemas carry no defaults: what nobody has written is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT: Final = (
    "description",
    "type",
    "format",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
# Said another way, or of no use to an API server.
_TRANSLATED: Final = frozenset(
    {
        "$defs",
        "additionalProperties",
        "const",
        "default",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "items",
        "patternProperties",
        "properties",
        "propertyNames",
        "readOnly",
        "required",
        "title",
    }
)
KEY_MESSAGE: Final = (
    "keys must be label keys: an optional DNS prefix and '/', then at most 63 letters, digits, '-', '_', '.'"
)


def structural_schema(model: type[BaseModel], *, defaults: bool = True) -> Schema:
    """Structural OpenAPI 3.0 schema of a model, keys in a stable order."""
    raw = model.model_json_schema(by_alias=True, mode="validation" if defaults else "serialization")
    return _Converter(raw.get("$defs", {}), defaults=defaults).convert(raw)


class _Converter:
    def __init__(self, definitions: Mapping[str, Schema], *, defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def convert(self, node: Schema) -> Schema:
        node = self._resolved(node)
        unknown = {key for key in node if not key.startswith("x-kubernetes-")} - set(_KEPT) - _TRANSLATED
        if unknown:
            raise ValueError(f"no translation for {sorted(unknown)} in {node}")
        result: Schema = {key: node[key] for key in _KEPT if key in node}
        if "description" in result:
            result["description"] = " ".join(result["description"].split())
        if "const" in node:
            result["enum"] = [node["const"]]
        _set_exclusive_bounds(node, result)
        if self._defaults and node.get("default") not in (None, []):
            result["default"] = node["default"]
        result.update({key: value for key, value in node.items() if key.startswith("x-kubernetes-")})
        if result.get("x-kubernetes-int-or-string"):
            result.pop("type", None)
        if "items" in node:
            result["items"] = self.convert(node["items"])
        if isinstance(node.get("additionalProperties"), dict):
            result["additionalProperties"] = self.convert(node["additionalProperties"])
        if "patternProperties" in node:
            # A structural schema cannot constrain keys; a rule can.
            ((pattern, child),) = node["patternProperties"].items()
            result["additionalProperties"] = self.convert(child)
            result["x-kubernetes-validations"] = [
                {"message": KEY_MESSAGE, "rule": f"self.all(key, key.size() <= 317 && key.matches('{pattern}'))"}
            ]
        if "properties" in node:
            self._convert_properties(node, result)
        return result

    def _convert_properties(self, node: Schema, result: Schema) -> None:
        properties = {name: self.convert(child) for name, child in node["properties"].items()}
        computed = {name for name, child in node["properties"].items() if child.get("readOnly")}
        required = [name for name in node.get("required", ()) if name not in computed]
        result["properties"] = properties
        if required:
            result["required"] = required
        if not self._defaults:
            return
        for name, raw in node["properties"].items():
            # pydantic is silent about default factories: not required, and no default given, means one.
            by_factory = name not in required and "default" not in raw
            child = properties[name]
            if by_factory and "properties" in child and "required" not in child:
                child["default"] = {}

    def _resolved(self, node: Schema) -> Schema:
        """`node` with its reference, or its only non-null alternative, merged in; its own keys win."""
        while True:
            if "$ref" in node:
                inner = self._definitions[node["$ref"].rsplit("/", 1)[-1]]
            elif "anyOf" in node:
                alternatives = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
                if len(alternatives) != 1:
                    raise ValueError(f"a structural schema has one type a node, not {alternatives}")
                inner = alternatives[0]
            else:
                return node
            node = {**inner, **{key: value for key, value in node.items() if key not in ("$ref", "anyOf")}}


def _set_exclusive_bounds(node: Schema, result: Schema) -> None:
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in node:
            result[bound] = node[exclusive]
            result[exclusive] = True
