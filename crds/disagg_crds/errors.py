"""What this package raises.

```
CrdError
├── SpecError      a document does not describe a valid custom resource; lists every problem
└── NameTooLong    a derived name cannot be built from what was given
```
"""

from __future__ import annotations

from dataclasses import dataclass


class CrdError(Exception):
    """Root of the errors of `disagg_crds`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where (`spec.prefill.replicas`), and what would be right."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SpecError(CrdError):
    """A document that is not a valid custom resource. `problems` has one entry per fault, in document order."""

    def __init__(self, *, subject: str, problems: tuple[Problem, ...]) -> None:
        self.subject = subject
        self.problems = problems
        lines = [str(problem) for problem in problems]
        text = f"{subject}: {lines[0]}" if len(lines) == 1 else "\n  ".join([f"{subject}:", *lines])
        super().__init__(text)


class NameTooLong(CrdError):
    """A suffix that leaves no room for the name of its owner."""
