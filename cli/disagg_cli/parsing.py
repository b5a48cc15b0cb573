"""Arguments: a parser that answers mistakes in one sentence, and the values that travel on command lines."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from .errors import UsageError


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of printing the usage; keeps the layout of descriptions and examples."""

    def __init__(self, *, prog: str, description: str = "", examples: Sequence[str] = ()) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_examples(examples)

    def add_examples(self, examples: Sequence[str]) -> None:
        """Command lines to show at the end of the help."""
        if examples:
            self.epilog = "\n".join(["examples:", *(f"  {example}" for example in examples)])

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        if unknown:
            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            near = get_close_matches(unknown[1].partition("=")[0], flags, n=1, cutoff=0.75)
            message = f"unknown argument {unknown[1]}; " + (
                f"did you mean {near[0]}?" if near else f"see {self.prog} --help"
            )
        raise UsageError(message)


_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|)")
_UNIT_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """Seconds from 250ms, 0.25, 2s, 1.5m or 1h; above 0."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNIT_SECONDS[found[2]] if found else 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration above 0, like 250ms, 0.25 or 2s")
    return seconds


def window(text: str) -> tuple[float, float]:
    """Seconds from and to, from START:END like 10m:20m, 0:90 or 1h:1.5h."""
    found = [_DURATION.fullmatch(part.strip()) for part in text.split(":")]
    seconds = [float(part[1]) * _UNIT_SECONDS[part[2]] for part in found if part]
    if len(found) != 2 or len(seconds) != 2 or seconds[0] >= seconds[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is no stretch of time, like 10m:20m or 0:90")
    return seconds[0], seconds[1]


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def integer(text: str) -> int:
    """A whole number, negative ones included."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def choice(kind: str, known: Sequence[str], text: str) -> str:
    """`text`, if it is one of `known`."""
    if text not in known:
        near = get_close_matches(text, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise argparse.ArgumentTypeError(f"{text!r} is no known {kind}; {hint}known are {', '.join(known)}")
    return text
