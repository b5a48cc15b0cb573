"""Domains: nodes that share the value of a label.

A node without the label is a domain of its own: NVLink then ends at the host, and so do GPUs' clique labels, which
nodes outside multi-node NVLink do not carry.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from disagg_contract.labels import HOSTNAME
from disagg_operator.core.placement.snapshot import NodeView

ANYWHERE: Final = "cluster"
"""Value of the one domain that holds all nodes, where no level is required."""


@dataclass(frozen=True, slots=True)
class Domain:
    """``key`` is the node label, ``value`` what its nodes carry; ``key`` is empty for the whole cluster."""

    key: str
    value: str
    nodes: tuple[NodeView, ...]

    @property
    def title(self) -> str:
        return self.value


def domain_of(node: NodeView, key: str) -> tuple[str, str]:
    """Label key and value of the domain of a node at level ``key``."""
    if not key:
        return "", ANYWHERE
    value = node.labels.get(key)
    return (key, value) if value else (HOSTNAME, node.hostname)


def domains(nodes: Iterable[NodeView], key: str | None) -> tuple[Domain, ...]:
    """Domains of level ``key`` in the order of their values; one domain with all nodes where ``key`` is None."""
    members: dict[tuple[str, str], list[NodeView]] = {}
    for node in nodes:
        members.setdefault(domain_of(node, key or ""), []).append(node)
    return tuple(Domain(level, value, tuple(group)) for (level, value), group in sorted(members.items()))


def carries(nodes: Sequence[NodeView], key: str) -> bool:
    """Whether any node has the label at all."""
    return any(node.labels.get(key) for node in nodes)


def unknown_levels(nodes: Sequence[NodeView], keys: Iterable[str]) -> tuple[str, ...]:
    """Those of ``keys`` that no node carries, in order; empty while there are no nodes to judge by."""
    if not nodes:
        return ()
    # The name of a node stands in for a hostname label that it lacks.
    return tuple(key for key in dict.fromkeys(keys) if key != HOSTNAME and not carries(nodes, key))
