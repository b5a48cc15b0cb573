"""Replicas of a group: one writer for each mode.

With ``replicas`` in the spec the operator is the writer: it keeps the group equal and puts a hand-made scale back, with
an Event that says so. A scale is hand-made where the group has another number than it last had; where it has that and
the spec says something else, the spec was edited. With ``autoscaling`` somebody else writes through ``/scale``; the
operator sets the number once, when it creates the group, and never again. What the group had last is remembered in the
parent's status, so that a group which was deleted by hand comes back as it was and not as it once began.
"""

from dataclasses import dataclass

from disagg_crds import RoleSpec


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """``replicas``: what the group has after this pass. ``create`` and ``revert`` say whether it has to be written.

    ``found`` is the number that a revert replaces; ``by_hand``: somebody other than the spec set it.
    """

    replicas: int
    create: bool = False
    revert: bool = False
    found: int | None = None
    by_hand: bool = False


def decide_group(spec: RoleSpec, *, live: int | None, remembered: int | None) -> GroupDecision:
    """Replicas of the group of a role.

    ``live``: the group's ``spec.replicas``, None when there is no group. ``remembered``: the last number known of it.
    """
    if live is None:
        return GroupDecision(_initial(spec, remembered), create=True)
    if spec.replicas is not None and live != spec.replicas:
        return GroupDecision(spec.replicas, revert=True, found=live, by_hand=remembered not in (None, live))
    return GroupDecision(live)


def _initial(spec: RoleSpec, remembered: int | None) -> int:
    if spec.replicas is not None:
        return spec.replicas
    return spec.initial_replicas if remembered is None else remembered


def revert_message(group: str, decision: GroupDecision) -> str:
    """The sentence of the Event about a scale that was put back."""
    return (
        f"the hand-made scale of {group} to {decision.found} was put back: the spec fixes {decision.replicas} "
        "replicas; use autoscaling there to let somebody else set them"
    )
