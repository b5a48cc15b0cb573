"""One instance: a full copy of a model on tensor × pipeline GPUs, its memory, its start and its links.

Memory follows the reference: usable memory of a GPU is its capacity less a fixed reserve, the weights are split evenly
over all GPUs of the instance, and what is left of all of them holds KV.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from disagg_engine.catalogue import Gpu, Link, Model, RooflineConstants, roofline_constants
from disagg_engine.errors import ModelDoesNotFitError, SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """`model` on `tensor` × `pipeline` GPUs. Any whole numbers go, powers of two or not."""

    model: Model
    gpu: Gpu
    tensor: int = 1
    pipeline: int = 1
    constants: RooflineConstants = field(default_factory=roofline_constants)

    def __post_init__(self) -> None:
        if self.tensor < 1:
            raise SettingError(field="tensor", value=self.tensor, wanted="a whole number, at least 1")
        if not 1 <= self.pipeline <= self.model.layers:
            raise SettingError(
                field="pipeline", value=self.pipeline, wanted=f"between 1 and the model's {self.model.layers} layers"
            )

    @property
    def gpus(self) -> int:
        """GPUs of the instance."""
        return self.tensor * self.pipeline

    @property
    def usable_bytes(self) -> float:
        """Memory for weights and KV on all its GPUs."""
        return (self.gpu.memory_bytes - self.constants.reserved_bytes) * self.gpus

    @property
    def kv_bytes(self) -> float:
        """Memory left for KV; negative if the weights alone do not fit."""
        return self.usable_bytes - self.model.weight_bytes

    def kv_capacity_tokens(self) -> int:
        """Tokens of KV the instance holds (REFERENCE row 3). Raises ModelDoesNotFitError if not even one."""
        tokens = int(self.kv_bytes // self.model.kv_bytes_per_token)
        if tokens < 1:
            raise ModelDoesNotFitError(self._misfit())
        return tokens

    def load_seconds(self) -> float:
        """Time to bring the weights from the hosts' disks into the GPUs, each GPU loading its share."""
        return self.model.weight_bytes / (self.gpu.load_bandwidth * self.gpus)

    def _misfit(self) -> str:
        usable = self.gpu.memory_bytes - self.constants.reserved_bytes
        needed = self.model.weight_bytes + self.model.kv_bytes_per_token
        short = (needed - self.usable_bytes) / 1e9
        advice = f"{self.gpu.name} has no memory beyond the reserve"
        if usable > 0:
            gpus = int(needed // usable) + 1
            tensor = min(gpus, 8)
            pipeline = -(-gpus // tensor)
            advice = f"tensor {tensor} × pipeline {pipeline} would be enough"
        return (
            f"{self.model.name} needs {needed / 1e9:.1f} GB for weights and KV; {self.gpus} × {self.gpu.name} (tensor "
            f"{self.tensor} × pipeline {self.pipeline}) have {self.usable_bytes / 1e9:.1f} GB usable, "
            f"{short:.1f} GB too little; {advice}"
        )


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
