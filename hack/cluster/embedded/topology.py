"""Which nodes a cluster has, which NVLink domain each is in, and how many GPUs it has.

In: what a person wrote (`--nodes 3 --gpus 8,4 --topology two-domains`). Out: one `Node` for each machine, real or
fake. Pure: nothing here asks a cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from embedded.errors import SpecError
from embedded.names import MAX_NODES

GPU_RESOURCE = "nvidia.com/gpu"
DOMAIN_LABEL = "nvidia.com/gpu.clique"
DEFAULT_GPUS = "4"
DEFAULT_TOPOLOGY = "two-domains"
KWOK_ANNOTATION = "kwok.x-k8s.io/node"
KWOK_LABEL = "type"
_DOMAIN_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_GPU_PRODUCT = "NVIDIA-A100-SXM4-80GB"
_GPU_MEMORY_MIB = 81920

# The domains of each shape; nodes go to them in turn.
_NAMED_TOPOLOGIES = {"one-domain": ("domain-a",), "two-domains": ("domain-a", "domain-b"), "one-node": ("domain-a",)}


@dataclass(frozen=True)
class Node:
    """One machine of the cluster."""

    index: int
    name: str
    domain: str
    gpus: int

    @property
    def labels(self) -> dict[str, str]:
        """What NVIDIA's feature discovery would write on a machine like this."""
        labels = {
            DOMAIN_LABEL: self.domain,
            "nvidia.com/gpu.product": _GPU_PRODUCT,
            "nvidia.com/gpu.memory": str(_GPU_MEMORY_MIB),
            "nvidia.com/gpu.count": str(self.gpus),
            "nvidia.com/gpu.present": "true",
        }
        return labels if self.gpus else {}


def parse_gpus(spec: str, *, nodes: int) -> list[int]:
    """Read `8` (every node) or `8,4` (one number a node); the last number goes on for nodes that have none.

    >>> parse_gpus("8,4", nodes=3)
    [8, 4, 4]
    """
    words = [word.strip() for word in spec.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise SpecError(f"--gpus {spec!r}: write one number for every node (8), or one for each of them (8,4)")
    counts = [int(word) for word in words]
    if len(counts) > nodes:
        raise SpecError(f"--gpus {spec!r} has {len(counts)} numbers for {nodes} node(s): leave some out or add --nodes")
    return counts + counts[-1:] * (nodes - len(counts))


def parse_topology(spec: str, *, nodes: int) -> list[str]:
    """Read a topology's name, or a list of domains with one name a node, and return the domain of each node."""
    if spec in _NAMED_TOPOLOGIES:
        domains = _NAMED_TOPOLOGIES[spec]
        return [domains[index % len(domains)] for index in range(nodes)]
    domains = tuple(word.strip() for word in spec.split(","))
    known = ", ".join(_NAMED_TOPOLOGIES)
    if len(domains) != nodes:
        raise SpecError(
            f"--topology {spec!r}: use one of {known}, or name one domain for each of the {nodes} node(s): a,a,b"
        )
    for domain in domains:
        if not _DOMAIN_NAME.fullmatch(domain):
            raise SpecError(
                f"--topology {spec!r}: {domain!r} can't be the value of a label; use letters, digits and dashes"
            )
    return list(domains)


def real_nodes(*, count: int, gpus: str, topology: str) -> list[Node]:
    """List the nodes that have a kubelet: node-1, node-2, …"""
    if topology == "one-node":
        count = 1
    if not 1 <= count <= MAX_NODES:
        raise SpecError(f"--nodes {count}: a cluster has between 1 and {MAX_NODES} real nodes; for more, use --kwok")
    pairs = zip(parse_topology(topology, nodes=count), parse_gpus(gpus, nodes=count), strict=True)
    return [Node(index, f"node-{index}", domain, number) for index, (domain, number) in enumerate(pairs, start=1)]


def kwok_nodes(*, count: int, gpus: int, domain_size: int) -> list[Node]:
    """List the nodes that only seem to run: kwok-1, kwok-2, …, `domain_size` of them in each NVLink domain."""
    if count < 0 or gpus < 0 or domain_size < 1:
        raise SpecError("--kwok and --kwok-gpus must be 0 or more, --kwok-domain-size 1 or more")
    return [Node(i, f"kwok-{i}", f"kwok-domain-{(i - 1) // domain_size + 1}", gpus) for i in range(1, count + 1)]
