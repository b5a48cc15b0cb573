"""Errors of the simulator.

::

    SimulatorError
    ├── DeploymentError     a deployment makes no sense; names the field, its value and what would be right
    ├── OptionError         an option of a run or a search is out of range
    ├── MeasurementError    a file of measurements cannot be read as it stands; names the file, line and field
    └── UnstableError       the offered rate exceeds what the deployment can carry, so no figure would mean anything

Models that do not fit and names nobody has described are the engine's errors (`disagg_engine.errors`), workloads that
make no sense are the load's (`disagg_load.errors`).
"""

from __future__ import annotations


class SimulatorError(Exception):
    """Base of all errors of the simulator."""


class DeploymentError(SimulatorError, ValueError):
    """A deployment makes no sense."""

    def __init__(self, *, field: str, value: object, wanted: str) -> None:
        self.field = field
        self.value = value
        super().__init__(f"{field} is {value!r}; it must be {wanted}")


class OptionError(SimulatorError, ValueError):
    """An option of a run or a search is out of range."""

    def __init__(self, *, field: str, value: object, wanted: str) -> None:
        self.field = field
        self.value = value
        super().__init__(f"{field} is {value!r}; it must be {wanted}")


class UnstableError(SimulatorError):
    """The offered rate exceeds the capacity: queues grow for as long as the load lasts."""


class MeasurementError(SimulatorError, ValueError):
    """A file of measurements cannot be read; `line` is 1-based, None for the file as a whole."""

    def __init__(self, *, source: str, line: int | None, problem: str) -> None:
        self.source = source
        self.line = line
        super().__init__(f"{source}{'' if line is None else f', line {line}'}: {problem}")
