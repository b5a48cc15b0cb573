"""What the catalogues hold. Base SI units; FP16 unless a precision is named."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

BYTES_PER_PARAMETER = 2
"""FP16 weights."""


class Precision(StrEnum):
    """How numbers are kept: FP16 (or BF16), FP8, FP4. The scales of narrow formats are not counted."""

    FP16 = "fp16"
    FP8 = "fp8"
    FP4 = "fp4"

    @property
    def bytes(self) -> float:
        """Bytes of one number."""
        return {"fp16": 2.0, "fp8": 1.0, "fp4": 0.5}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU.

    `flops` is FP16's peak; `flops_fp8` and `flops_fp4` are None where the tensor cores lack the format. `nvlink_gpus`
    is how many GPUs NVLink joins, this one included. `load_bandwidth` is what its host brings from disk into this one
    GPU, `network_bandwidth` its share of the host's network. Power and price are None where nobody has stated them.
    """

    name: str
    title: str
    flops: float
    memory_bytes: float
    memory_bandwidth: float
    nvlink_bandwidth: float
    pcie_bandwidth: float
    load_bandwidth: float
    source: str
    flops_fp8: float | None = None
    flops_fp4: float | None = None
    nvlink_gpus: int = 8
    network_bandwidth: float = 50e9
    watts: float | None = None
    idle_share: float = 0.0
    dollars_per_hour: float | None = None

    def peak_flops(self, weights: Precision) -> float:
        """FLOP/s at this precision of the weights; a format it lacks is widened to the next it has."""
        if weights is Precision.FP4 and self.flops_fp4 is not None:
            return self.flops_fp4
        if weights is not Precision.FP16 and self.flops_fp8 is not None:
            return self.flops_fp8
        return self.flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture-of-experts part of a model: `taken` of `routed` experts a token in each of `layers`."""

    routed: int
    taken: int
    layers: int
    parameters_each: float

    @property
    def parameters(self) -> float:
        """Parameters of all routed experts."""
        return self.routed * self.layers * self.parameters_each

    @property
    def active_parameters(self) -> float:
        """Parameters of the routed experts that one token passes through."""
        return self.taken * self.layers * self.parameters_each

    def hit_share(self, tokens: float) -> float:
        """Expected share of the experts of a layer that `tokens` tokens touch, each choosing evenly on its own."""
        return float(1.0 - (1.0 - self.taken / self.routed) ** tokens)

    def expected_read(self, tokens: float) -> float:
        """Expected parameters of distinct experts that `tokens` tokens touch."""
        return self.parameters * self.hit_share(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Heads of an attention layer, and what it keeps of a token.

    Multi-head and grouped-query attention keep a key and a value of `head_size` for each of `kv_heads`. Multi-head
    latent attention (`latent` above 0) keeps one latent vector and one rotary key for all heads together.
    """

    heads: int
    kv_heads: int
    head_size: int
    latent: int = 0
    rotary: int = 0

    @property
    def kv_numbers(self) -> int:
        """Numbers kept for a token in one layer."""
        return self.latent + self.rotary if self.latent else 2 * self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Shape of the dense feed-forward layers and of the vocabulary. `gated`: three matrices instead of two."""

    intermediate: int
    vocabulary: int
    gated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model. `active_parameters` are those one token passes through; `hidden` is h of the attention term.

    `attention` and `feed_forward` are None where only the sums above are known; then KV counts as divisible among any
    number of GPUs, and time models made of kernels refuse the model.
    """

    name: str
    title: str
    parameters: float
    active_parameters: float
    layers: int
    hidden: int
    kv_bytes_per_token: float
    max_context_tokens: int
    source: str
    experts: Experts | None = None
    attention: Attention | None = None
    feed_forward: FeedForward | None = None

    @property
    def weight_bytes(self) -> float:
        """Memory of all weights in FP16."""
        return self.parameters * BYTES_PER_PARAMETER

    @property
    def dense_parameters(self) -> float:
        """Parameters outside the routed experts."""
        return self.parameters - (self.experts.parameters if self.experts else 0.0)

    def read_bytes(self, tokens: float) -> float:
        """FP16 weights that an iteration of `tokens` new tokens reads: all, or the distinct experts expected."""
        if self.experts is None:
            return self.weight_bytes
        return (self.dense_parameters + self.experts.expected_read(tokens)) * BYTES_PER_PARAMETER

    def kv_copies(self, tensor: int) -> float:
        """How often `tensor` GPUs keep the same KV: once, until there are more of them than KV heads to share out.

        Latent attention has nothing to share out: each keeps it whole.
        """
        if self.attention is None:
            return 1.0
        return max(1.0, tensor / (1 if self.attention.latent else self.attention.kv_heads))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A way for KV to travel, one direction. `bandwidth` is None where the GPU's own figure counts."""

    name: str
    title: str
    bandwidth: float | None
    latency_seconds: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineConstants:
    """Constants of the roofline time model; see `data/roofline.yaml`."""

    compute_efficiency: float
    half_efficiency_tokens: float
    memory_efficiency: float
    tensor_penalty: float
    fixed_seconds: float
    reserved_bytes: float
