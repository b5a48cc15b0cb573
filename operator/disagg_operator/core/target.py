"""From a spec and the scales of its groups to the target of :func:`disagg_operator.core.decide.decide`."""

import hashlib
import json
from collections.abc import Mapping

from disagg_contract.labels import RESTARTED_AT
from disagg_crds import DisaggDeployment, EngineType, Role
from disagg_crds.base import Model
from disagg_operator.core.fleet import RoleTarget, Target


def role_revision(deployment: DisaggDeployment, role: Role, *, image: str) -> str:
    """Hash of everything that changes the pods of a role; replicas and their bounds are left out.

    So are values that equal their defaults: a field that a newer version brings must not restart every pod.
    ``image`` is the image that pods get where the spec names none.
    """
    spec, section = deployment.spec, deployment.spec.roles[role]
    return _digest(
        {
            "model": spec.model,
            "engine": _said(spec.engine),
            "image": spec.engine.image or image,
            "link": _said(spec.link),
            "pairing": compatibility(deployment),
            "nodeLossSeconds": spec.placement.node_loss_seconds,
            "restarted": deployment.metadata.annotations.get(RESTARTED_AT, ""),
            "role": role.value,
            "gpu": _said(section.gpu),
            "parallelism": _said(section.parallelism),
            "batching": _said(section.batching),
            "template": _said(section.template),
        }
    )


def compatibility(deployment: DisaggDeployment) -> str:
    """Hash of what prefill and decode must agree on to exchange KV: workers say it, routers pair by it.

    Simulated engines exchange whole blocks, so tensor and pipeline need not agree and may change alone; the KV of real
    ones is cut by them. An image is taken to read the KV of the one before it unless ``engine.kvFormat`` changes too.
    """
    spec = deployment.spec
    agreed: dict[str, object] = {"model": spec.model, "block_tokens": spec.engine.simulated.block_tokens}
    if spec.engine.kv_format:
        agreed["kv_format"] = spec.engine.kv_format
    if spec.engine.type is not EngineType.SIMULATED:
        agreed |= {role.value: section.parallelism.to_dict() for role, section in spec.roles.items()}
        agreed["block_tokens"] = spec.engine.vllm_settings.block_tokens
    return _digest(agreed)


def deployment_revision(deployment: DisaggDeployment, *, image: str) -> str:
    """One hash over all roles, for the status."""
    return _digest({role.value: role_revision(deployment, role, image=image) for role in deployment.spec.roles})


def _said(section: Model) -> dict[str, object]:
    found: dict[str, object] = section.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return found


def _digest(document: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:10]


def build_target(deployment: DisaggDeployment, replicas: Mapping[Role, int], *, image: str) -> Target:
    """What is wanted: ``replicas`` instances of each role of the spec."""
    spec = deployment.spec
    return Target(
        deployment=deployment.name,
        roles={
            role: RoleTarget(
                role=role,
                replicas=replicas[role],
                base=section.base_instances,
                gpus=section.gpus_per_instance,
                revision=role_revision(deployment, role, image=image),
                drain_seconds=float(section.template.termination_grace_period_seconds),
                pairing=compatibility(deployment),
                max_surge=section.update.max_surge,
                max_unavailable=section.update.max_unavailable,
            )
            for role, section in spec.roles.items()
        },
        gpu_budget=spec.gpu_budget,
        bind_deadline_seconds=spec.placement.bind_deadline_seconds,
        paused=spec.paused,
        termination_delay_seconds=spec.placement.gang_termination_delay_seconds,
    )
