"""One way to turn a frozen dataclass into flags and environment variables, and back.

A field ``kv_bytes_scale`` of the worker's config is the flag ``--kv-bytes-scale`` and the variable
``DISAGG_WORKER_KV_BYTES_SCALE``; flags override the environment, the environment overrides the default. The field's
type decides how a value is read, its metadata hold the help text and the bounds. Help texts hold no percent signs,
because argparse expands them.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeVar, get_type_hints

from disagg_contract.errors import ConfigError

T = TypeVar("T", bound="Config")


def setting(
    default: Any,
    text: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    words: Sequence[str] = (),
) -> Any:
    """A field: default, help text with unit, and what may stand there.

    ``low`` and ``high`` bound a number inclusively, ``above`` exclusively; a text must be one of ``words``, if any.
    """
    return field(default=default, metadata={"help": text, "low": low, "high": high, "above": above, "words": words})


LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def log_level_setting() -> Any:
    """The field that every program has."""
    return setting("info", "debug, info, warning or error", words=LOG_LEVELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Base of the program configs."""

    program: ClassVar[str]


def flag(name: str) -> str:
    """Flag of a field: ``kv_port`` → ``--kv-port``."""
    return "--" + name.replace("_", "-")


def variable(kind: type[Config], name: str) -> str:
    """Environment variable of a field: worker's ``kv_port`` → ``DISAGG_WORKER_KV_PORT``."""
    return f"DISAGG_{kind.program}_{name}".upper()


def to_args(config: Config) -> list[str]:
    """Command-line arguments that :func:`parse` turns back into ``config``; defaults are left out."""
    args: list[str] = []
    for item in fields(config):
        value = getattr(config, item.name)
        if value != item.default:
            args.append(f"{flag(item.name)}={_show(value)}")
    return args


def add_arguments(parser: argparse.ArgumentParser, kind: type[Config]) -> None:
    """Add one flag a field, with unit, default and variable in its help."""
    for item in fields(kind):
        parser.add_argument(
            flag(item.name),
            dest=item.name,
            metavar=item.name.rpartition("_")[2].upper(),
            default=None,
            help=f"{item.metadata['help']} (default {_show(item.default) or 'empty'}; {variable(kind, item.name)})",
        )


def parse(kind: type[T], argv: Sequence[str], environ: Mapping[str, str]) -> T:
    """Config from flags over environment over defaults.

    Raises ConfigError with every wrong setting, one a line: source, value, and what would be right.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_arguments(parser, kind)
    return from_namespace(kind, parser.parse_args(list(argv)), environ)


def from_namespace(kind: type[T], namespace: argparse.Namespace, environ: Mapping[str, str]) -> T:
    """Config from flags that another parser has parsed with :func:`add_arguments`."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    hints = get_type_hints(kind)
    for item in fields(kind):
        text = getattr(namespace, item.name, None)
        source = flag(item.name)
        if text is None:
            source = variable(kind, item.name)
            text = environ.get(source)
        if text is None:
            continue
        try:
            values[item.name] = _read(hints[item.name], text, item.metadata)
        except ValueError as error:
            problems.append(f"{source}={text}: {error}")
    if problems:
        raise ConfigError("\n".join(problems))
    return kind(**values)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(message)


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _read(hint: Any, text: str, metadata: Mapping[str, Any]) -> Any:
    if hint is bool:
        known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if text.lower() not in known:
            raise ValueError("use true or false")
        return known[text.lower()]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        try:
            return hint(text)
        except ValueError:
            raise ValueError("use one of " + ", ".join(member.value for member in hint)) from None
    if hint in (int, float):
        return _number(hint, text, metadata)
    words = metadata["words"]
    if words and text.lower() not in words:
        raise ValueError("use one of " + ", ".join(words))
    return text.lower() if words else text


def _number(hint: Any, text: str, metadata: Mapping[str, Any]) -> int | float:
    try:
        value: int | float = hint(text)
    except ValueError:
        raise ValueError("use a whole number" if hint is int else "use a number") from None
    if not math.isfinite(value):
        raise ValueError("use a finite number")
    if not metadata["low"] <= value <= metadata["high"]:
        bounded = math.isfinite(metadata["high"])
        raise ValueError(
            f"use a number from {metadata['low']:g} to {metadata['high']:g}"
            if bounded
            else f"use a number of at least {metadata['low']:g}"
        )
    if value <= metadata["above"]:
        raise ValueError(f"use a number above {metadata['above']:g}")
    return value
