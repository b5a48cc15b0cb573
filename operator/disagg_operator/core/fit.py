"""Whether the model fits the GPUs of every role, from the engine's catalogue.

Unknown names are caught here too, so that a typing error becomes a condition that lists the known names instead of
pods that crash one by one.
"""

from dataclasses import dataclass

from disagg_crds import DisaggDeploymentSpec, EngineType, Reason, RoleSpec
from disagg_engine.catalogue import Catalogue, Gpu, Model, roofline_constants
from disagg_engine.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class Fit:
    """``fits``, with the reason and a sentence for the condition ModelFits."""

    fits: bool
    reason: Reason
    message: str


def check_fit(spec: DisaggDeploymentSpec, catalogue: Catalogue) -> Fit:
    """Look up model, GPUs and link, and weigh the weights and one block of KV of every role."""
    for role, section in spec.roles.items():
        if section.pods_per_instance > 1:
            message = (
                f"spec.{role.value}.gpusPerPod: instances of {section.pods_per_instance} pods can be planned (disagg "
                "place) but not run yet; leave gpusPerPod out and run an instance on one node"
            )
            return Fit(False, Reason.INVALID_SPEC, message)
    if spec.engine.type is not EngineType.SIMULATED:
        return Fit(True, Reason.NOT_APPLICABLE, "only the sizes of simulated engines are known")
    try:
        model = catalogue.model(spec.model)
    except UnknownNameError as error:
        return Fit(False, Reason.UNKNOWN_MODEL, f"spec.model: {error}")
    try:
        catalogue.link(spec.link.type)
    except UnknownNameError as error:
        return Fit(False, Reason.UNKNOWN_LINK, f"spec.link.type: {error}")
    for role, section in spec.roles.items():
        try:
            gpu = catalogue.gpu(section.gpu.type)
        except UnknownNameError as error:
            return Fit(False, Reason.UNKNOWN_GPU, f"spec.{role.value}.gpu.type: {error}")
        lacking = _lacking_bytes(spec, section, model, gpu)
        if lacking > 0:
            return Fit(False, Reason.INSUFFICIENT_GPU_MEMORY, _too_big(role.value, section, model, gpu, lacking))
    return Fit(True, Reason.FITS, f"{model.title} fits the GPUs of every role")


def _lacking_bytes(spec: DisaggDeploymentSpec, section: RoleSpec, model: Model, gpu: Gpu) -> float:
    copies = model.kv_copies(section.parallelism.tensor)
    block = spec.engine.simulated.block_tokens * model.kv_bytes_per_token * copies
    return model.weight_bytes + block - section.gpus_per_instance * usable_bytes(gpu)


def usable_bytes(gpu: Gpu) -> float:
    """Memory of one GPU that weights and KV may take."""
    return gpu.memory_bytes - roofline_constants().reserved_bytes


def _too_big(role: str, section: RoleSpec, model: Model, gpu: Gpu, lacking: float) -> str:
    enough = int((lacking + section.gpus_per_instance * usable_bytes(gpu)) // usable_bytes(gpu)) + 1
    return (
        f"spec.{role}: {model.title} needs {model.weight_bytes / 1e9:.1f} GB for its weights and some KV; "
        f"{section.gpus_per_instance} x {gpu.title} (tensor {section.parallelism.tensor} x pipeline "
        f"{section.parallelism.pipeline}) lack {lacking / 1e9:.1f} GB; {enough} GPUs would do"
    )
