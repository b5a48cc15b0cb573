"""Fields of measurement files: text or JSON values in, checked numbers out, and one sentence where that fails."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from disagg_simulator.errors import MeasurementError


class Row:
    """One line's fields. Everything asked of it names the file, the line and the field when it is not there."""

    def __init__(self, fields: Mapping[str, Any], *, source: str, line: int | None) -> None:
        self.fields = fields
        self.source = source
        self.line = line

    def fail(self, problem: str) -> NoReturn:
        raise MeasurementError(source=self.source, line=self.line, problem=problem)

    def text(self, field: str) -> str:
        """A text; blank is allowed, missing is not."""
        value = self.fields.get(field)
        if not isinstance(value, str):
            self.fail(f"{field} is {value!r}, a text is needed")
        return value.strip()

    def number(self, field: str) -> float:
        """A finite number above 0."""
        value = self.fields.get(field)
        try:
            number = math.nan if isinstance(value, bool) or value is None else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            self.fail(f"{field} is {value!r}, a finite number above 0 is needed")
        return number

    def whole(self, field: str, *, blank: int | None = None) -> int:
        """A whole number of at least 1; `blank` where the field is empty or absent and that is allowed."""
        value = self.fields.get(field)
        if blank is not None and value in (None, ""):
            return blank
        number = self.number(field)
        if number != int(number):
            self.fail(f"{field} is {value!r}, a whole number of at least 1 is needed")
        return int(number)

    def inner(self, field: str) -> Row:
        """A nested object."""
        value = self.fields.get(field)
        if not isinstance(value, Mapping):
            self.fail(f"{field} is {value!r}, an object is needed")
        return Row(value, source=self.source, line=self.line)
