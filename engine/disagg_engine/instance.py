"""One instance: a full copy of a model on its GPUs; its memory, its start, its links, its power and price.

An instance is `tensor` × `pipeline` GPUs. A model with experts may also be spread wider: `data_parallel` ranks of
tensor × pipeline GPUs each keep the dense weights and the attention (with its KV) of requests of their own, and share
one set of experts. `expert_parallel` says over how many GPUs of a stage whole experts are spread; with fewer than the
stage has, several GPUs divide each expert among them (1: all GPUs of the stage do).

Memory follows the reference: usable memory of a GPU is its capacity less a fixed reserve, the weights are split evenly
over the GPUs that share them, and what is left of all of them holds KV. More GPUs in a tensor group than the model has
KV heads keep copies of the same KV; latent attention has one for all heads. With more GPUs than experts, some experts
are kept twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from disagg_engine.catalogue import Gpu, Link, Model, Precision, RooflineConstants, roofline_constants
from disagg_engine.errors import ModelDoesNotFitError, SettingError

NODE_GPUS = 8
"""Largest tensor group that advice proposes: the GPUs of one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """`model` on `tensor` × `pipeline` × `data_parallel` GPUs. Any whole numbers go, powers of two or not.

    weight_precision, kv_precision: how weights and KV are kept. FP8 weights also use the GPU's FP8 arithmetic where it
    has it. Raises SettingError for whatever can't be, by field.
    """

    model: Model
    gpu: Gpu
    tensor: int = 1
    pipeline: int = 1
    data_parallel: int = 1
    expert_parallel: int = 1
    weight_precision: Precision = Precision.FP16
    kv_precision: Precision = Precision.FP16
    constants: RooflineConstants = field(default_factory=roofline_constants)

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data_parallel", "expert_parallel"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SettingError(field=name, value=value, wanted="a whole number, at least 1")
        for name in ("weight_precision", "kv_precision"):
            self._check_precision(name)
        if self.pipeline > self.model.layers:
            raise SettingError(
                field="pipeline", value=self.pipeline, wanted=f"between 1 and the model's {self.model.layers} layers"
            )
        if self.model.experts is None:
            for name in ("data_parallel", "expert_parallel"):
                if getattr(self, name) > 1:
                    raise SettingError(
                        field=name,
                        value=getattr(self, name),
                        wanted=f"1: {self.model.name} has no experts to share; use more instances",
                    )
        elif self.stage_gpus % self.expert_parallel:
            raise SettingError(
                field="expert_parallel",
                value=self.expert_parallel,
                wanted=f"a divisor of tensor × data_parallel, {self.stage_gpus}",
            )

    def _check_precision(self, name: str) -> None:
        value, known = getattr(self, name), [precision.value for precision in Precision]
        if name == "kv_precision":
            known.remove(Precision.FP4.value)
        if value not in known:
            raise SettingError(field=name, value=str(value), wanted=f"one of {', '.join(known)}")
        object.__setattr__(self, name, Precision(value))

    # ---- GPUs --------------------------------------------------------------------------------------------------

    @property
    def rank_gpus(self) -> int:
        """GPUs that hold one copy of the dense weights."""
        return self.tensor * self.pipeline

    @property
    def stage_gpus(self) -> int:
        """GPUs of one pipeline stage over all data-parallel ranks: those that share a layer's experts."""
        return self.tensor * self.data_parallel

    @property
    def gpus(self) -> int:
        """GPUs of the instance."""
        return self.rank_gpus * self.data_parallel

    @property
    def experts_per_gpu(self) -> int:
        """Experts of a layer that one GPU keeps, whole or its part of each."""
        experts = self.model.experts
        return -(-experts.routed // self.expert_parallel) if experts else 0

    # ---- memory ------------------------------------------------------------------------------------------------

    @property
    def usable_bytes(self) -> float:
        """Memory for weights and KV on all its GPUs."""
        return (self.gpu.memory_bytes - self.constants.reserved_bytes) * self.gpus

    @property
    def rank_weight_bytes(self) -> float:
        """Weights on the GPUs of one data-parallel rank: all dense ones, and its share of the experts."""
        experts, parameters = self.model.experts, self.model.dense_parameters
        if experts is not None:
            kept = experts.routed * self.tensor / self.stage_gpus
            if self.expert_parallel > 1:
                divided = self.stage_gpus // self.expert_parallel  # GPUs that divide an expert among them
                kept = self.experts_per_gpu * self.tensor / divided
            parameters += kept * experts.layers * experts.parameters_each
        return parameters * self.weight_precision.bytes

    @property
    def weight_bytes(self) -> float:
        """Weights on all its GPUs, copies included."""
        return self.rank_weight_bytes * self.data_parallel

    @property
    def kv_bytes_per_token(self) -> float:
        """KV of one token, once: what travels to another instance."""
        return self.model.kv_bytes_per_token * (self.kv_precision.bytes / Precision.FP16.bytes)

    @property
    def kept_bytes_per_token(self) -> float:
        """KV of one token with the copies that tensor parallelism keeps."""
        return self.kv_bytes_per_token * self.model.kv_copies(self.tensor)

    @property
    def kv_bytes(self) -> float:
        """Memory left for KV; negative if the weights alone do not fit."""
        return self.usable_bytes - self.weight_bytes

    def kv_capacity_tokens(self) -> int:
        """Tokens of KV the instance holds (REFERENCE row 3). Raises ModelDoesNotFitError if not even one a rank."""
        tokens = int(self.kv_bytes / self.data_parallel // self.kept_bytes_per_token)
        if tokens < 1:
            raise ModelDoesNotFitError(self._misfit())
        return tokens * self.data_parallel

    def request_capacity_tokens(self) -> int:
        """Tokens of KV that one request may hold: those of one rank, since attention is not spread over ranks."""
        return self.kv_capacity_tokens() // self.data_parallel

    def load_seconds(self) -> float:
        """Time to bring the weights from the hosts' disks into the GPUs, each GPU loading its share."""
        return self.weight_bytes / (self.gpu.load_bandwidth * self.gpus)

    # ---- power and price ---------------------------------------------------------------------------------------

    def power_watts(self, busy_share: float) -> float | None:
        """Mean power of its GPUs when they are busy for that share of the time; None if the catalogue has no figure.

        Linear between the idle share of the board power and all of it.
        """
        if not 0.0 <= busy_share <= 1.0:
            raise SettingError(field="busy_share", value=busy_share, wanted="a share, 0 to 1")
        if self.gpu.watts is None:
            return None
        return self.gpus * self.gpu.watts * (self.gpu.idle_share + (1.0 - self.gpu.idle_share) * busy_share)

    @property
    def dollars_per_hour(self) -> float | None:
        """Price of its GPUs; None if the catalogue has no figure."""
        return None if self.gpu.dollars_per_hour is None else self.gpus * self.gpu.dollars_per_hour

    # ---- what would fit ----------------------------------------------------------------------------------------

    def fitting(self) -> Instance | None:
        """The like of this instance with the fewest pipeline stages, then the fewest GPUs, that holds some KV.

        Tensor groups go up to a node and, where the heads are known, divide them. None if none holds any.
        """
        heads = self.model.attention.heads if self.model.attention else 0
        spread = 1 < self.expert_parallel == self.stage_gpus  # whole experts on every GPU: so they stay
        for pipeline in range(1, self.model.layers + 1):
            for tensor in range(1, NODE_GPUS + 1):
                if heads % tensor:
                    continue
                experts = tensor * self.data_parallel if spread else self.expert_parallel
                if tensor * self.data_parallel % experts:
                    continue
                like = replace(self, tensor=tensor, pipeline=pipeline, expert_parallel=experts)
                if like.kv_bytes / like.data_parallel >= like.kept_bytes_per_token:
                    return like
        return None

    def _misfit(self) -> str:
        needed = self.weight_bytes + self.kept_bytes_per_token * self.data_parallel
        short = max(0.0, needed - self.usable_bytes) / 1e9
        return (
            f"{self.model.name} needs {needed / 1e9:.1f} GB for weights and KV; {self.gpus} × {self.gpu.name} "
            f"({self.layout()}) have {max(0.0, self.usable_bytes) / 1e9:.1f} GB usable, "
            f"{short:.1f} GB too little; {self._advice()}"
        )

    def layout(self) -> str:
        """How it is spread, in words."""
        words = f"tensor {self.tensor} × pipeline {self.pipeline}"
        if self.data_parallel > 1:
            words += f" × data-parallel {self.data_parallel}"
        if self.expert_parallel > 1:
            words += f", expert-parallel {self.expert_parallel}"
        return words

    def _advice(self) -> str:
        if self.gpu.memory_bytes <= self.constants.reserved_bytes:
            return f"{self.gpu.name} has no memory beyond the reserve of {self.constants.reserved_bytes / 1e9:.1f} GB"
        fitting = self.fitting()
        if fitting is None:
            return f"no tensor up to {NODE_GPUS} × pipeline up to {self.model.layers} would be enough"
        return f"{fitting.layout()} would be enough"


def link_bandwidth(link: Link, *, source: Gpu, target: Gpu | None = None) -> float:
    """Bytes/s of a link between two GPUs; where the link is the GPUs' own, the slower one's figure.

    Raises SettingError where a GPU has no such link.
    """
    if link.bandwidth is not None:
        return link.bandwidth
    figures = []
    for gpu in (source, target or source):
        figure = gpu.pcie_bandwidth if link.name == "pcie" else gpu.nvlink_bandwidth
        if figure <= 0:
            raise SettingError(field="link", value=link.name, wanted=f"a link that {gpu.name} has; it has no NVLink")
        figures.append(figure)
    return min(figures)


def transfer_seconds(kv_bytes: float, *, bandwidth: float, latency_seconds: float = 0.0) -> float:
    """Time for that many bytes of KV to cross an idle link of `bandwidth` bytes/s (REFERENCE rows 8 and 27)."""
    if bandwidth <= 0:
        raise SettingError(field="bandwidth", value=bandwidth, wanted="bytes/s above 0")
    return latency_seconds + kv_bytes / bandwidth
