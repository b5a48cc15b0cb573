"""How well a deployment is placed, from 0 to 1, and the sentence that goes with it.

What placement is for is that KV stays on fast links. So the score of a level is the share of the pairs of a prefill and
a decode instance that lie, with all their pods, in one domain of that level: the probability that the KV of a request
does not leave the domain when both instances are drawn at random. Where there are no such pairs (colocated instances),
it is the share of the instances that do not cross a domain themselves. The score of a deployment is the mean over the
levels that it asks for: the required one (the widest of its levels where none is required), and the preferred one.

So it is 1 if everything that was asked for is met, and 0 if no pair shares a domain. It is computed from where the pods
are, never remembered; a deployment of which nothing is placed has none.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

from disagg_contract.labels import Role
from disagg_operator.core.placement.domains import domain_of
from disagg_operator.core.placement.request import Present
from disagg_operator.core.placement.snapshot import NodeView

Home = tuple[str, str]
"""Label key and value of a domain."""
_NAMED = 6
"""Nodes of a role named in a sentence."""


def placement_score(pods: Sequence[Present], nodes: Mapping[str, NodeView], levels: Sequence[str]) -> float | None:
    """Score of the placed pods of a deployment over the levels that it asks for; None while none is placed.

    ``nodes`` by name. A pod whose node is unknown shares a domain with nobody. Rounded to thousandths.
    """
    if not pods:
        return None
    shares = [_share(pods, nodes, level) for level in dict.fromkeys(levels)]
    return round(sum(shares) / len(shares), 3) if shares else 1.0


def _share(pods: Sequence[Present], nodes: Mapping[str, NodeView], level: str) -> float:
    homes = _homes(pods, nodes, level)
    prefill = [home for (role, _), home in homes.items() if role == Role.PREFILL.value]
    decode = [home for (role, _), home in homes.items() if role == Role.DECODE.value]
    pairs = list(product(prefill, decode))
    if pairs:
        return sum(1 for one, other in pairs if one is not None and one == other) / len(pairs)
    return sum(1 for home in homes.values() if home is not None) / len(homes)


def _homes(pods: Sequence[Present], nodes: Mapping[str, NodeView], level: str) -> dict[tuple[str, str], Home | None]:
    """The domain of each instance by role and name; None where it crosses one, or is on an unknown node."""
    found: dict[tuple[str, str], set[Home | None]] = {}
    for pod in pods:
        node = nodes.get(pod.node)
        home = None if node is None else domain_of(node, level)
        found.setdefault((pod.role, pod.instance), set()).add(home)
    return {key: next(iter(homes)) if len(homes) == 1 else None for key, homes in found.items()}


def home_of(pods: Sequence[Present], nodes: Mapping[str, NodeView], level: str) -> Home | None:
    """The domain of ``level`` that most instances are in; None while none is."""
    count = Counter(home for home in _homes(pods, nodes, level).values() if home is not None)
    return min(count, key=lambda home: (-count[home], home)) if count else None


def describe(pods: Sequence[Present], nodes: Mapping[str, NodeView], level: str) -> str:
    """What is placed where, and whether KV stays inside; the same words as long as nothing moves."""
    if not pods:
        return ""
    parts = []
    for role in sorted({pod.role for pod in pods}, key=_by_role):
        mine = [pod for pod in pods if pod.role == role]
        names = sorted({pod.node for pod in mine})
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        parts.append(f"{len({pod.instance for pod in mine})} {role} on {', '.join(names[:_NAMED])}{more}")
    homes = [home for home in _homes(pods, nodes, level).values() if home is not None]
    home = home_of(pods, nodes, level)
    text = "; ".join(parts)
    total = len({(pod.role, pod.instance) for pod in pods})
    if home is None:
        return f"{text}; no instance lies in one domain of {level}"
    inside = sum(1 for found in homes if found == home)
    if inside == total:
        return f"{text}; all in {home[1]} ({home[0]})"
    return f"{text}; {inside} of {total} instances in {home[1]} ({home[0]}), the others elsewhere"


def _by_role(role: str) -> tuple[int, str]:
    order = [known.value for known in Role]
    return (order.index(role) if role in order else len(order), role)
