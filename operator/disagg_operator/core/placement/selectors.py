"""What a pod asks of the labels of its node: ``nodeSelector`` and required node affinity.

The rules are the scheduler's. A term holds if all of its requirements do, an affinity if any of its terms does, and a
term without requirements never holds. ``NotIn`` and ``DoesNotExist`` hold on a node that lacks the label; ``Gt`` and
``Lt`` compare whole numbers and hold on nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NAME_FIELD: Final = "metadata.name"
"""The one field that ``matchFields`` knows."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of ``matchExpressions``; with ``field`` set, of ``matchFields``, whose key is the node's name."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    field: bool = False

    def holds(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether a node of that name with these labels satisfies it; an unknown operator is never satisfied."""
        found = (name if self.key == NAME_FIELD else None) if self.field else labels.get(self.key)
        if self.operator == "In":
            return found in self.values
        if self.operator == "NotIn":
            return found not in self.values
        if self.operator == "Exists":
            return found is not None
        if self.operator == "DoesNotExist":
            return found is None
        if self.operator in ("Gt", "Lt") and found is not None and self.values:
            try:
                have, bound = int(found), int(self.values[0])
            except ValueError:
                return False
            return have > bound if self.operator == "Gt" else have < bound
        return False


Term = tuple[Requirement, ...]


def any_holds(terms: tuple[Term, ...], labels: Mapping[str, str], name: str) -> bool:
    """Whether the affinity lets a pod onto the node; no terms at all ask for nothing."""
    if not terms:
        return True
    return any(term and all(requirement.holds(labels, name) for requirement in term) for term in terms)
