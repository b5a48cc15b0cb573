"""Settings of real vLLM workers.

The user names the image; the operator renders the command line, what vLLM needs around it (weights, token, shared
memory, side channel of NIXL), and its probes. What the operator decides (addresses, roles, parallelism, the transfer
configuration) is not to be said again among the extra arguments: two values for one flag would be a matter of luck.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import Flag, Model, Number, Quantity, ResourceName, Rule, Whole

#: Name of an object in the deployment's namespace.
ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
]
AbsolutePath = Annotated[str, Field(min_length=2, max_length=1024, pattern=r"^/[A-Za-z0-9._/-]*[A-Za-z0-9._-]$")]

#: Flags of `vllm serve` that the operator writes, in both spellings that vLLM reads.
OWN_FLAGS_PATTERN = (
    r"^(-tp|-pp|--(host|port|model|served[-_]model[-_]name|tensor[-_]parallel[-_]size|pipeline[-_]parallel[-_]size"
    r"|data[-_]parallel[-_]size|kv[-_]transfer[-_]config|block[-_]size|max[-_]num[-_]seqs"
    r"|max[-_]num[-_]batched[-_]tokens|max[-_]model[-_]len|gpu[-_]memory[-_]utilization|api[-_]key)([.=].*)?)$"
)


class SecretKey(Model):
    """One key of a Secret in the deployment's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$")] = "HF_TOKEN"
    """Key that holds the value."""


class Weights(Model):
    """Where the weights lie."""

    claim_name: ObjectName | None = None
    """PersistentVolumeClaim with the weights; absent: each pod downloads them into a volume of its own."""
    mount_path: AbsolutePath = "/models"
    """Where the volume is mounted: the cache of Hugging Face, or the directory that vllm.model lies in."""
    read_only: Flag = True
    """Mount the claim for reading only. false: downloads are kept in it, which needs a ReadWriteMany claim."""
    size_limit: Quantity | None = None
    """Most that a volume of the pod's own may hold, without a claim; absent: what the node has."""

    rules = (
        Rule(
            cel="!has(self.sizeLimit) || !has(self.claimName)",
            message="sizeLimit bounds a volume of the pod's own; with claimName the claim has its size",
            holds=lambda self: self.size_limit is None or self.claim_name is None,
            field="sizeLimit",
        ),
    )


class LoadFailurePolicy(StrEnum):
    """What a decode instance does when the KV cannot be fetched."""

    FAIL = "fail"
    RECOMPUTE = "recompute"


class Rdma(Model):
    """Network devices that the pods ask for."""

    resource_name: ResourceName
    """Extended resource of the device plugin, for example rdma/ib."""
    count: Annotated[Whole, Field(ge=1, le=64)] = 1
    """Devices for each pod."""
    lock_memory: Flag = False
    """Add the capability IPC_LOCK, where locked memory is limited; the restricted Pod Security standard forbids it."""


class Transfer(Model):
    """How KV travels from prefill to decode: NIXL over UCX."""

    side_channel_port: Annotated[Whole, Field(ge=1024, le=65535)] = 5600
    """Port of NIXL's handshake in the pod."""
    ucx_tls: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[\^a-z0-9_,]+$")] = "all"
    """Transports that UCX may use (UCX_TLS), for example rc,cuda_copy,cuda_ipc."""
    ucx_net_devices: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_.:,-]+$")] = "all"
    """Network devices that UCX may use (UCX_NET_DEVICES), for example mlx5_0:1."""
    backend: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Z0-9_]+$")] | None = None
    """Transport plugin of NIXL, for example LIBFABRIC; absent: vLLM's default, UCX."""
    load_failure_policy: LoadFailurePolicy | None = None
    """fail: the router tries the request anew. recompute: decode computes the prompt. Absent: the image's default."""
    rdma: Rdma | None = None
    """Network devices; absent: the pod network."""


class VllmEngine(Model):
    """Settings of real vLLM workers; the image is engine.image."""

    model: (
        Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^/?[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$")]
        | None
    ) = None
    """What vLLM loads: a name at Hugging Face or an absolute path in the weights' volume; absent: spec.model."""
    weights: Weights = Field(default_factory=Weights)
    """Where the weights lie."""
    token_secret: SecretKey | None = None
    """Token for gated models, given to vLLM as HF_TOKEN by reference; absent: none."""
    block_tokens: Annotated[Whole, Field(ge=1, le=4096)] | None = None
    """Tokens in a KV block; absent: vLLM's default."""
    max_model_tokens: Annotated[Whole, Field(ge=1, le=16777216)] | None = None
    """Longest sequence, prompt and answer; absent: the model's."""
    gpu_memory_utilization: Annotated[Number, Field(gt=0, le=1)] | None = None
    """Share of GPU memory that vLLM takes; absent: vLLM's default."""
    shared_memory: Quantity = "16Gi"
    """Size of /dev/shm. What is used of it counts as the pod's memory."""
    startup_seconds: Annotated[Whole, Field(ge=60, le=86400)] = 3600
    """Seconds within which an instance has to be ready: download, loading and compiling included."""
    run_as_user: Annotated[Whole, Field(ge=1, le=4294967294)] = 1000
    """User id of the process, since the image's own is root."""
    transfer: Transfer = Field(default_factory=Transfer)
    """How KV travels; of no effect on colocated workers."""
    extra_args: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...], Field(max_length=64)] = (
        Field(default=(), json_schema_extra={"x-kubernetes-list-type": "atomic"})
    )
    """More arguments of `vllm serve`."""

    rules = (
        Rule(
            cel=f"!has(self.extraArgs) || self.extraArgs.all(a, !a.matches('{OWN_FLAGS_PATTERN}'))",
            message=(
                "extraArgs must not repeat what the operator writes: host, port, model, served-model-name, parallel "
                "sizes, kv-transfer-config, block-size, max-num-seqs, max-num-batched-tokens, max-model-len, "
                "gpu-memory-utilization; api-key belongs into no manifest"
            ),
            holds=lambda self: not any(re.match(OWN_FLAGS_PATTERN, argument) for argument in self.extra_args),
            field="extraArgs",
        ),
    )
