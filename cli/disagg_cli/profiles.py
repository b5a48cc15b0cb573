"""The planner's profile: read from a file, or computed by the engine.

The planner may not import the engine, so the command that knows both hands the profile in. An instance is described by
the planner's own settings, which the operator copies from the workers'.
"""

from __future__ import annotations

from disagg_contract.config import PlannerConfig
from disagg_contract.labels import Role
from disagg_contract.profile import Profile
from disagg_engine.batching.config import BatchingConfig
from disagg_engine.errors import EngineError
from disagg_engine.instance import Instance
from disagg_engine.profile import compute_profile

from .catalogues import read_catalogue
from .errors import UsageError
from .instances import read_profile


def profile_for(config: PlannerConfig) -> Profile:
    """The profile that `config` names, or the one of the instances it describes. Raises `UsageError`."""
    if config.profile:
        return read_profile(config.profile)
    catalogue = read_catalogue(config.catalogue)
    try:
        model = catalogue.model(config.model)
        prefill, decode = (
            Instance(model=model, gpu=catalogue.gpu(gpu), tensor=tensor, pipeline=pipeline)
            for gpu, tensor, pipeline in (
                (config.prefill_gpu, config.prefill_tensor, config.prefill_pipeline),
                (config.decode_gpu, config.decode_tensor, config.decode_pipeline),
            )
        )
        return compute_profile(
            prefill=prefill,
            decode=decode,
            prefill_batching=_batching(config, Role.PREFILL, config.prefill_pipeline),
            decode_batching=_batching(config, Role.DECODE, config.decode_pipeline),
        )
    except EngineError as error:
        raise UsageError(str(error)) from None


def _batching(config: PlannerConfig, role: Role, pipeline: int) -> BatchingConfig:
    return BatchingConfig(
        role=role,
        max_batched_tokens=config.max_batched_tokens,
        max_sequences=config.max_sequences,
        pipeline=pipeline,
    )
