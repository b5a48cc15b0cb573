"""What the catalogues hold. Base SI units; FP16 unless the data say otherwise."""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_PARAMETER = 2
"""FP16 weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. `load_bandwidth` is what its host brings from disk into this one GPU."""

    name: str
    title: str
    flops: float
    memory_bytes: float
    memory_bandwidth: float
    nvlink_bandwidth: float
    pcie_bandwidth: float
    load_bandwidth: float
    source: str


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

    def expected_read(self, tokens: int) -> float:
        """Expected parameters of distinct experts that `tokens` tokens touch, each choosing evenly on its own."""
        return self.parameters * (1.0 - (1.0 - self.taken / self.routed) ** tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model. `active_parameters` are those one token passes through; `hidden` is h of the attention term."""

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

    @property
    def weight_bytes(self) -> float:
        """Memory of all weights."""
        return self.parameters * BYTES_PER_PARAMETER

    def read_bytes(self, tokens: int) -> float:
        """Weights that an iteration of `tokens` new tokens reads: all, or the distinct experts expected to be hit."""
        if self.experts is None:
            return self.weight_bytes
        dense = self.parameters - self.experts.parameters
        return (dense + self.experts.expected_read(tokens)) * BYTES_PER_PARAMETER


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
