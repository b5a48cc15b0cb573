"""Which pods keep holes small, and moves that make them larger.

A hole is what is free on one node: a pod never uses two. So a pod fragments more, the larger the hole that it would
leave: the only pod on a node of eight keeps a whole node from everybody, one of many on a full node keeps a corner.
When instances have to go, those that fragment most go first.

Moves are never made on our own account: a move is a pod that ends here and starts there, its KV lost. They are worked
out when somebody asks, as a list in which every pod finds its new room free when its turn comes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from disagg_operator.core.placement.domains import domain_of
from disagg_operator.core.placement.planner import plan
from disagg_operator.core.placement.request import GangRequest, Placed
from disagg_operator.core.placement.snapshot import Amounts, PodDemand, PodUse, Snapshot
from disagg_operator.core.quantity import CPU, MEMORY, PODS

_ELSEWHERE = 1 << 20
"""More than any node has devices: pods outside of their deployment's domain come first."""


def fragmenting(
    pods: Mapping[str, tuple[str, Amounts]], snapshot: Snapshot, *, level: str, home: str | None
) -> dict[str, int]:
    """How much each pod fragments, by UID; more goes first.

    ``pods``: node and requests by UID. ``home``: value of the domain of ``level`` where most of the deployment is: a
    pod outside fragments the deployment as well. A pod on an unknown node is left out.
    """
    nodes = {node.name: node for node in snapshot.nodes}
    found: dict[str, int] = {}
    for uid, (name, requests) in pods.items():
        node = nodes.get(name)
        if node is None:
            continue
        devices = [resource for resource in requests if resource not in (CPU, MEMORY, PODS)]
        hole = sum(max(0, snapshot.free[name].get(resource, 0) + requests[resource]) for resource in devices)
        elsewhere = home is not None and domain_of(node, level)[1] != home
        found[uid] = hole + (_ELSEWHERE if elsewhere else 0)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Movable:
    """A pod that may be moved: what it wants of a node, where it is, and the level whose domain it stays in."""

    pod: PodDemand
    node: str
    level: str | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One pod from one node to another."""

    uid: str
    name: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """``moves`` in order. ``enough``: the gang that asked fits afterwards; None where none asked.

    ``emptied`` nodes have no movable pod left.
    """

    moves: tuple[Move, ...] = ()
    enough: bool | None = None
    emptied: tuple[str, ...] = ()


@dataclass(slots=True)
class _Board:
    """The cluster as it would be after the moves so far."""

    snapshot: Snapshot
    movable: dict[str, Movable]
    moves: list[Move] = field(default_factory=list)

    def on(self, node: str) -> list[Movable]:
        mine = [item for item in self.movable.values() if item.node == node]
        return sorted(mine, key=lambda item: (-_devices(item.pod), item.pod.uid))


def defragment(
    snapshot: Snapshot, movable: Sequence[Movable], *, gang: GangRequest | None = None, most: int = 16
) -> Defragmentation:
    """Moves that empty nodes, the emptiest first, into the fullest that take their pods; until ``gang`` fits, if given.

    A node is emptied whole or not at all, only into nodes that are fuller, and with at most ``most`` moves in all. No
    moves where the gang fits as it is, or would not fit even then.
    """
    board = _Board(snapshot, {item.pod.uid: item for item in movable})
    if gang is not None and isinstance(plan(gang, snapshot), Placed):
        return Defragmentation(enough=True)
    emptied: list[str] = []
    for node in _emptiest(board):
        # Nobody is moved twice.
        after = None if any(move.target == node for move in board.moves) else _empty(board, node, most)
        if after is None:
            continue
        board = after
        emptied.append(node)
        if gang is not None and isinstance(plan(gang, board.snapshot), Placed):
            return Defragmentation(tuple(board.moves), True, tuple(emptied))
    if gang is not None:
        return Defragmentation(enough=False)
    return Defragmentation(tuple(board.moves), None, tuple(emptied))


def _emptiest(board: _Board) -> list[str]:
    """Nodes whose devices are used by movable pods alone, those with the least to move first."""
    held: dict[str, int] = {}
    for use in board.snapshot.uses:
        node = use.node
        amount = sum(value for resource, value in use.requests if resource not in (CPU, MEMORY, PODS))
        if not amount:
            continue
        fixed = use.uid not in board.movable
        held[node] = -1 if fixed or held.get(node, 0) < 0 else held.get(node, 0) + amount
    return sorted((node for node, amount in held.items() if amount > 0), key=lambda node: (held[node], node))


def _empty(board: _Board, node: str, most: int) -> _Board | None:
    """The board once a node's pods are elsewhere; None where that can't be."""
    before = {item.name: item for item in board.snapshot.nodes}
    mine = board.on(node)
    if not mine or len(board.moves) + len(mine) > most or node not in before:
        return None
    used = _used(board.snapshot, node)
    after = _Board(board.snapshot, dict(board.movable), list(board.moves))
    for item in mine:
        spot = _spot(after.snapshot, item, node, used)
        if spot is None:
            return None
        requests = tuple(sorted(item.pod.requests.items()))
        moved = PodUse(item.pod.uid, spot, requests, priority=item.pod.priority)
        after.snapshot = after.snapshot.without({item.pod.uid}).with_more([moved])
        after.movable[item.pod.uid] = replace(item, node=spot)
        after.moves.append(Move(item.pod.uid, item.pod.name, node, spot))
    return after


def _spot(snapshot: Snapshot, item: Movable, source: str, used: int) -> str | None:
    """The fullest node that takes the pod, in its domain, no emptier than the one it leaves."""
    nodes = {node.name: node for node in snapshot.nodes}
    home = domain_of(nodes[source], item.level) if item.level else None
    wants = {**item.pod.requests, PODS: 1}
    fitting = [
        (_free(snapshot, name, item.pod), name)
        for name, node in nodes.items()
        if name != source
        and item.pod.accepts(node)
        and (home is None or (item.level is not None and domain_of(node, item.level) == home))
        and all(snapshot.free[name].get(resource, 0) >= value for resource, value in wants.items())
        and _used(snapshot, name) >= used
    ]
    return min(fitting)[1] if fitting else None


def _devices(pod: PodDemand) -> int:
    return sum(value for resource, value in pod.requests.items() if resource not in (CPU, MEMORY, PODS))


def _free(snapshot: Snapshot, node: str, pod: PodDemand) -> int:
    return sum(snapshot.free[node].get(resource, 0) for resource in pod.requests if resource not in (CPU, MEMORY, PODS))


def _used(snapshot: Snapshot, node: str) -> int:
    """Devices in use on a node."""
    return sum(
        value
        for use in snapshot.uses
        if use.node == node
        for resource, value in use.requests
        if resource not in (CPU, MEMORY, PODS)
    )
