"""Errors of the simulator.

::

    SimulatorError
    ├── FieldError          names the field, its value and what would be right
    │   ├── DeploymentError a deployment makes no sense
    │   └── OptionError     an option of a run or a search is out of range
    └── MeasurementError    a file of measurements cannot be read as it stands; names the file, line and field

Models that do not fit and names nobody has described are the engine's errors (`disagg_engine.errors`), workloads that
make no sense are the load's (`disagg_load.errors`).
"""

from __future__ import annotations


class SimulatorError(Exception):
    """Base of all errors of the simulator."""


class FieldError(SimulatorError, ValueError):
    """A value is out of range."""

    def __init__(self, *, field: str, value: object, wanted: str) -> None:
        self.field = field
        self.value = value
        super().__init__(f"{field} is {value!r}; it must be {wanted}")


class DeploymentError(FieldError):
    """A deployment makes no sense."""


class OptionError(FieldError):
    """An option of a run or a search is out of range."""


class MeasurementError(SimulatorError, ValueError):
    """A file of measurements cannot be read; `line` is 1-based, None for the file as a whole."""

    def __init__(self, *, source: str, line: int | None, problem: str) -> None:
        self.source = source
        self.line = line
        super().__init__(f"{source}{'' if line is None else f', line {line}'}: {problem}")
