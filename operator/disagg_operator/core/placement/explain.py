"""What a domain lacks, in numbers and in a sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disagg_operator.core.placement.items import Item, Vector
from disagg_operator.core.placement.packing import Packing
from disagg_operator.core.quantity import show


@dataclass(frozen=True, slots=True)
class Shortage:
    """``missing`` by resource. ``needed`` and ``free`` are sums over the gang and over the domain's usable nodes.

    Where the sums would do and the pieces do not, ``fragmented`` is set and ``missing`` is what the left-over pods ask
    of the first resource. ``rank`` orders domains from nearly fitting to hopeless.
    """

    missing: dict[str, int]
    needed: Mapping[str, int]
    free: Mapping[str, int]
    left_over: tuple[int, ...]
    fragmented: bool
    rank: tuple[int, ...]


def shortage(
    items: Sequence[Item], free: Sequence[Vector], dimensions: Sequence[str], packing: Packing, *, devices: int
) -> Shortage:
    """What kept the gang out of a domain whose usable nodes have ``free``; the first dimensions are ``devices``."""
    needed = {resource: sum(item.size[axis] for item in items) for axis, resource in enumerate(dimensions)}
    usable = {resource: sum(vector[axis] for vector in free) for axis, resource in enumerate(dimensions)}
    missing = {
        resource: needed[resource] - usable[resource] for resource in dimensions if needed[resource] > usable[resource]
    }
    fragmented = not missing and bool(packing.left_over)
    if fragmented:
        axis = _scarce_axis(items, free, packing)
        missing = {dimensions[axis]: sum(items[index].size[axis] for index in packing.left_over)}
    lacking = sum(missing.get(resource, 0) for resource in dimensions[: max(1, devices)])
    rank = (lacking, len(packing.left_over), len(missing))
    return Shortage(missing, needed, usable, packing.left_over, fragmented, rank)


def _scarce_axis(items: Sequence[Item], free: Sequence[Vector], packing: Packing) -> int:
    """The resource that no single node has enough of for the first left-over pod; the first one if all are tight."""
    size = items[packing.left_over[0]].size
    tight = [axis for axis, need in enumerate(size) if need > 0 and all(vector[axis] < need for vector in free)]
    return tight[0] if tight else next(axis for axis, need in enumerate(size) if need > 0)


def explain(lack: Shortage, *, names: Sequence[str], pods: int, required: str | None, domain: str) -> str:
    """The shortage as a sentence that names the resource, the amounts and the domain that came closest.

    ``names`` of the items that were packed; ``pods``: how many pods they are.
    """
    where = f"in one domain of {required}" if required else "on the nodes of the cluster"
    noun = "pod" if pods == 1 else "pods"
    start = f"{pods} {noun} must fit together {where}; the closest is {domain}: "
    if not lack.fragmented:
        parts = [
            f"{show(resource, lack.needed[resource])} {resource} needed, {show(resource, lack.free[resource])} free"
            for resource in lack.missing
        ]
        return start + ", ".join(parts)
    resource, _ = next(iter(lack.missing.items()))
    left = ", ".join(names[index] for index in lack.left_over[:3])
    more = f" and {len(lack.left_over) - 3} more" if len(lack.left_over) > 3 else ""
    return (
        f"{start}{show(resource, lack.needed[resource])} {resource} needed and "
        f"{show(resource, lack.free[resource])} free, but no node has room left for {left}{more}"
    )
