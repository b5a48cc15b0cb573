"""The base of every model: one declaration, checked twice.

A custom resource is validated in two places: by the API server, with the schema and CEL rules in the CRD, and by this
package, which also serves `disagg up FILE` where no API server exists. Both must say the same thing. So a rule that a
schema cannot express is declared once, as a `Rule` that carries its CEL text beside the Python predicate and one
message for both; the generator writes the first into the CRD and `Model` runs the second. Every rule has an accept and
a reject case that the tests put to both sides.

Attributes are snake_case, documents camelCase. Values are frozen. A `null` in a document means "absent", as it does to
the API server, which prunes nulls before it applies defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import CoreSchema

#: A whole number. `"2"` and `2.0` are refused, as the API server refuses them.
Whole = Annotated[int, Field(strict=True)]
#: A finite number, whole or not.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
#: true or false, not "yes", 1 or "true".
Flag = Annotated[bool, Field(strict=True)]
#: Free text for people, bounded as the API server bounds condition messages.
Message = Annotated[str, Field(max_length=32768)]

# A label key: optional DNS prefix, then a name of at most 63 characters.
LABEL_KEY_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
# A resource of nodes that is none of Kubernetes' own: a label key with its prefix.
RESOURCE_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
# A DNS-1035 label: what a Service name has to be, so the strictest of all that is derived from a deployment's name.
DNS_LABEL_PATTERN = r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"
# A GPU, or a link between them, in a catalogue that users may extend.
CATALOGUE_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
QUANTITY_PATTERN = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$"

LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=LABEL_KEY_PATTERN)]
ResourceName = Annotated[str, Field(min_length=1, max_length=317, pattern=RESOURCE_PATTERN)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE_PATTERN)]


def _quantity_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


#: A Kubernetes quantity (`500m`, `2Gi`, 1); always text once loaded.
Quantity = Annotated[
    str,
    Field(max_length=32, pattern=QUANTITY_PATTERN),
    BeforeValidator(_quantity_text),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]


def format_time(value: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as Kubernetes stores times."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


#: A moment with a time zone; whole seconds once written.
Timestamp = Annotated[
    AwareDatetime,
    PlainSerializer(format_time, return_type=str, when_used="unless-none"),
    Field(json_schema_extra={"format": "date-time"}),
]


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint across fields.

    `holds` gets the model and returns whether it is satisfied; `cel` says the same to the API server, where `self` is
    the object as stored (camelCase, defaults applied). `field`, where set, is the camelCase name of the field to blame,
    relative to the model. A `transition` rule compares with `oldSelf`: only the API server can check it.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]
    field: str | None = None
    transition: bool = False


class Model(BaseModel):
    """A frozen piece of a custom resource that refuses unknown fields."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            return {key: value for key, value in data.items() if value is not None}
        return data

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for rule in self.rules:
            if not rule.transition and not rule.holds(self):
                raise PydanticCustomError("rule", "{message}", {"message": rule.message, "field": rule.field or ""})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        if cls.rules:
            resolved = handler.resolve_ref_schema(schema)
            resolved["x-kubernetes-validations"] = [_cel_entry(rule) for rule in cls.rules]
        return schema

    def to_dict(self) -> dict[str, Any]:
        """The document: camelCase keys, JSON types, fields without a value left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusModel(Model):
    """A piece of a status: unknown fields are ignored, because a newer operator may have written them."""

    model_config = ConfigDict(extra="ignore")


def _cel_entry(rule: Rule) -> dict[str, Any]:
    entry: dict[str, Any] = {"rule": rule.cel, "message": rule.message}
    if rule.field is not None:
        entry["fieldPath"] = f".{rule.field}"
    return entry
