"""From text or a parsed document to a custom resource, with errors that a person can act on.

Every problem of a document is reported at once, each with the path of the field, the value that was found and what
would be right; an unknown field names its nearest neighbour.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .deployment import DisaggDeployment
from .errors import Problem, SpecError
from .group import DisaggGroup
from .meta import API_VERSION, DEPLOYMENT_KIND, GROUP_KIND

_Kind = TypeVar("_Kind", DisaggDeployment, DisaggGroup)


def load_deployment(text: str) -> list[DisaggDeployment]:
    """Every `DisaggDeployment` in a YAML (or JSON) text, in order; other documents are refused.

    Raises `SpecError`, which names the document, the field and the value.
    """
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise SpecError(subject="YAML", problems=(Problem("", _yaml_message(error)),)) from error
    if not documents:
        raise SpecError(
            subject="YAML", problems=(Problem("", f"no document found; give a {DEPLOYMENT_KIND} ({API_VERSION})"),)
        )
    return [_load(document, number, len(documents)) for number, document in enumerate(documents, start=1)]


def read_deployment(document: Mapping[str, Any]) -> DisaggDeployment:
    """A `DisaggDeployment` from a parsed document, for example what the API server returned.

    Raises `SpecError` when it is not a valid one.
    """
    return _read(DisaggDeployment, document, subject=_subject(DEPLOYMENT_KIND, document))


def read_group(document: Mapping[str, Any]) -> DisaggGroup:
    """A `DisaggGroup` from a parsed document. Raises `SpecError` when it is not a valid one."""
    return _read(DisaggGroup, document, subject=_subject(GROUP_KIND, document))


def _load(document: Any, number: int, count: int) -> DisaggDeployment:
    place = f"document {number}" if count > 1 else "document"
    if not isinstance(document, Mapping):
        problem = Problem("", f"found {_shown(document)}; expected a mapping with apiVersion, kind, metadata and spec")
        raise SpecError(subject=place, problems=(problem,))
    found = (document.get("apiVersion"), document.get("kind"))
    if found != (API_VERSION, DEPLOYMENT_KIND):
        problem = Problem(
            "", f"is apiVersion {found[0]!r}, kind {found[1]!r}; expected {API_VERSION!r}, {DEPLOYMENT_KIND!r}"
        )
        raise SpecError(subject=place, problems=(problem,))
    return read_deployment(document)


def _read(kind: type[_Kind], document: Mapping[str, Any], *, subject: str) -> _Kind:
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        problems = tuple(_problem(kind, details) for details in error.errors(include_url=False))
        raise SpecError(subject=subject, problems=problems) from error


def _subject(kind: str, document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{kind} {name}" if isinstance(name, str) else kind


def _yaml_message(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context or 'not valid YAML'}"
    return f"not valid YAML: {error}"


def _problem(kind: type[BaseModel], details: ErrorDetails) -> Problem:
    path = _path(details["loc"])
    context = details.get("ctx", {})
    if details["type"] == "rule":
        field = context.get("field", "")
        return Problem(".".join(part for part in (path, field) if part), str(context["message"]))
    if details["type"] == "extra_forbidden":
        return Problem(path, _unknown_field(kind, details["loc"]))
    if details["type"] == "missing":
        return Problem(path, "is required")
    remedy = _REMEDIES.get(details["type"], _plain)(details, context)
    return Problem(path, f"got {_shown(details['input'])}; {remedy}")


def _path(loc: Sequence[int | str]) -> str:
    path = ""
    # What is wrong with a key is said of the map: the key itself is the value that is shown.
    for part in loc[:-2] if loc[-1:] == ("[key]",) else loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _unknown_field(kind: type[BaseModel], loc: Sequence[int | str]) -> str:
    known = _known_fields(kind, loc[:-1])
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown field; {hint}known fields are {', '.join(known)}"


def _known_fields(kind: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    model: type[BaseModel] = kind
    for part in loc:
        fields = {info.alias: info.annotation for info in model.model_fields.values()}
        inner = _model_in(fields.get(str(part)))
        model = inner if inner is not None else model
    return sorted(info.alias or name for name, info in model.model_fields.items())


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_Remedy = Callable[[ErrorDetails, Mapping[str, Any]], str]


def _plain(details: ErrorDetails, context: Mapping[str, Any]) -> str:
    return details["msg"][0].lower() + details["msg"][1:]


def _says(text: str) -> _Remedy:
    return lambda details, context: text.format(**context)


_REMEDIES: Mapping[str, _Remedy] = {
    "int_type": _says("give a whole number without quotes"),
    "float_type": _says("give a number without quotes"),
    "bool_type": _says("give true or false"),
    "string_type": _says("give a text"),
    "model_type": _says("give a mapping"),
    "dict_type": _says("give a mapping"),
    "tuple_type": _says("give a list"),
    "enum": _says("give one of {expected}"),
    "literal_error": _says("give {expected}"),
    "greater_than": _says("must be above {gt}"),
    "greater_than_equal": _says("must be at least {ge}"),
    "less_than": _says("must be below {lt}"),
    "less_than_equal": _says("must be at most {le}"),
    "finite_number": _says("must be a finite number"),
    "string_too_long": _says("must have at most {max_length} characters"),
    "string_too_short": _says("must have at least {min_length} characters"),
    "too_long": _says("must have at most {max_length} entries"),
    "too_short": _says("must have at least {min_length} entries"),
    "string_pattern_mismatch": _says("must match {pattern}"),
}
