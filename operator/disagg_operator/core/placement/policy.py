"""From a deployment's spec to what a plan is asked: levels, rules of roles, pairing, preemption."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from disagg_crds import DisaggDeploymentSpec, Preemption, RoleSpec, StagePairing
from disagg_operator.core.placement.request import GangRequest, Pairing, Present, RoleRule, Spread
from disagg_operator.core.placement.snapshot import PodDemand

_PAIRING = {
    StagePairing.NONE: Pairing.NONE,
    StagePairing.PREFERRED: Pairing.PREFERRED,
    StagePairing.REQUIRED: Pairing.REQUIRED,
}


def gang_request(
    spec: DisaggDeploymentSpec,
    pods: Iterable[PodDemand],
    *,
    present: Iterable[Present] = (),
    within: str | None = None,
    prefer: str | None = None,
    excluded: frozenset[str] = frozenset(),
    later: Iterable[PodDemand] = (),
) -> GangRequest:
    """A gang of the deployment. ``present``: its pods that have nodes; the others as in :class:`GangRequest`."""
    placement = spec.placement
    return GangRequest(
        pods=tuple(pods),
        required=placement.required_level,
        preferred=placement.preferred_level,
        within=within if placement.required_level is not None else None,
        prefer=prefer,
        excluded=excluded,
        later=tuple(later),
        rules=role_rules(spec),
        pairing=_PAIRING[placement.stage_pairing],
        present=tuple(present),
        preemption=placement.preemption is Preemption.LOWER_PRIORITY,
    )


def role_rules(spec: DisaggDeploymentSpec) -> Mapping[str, RoleRule]:
    """Rules of the roles that have some."""
    rules: dict[str, RoleRule] = {}
    for role, section in spec.roles.items():
        asked = section.placement
        rule = RoleRule(
            required=asked.required or None,
            preferred=asked.preferred or None,
            instance=asked.instance_within or None,
            spread=None if asked.spread is None else Spread(asked.spread.level, asked.spread.most),
        )
        if rule != RoleRule():
            rules[role.value] = rule
    return rules


def measured_levels(spec: DisaggDeploymentSpec) -> tuple[str, ...]:
    """Levels that the placement score is about: the required one, or the widest, and the preferred one."""
    first = spec.placement.required_level or spec.placement.levels[0]
    return tuple(dict.fromkeys(level for level in (first, spec.placement.preferred_level) if level))


def asked_levels(spec: DisaggDeploymentSpec) -> tuple[str, ...]:
    """Every level that the spec makes a demand about, in order."""
    placement = spec.placement
    own = (placement.required_level, placement.preferred_level)
    roles = (level for section in spec.roles.values() for level in section.placement.levels)
    return tuple(dict.fromkeys(level for level in (*own, *roles) if level))


def parts(section: RoleSpec, whole: PodDemand) -> tuple[PodDemand, ...]:
    """The pods of an instance, from the one pod that would hold all of it.

    Each gets its share of the GPUs, and all of the other requests: they are those of a container. A pod's stage is the
    first pipeline stage that it holds.
    """
    number = section.pods_per_instance
    if number == 1:
        return (replace(whole, instance=whole.owner),)
    device = section.gpu.resource_name
    share = section.gpus_per_instance // number
    return tuple(
        replace(
            whole,
            uid=f"{whole.uid}-{index}",
            name=f"{whole.name}-{index}",
            instance=whole.owner,
            requests={**whole.requests, device: share},
            stage=index * share // section.parallelism.tensor,
        )
        for index in range(number)
    )
