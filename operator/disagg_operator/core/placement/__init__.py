"""Gang placement: a pure planner over a snapshot of nodes and of everything that runs or will run on them.

An unmodified scheduler binds one pod at a time and cannot see a gang. So pods are born gated, and this planner looks
for a domain in which *all* of a gang really packs, node by node. It answers with an assignment of every pod, or with
what is missing and which domain came closest; it never answers with a part.
"""

from disagg_operator.core.placement.domains import Domain, domains, unknown_levels
from disagg_operator.core.placement.fragmentation import Defragmentation, Movable, Move, defragment, fragmenting
from disagg_operator.core.placement.ledger import Ledger
from disagg_operator.core.placement.line import Line
from disagg_operator.core.placement.planner import plan
from disagg_operator.core.placement.request import GangRequest, NoRoom, Pairing, Placed, Present, RoleRule, Spread
from disagg_operator.core.placement.score import describe, home_of, placement_score
from disagg_operator.core.placement.selectors import Requirement
from disagg_operator.core.placement.snapshot import Amounts, NodeView, PodDemand, PodUse, Snapshot, Taint, Tolerance

__all__ = [
    "Amounts",
    "Defragmentation",
    "Domain",
    "GangRequest",
    "Ledger",
    "Line",
    "Movable",
    "Move",
    "NoRoom",
    "NodeView",
    "Pairing",
    "Placed",
    "PodDemand",
    "PodUse",
    "Present",
    "Requirement",
    "RoleRule",
    "Snapshot",
    "Spread",
    "Taint",
    "Tolerance",
    "defragment",
    "describe",
    "domains",
    "fragmenting",
    "home_of",
    "placement_score",
    "plan",
    "unknown_levels",
]
