"""A real vLLM instance as the container and the volumes of its pod.

vLLM knows nothing of us: what a simulated worker says of itself at ``/disagg/info`` stands in an annotation of the pod
instead, from where routers read it. Prefill and decode are told to exchange KV by NIXL; which of the two an instance is
follows from what the router asks of it. Everything that vLLM writes goes to volumes, so that the root stays read-only.

A vLLM that is told to stop ends its requests at once, so the hook before the stop waits: first until every router has
seen that the pod goes, then until nothing runs or waits any more.
"""

import json
from typing import Final

from disagg_contract import labels, ports
from disagg_contract.discovery import WorkerInfo
from disagg_contract.labels import Role as ContractRole
from disagg_crds import BatchingPolicy, DisaggDeployment, Role, RoleSpec, Transfer, VllmEngine, Weights
from disagg_operator.core.target import compatibility
from disagg_operator.render.metadata import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    TMP_MOUNT,
    TMP_VOLUME,
    Manifest,
    environment,
    pod_environment,
    probe,
    resources,
)

ROUTER_BLOCK_TOKENS: Final = 16
"""Tokens in a block of the router's own index where the spec leaves vLLM's block size open: vLLM's default on GPUs."""
CACHE: Final = "/cache"
STARTUP_PERIOD_SECONDS: Final = 5
SETTLE_SECONDS: Final = 5
"""Routers hear of a pod that goes within this time."""
LAST_SECONDS: Final = 10
"""Kept of the grace period for vLLM's own end."""

_STOP: Final = """\
import re, time, urllib.request
end = time.monotonic() + {patience}
time.sleep(min({settle}, {patience}))
while time.monotonic() < end:
    try:
        text = urllib.request.urlopen("http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    except OSError:
        break
    busy = re.findall(r"^vllm:num_requests_(?:running|waiting)(?:{{.*}})? (\\S+)$", text, re.M)
    if not sum(map(float, busy)):
        break
    time.sleep(1)
"""


def annotations(deployment: DisaggDeployment, role: Role) -> dict[str, str]:
    """What the pod says of its engine to routers."""
    spec, section = deployment.spec, deployment.spec.roles[role]
    settings = spec.engine.vllm_settings
    info = WorkerInfo(
        engine_id="",
        role=ContractRole(role.value),
        model=spec.model,
        gpu=section.gpu.type,
        block_tokens=settings.block_tokens or ROUTER_BLOCK_TOKENS,
        kv_capacity_tokens=0,
        max_context_tokens=settings.max_model_tokens or 0,
        tokenizer_digest="",
        template_digest="",
        hash_digest="",
        tensor=section.parallelism.tensor,
        pipeline=section.parallelism.pipeline,
        revision=compatibility(deployment),
    )
    return {labels.WORKER_INFO: info.to_json().decode()}


def container(deployment: DisaggDeployment, role: Role) -> Manifest:
    """The container that runs ``vllm serve``."""
    spec, section = deployment.spec, deployment.spec.roles[role]
    engine, settings = spec.engine, spec.engine.vllm_settings
    exchanges = role is not Role.WORKER
    own_ports = [{"name": ports.HTTP_NAME, "containerPort": ports.HTTP, "protocol": "TCP"}]
    if exchanges:
        side_channel = settings.transfer.side_channel_port
        own_ports.append({"name": ports.KV_TRANSFER_NAME, "containerPort": side_channel, "protocol": "TCP"})
    devices = {section.gpu.resource_name: str(section.gpus_per_instance)}
    rdma = settings.transfer.rdma if exchanges else None
    if rdma is not None:
        devices[rdma.resource_name] = str(rdma.count)
    security = CONTAINER_SECURITY
    if rdma is not None and rdma.lock_memory:
        security = {**security, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}
    return {
        "name": "worker",
        "image": engine.image,
        "imagePullPolicy": engine.image_pull_policy,
        "command": ["vllm", "serve"],
        "args": arguments(deployment, role),
        "env": environment(section.template, [*pod_environment(), *_variables(settings, exchanges=exchanges)]),
        "ports": own_ports,
        "resources": resources(section.template, devices=devices),
        "startupProbe": probe(
            ports.HEALTH_PATH,
            ports.HTTP_NAME,
            period=STARTUP_PERIOD_SECONDS,
            failures=-(-settings.startup_seconds // STARTUP_PERIOD_SECONDS),
        ),
        "readinessProbe": probe(ports.HEALTH_PATH, ports.HTTP_NAME, period=5, failures=2),
        # vLLM says 503 here once its engine is dead, and answers late under load: patience, then a restart.
        "livenessProbe": probe(ports.HEALTH_PATH, ports.HTTP_NAME, period=10, failures=6, timeout=10),
        "lifecycle": {"preStop": {"exec": {"command": ["python3", "-c", stop_script(section)]}}},
        "securityContext": security,
        "volumeMounts": [
            TMP_MOUNT,
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "cache", "mountPath": CACHE},
            _weights_mount(settings.weights),
        ],
    }


def volumes(settings: VllmEngine) -> list[Manifest]:
    """Volumes of the pod."""
    weights = settings.weights
    if weights.claim_name:
        claim = {"claimName": weights.claim_name, "readOnly": weights.read_only}
        lies: Manifest = {"name": "weights", "persistentVolumeClaim": claim}
    else:
        bound = {"sizeLimit": weights.size_limit} if weights.size_limit else {}
        lies = {"name": "weights", "emptyDir": bound}
    return [
        TMP_VOLUME,
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shared_memory}},
        {"name": "cache", "emptyDir": {}},
        lies,
    ]


def pod_security(settings: VllmEngine) -> Manifest:
    """Restricted, as a user of the spec's choice: vLLM's own images say root."""
    user = settings.run_as_user
    found = {**POD_SECURITY, "runAsUser": user, "runAsGroup": user}
    if settings.weights.claim_name and not settings.weights.read_only:
        found |= {"fsGroup": user, "fsGroupChangePolicy": "OnRootMismatch"}
    return found


def arguments(deployment: DisaggDeployment, role: Role) -> list[str]:
    """Arguments of ``vllm serve``: the model first, the user's own last."""
    spec, section = deployment.spec, deployment.spec.roles[role]
    settings = spec.engine.vllm_settings
    batching = section.batching
    chunked = batching.policy is BatchingPolicy.CHUNKED
    found = [
        settings.model or spec.model,
        f"--served-model-name={spec.model}",
        "--host=0.0.0.0",
        f"--port={ports.HTTP}",
        f"--tensor-parallel-size={section.parallelism.tensor}",
        f"--pipeline-parallel-size={section.parallelism.pipeline}",
        f"--max-num-seqs={batching.max_sequences}",
        f"--max-num-batched-tokens={batching.chunk_tokens if chunked else batching.max_batched_tokens}",
    ]
    if settings.block_tokens is not None:
        found.append(f"--block-size={settings.block_tokens}")
    if settings.max_model_tokens is not None:
        found.append(f"--max-model-len={settings.max_model_tokens}")
    if settings.gpu_memory_utilization is not None:
        found.append(f"--gpu-memory-utilization={settings.gpu_memory_utilization:g}")
    if role is not Role.WORKER:
        found.append(f"--kv-transfer-config={transfer_config(settings.transfer, role)}")
    return [*found, *settings.extra_args]


def transfer_config(transfer: Transfer, role: Role) -> str:
    """Value of ``--kv-transfer-config``.

    NIXL's connector acts by what a request asks for, whatever ``kv_role`` says; the role is named all the same, for
    people and for connectors that look.
    """
    config: Manifest = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer" if role is Role.PREFILL else "kv_consumer",
    }
    if transfer.load_failure_policy is not None:
        config["kv_load_failure_policy"] = transfer.load_failure_policy.value
    if transfer.backend is not None:
        config["kv_connector_extra_config"] = {"backends": [transfer.backend]}
    return json.dumps(config, separators=(",", ":"))


def stop_script(section: RoleSpec) -> str:
    """Python that returns when the instance has nothing left to do, or shortly before the grace period is over."""
    patience = max(0, section.template.termination_grace_period_seconds - LAST_SECONDS)
    return _STOP.format(patience=patience, settle=SETTLE_SECONDS, port=ports.HTTP)


def _variables(settings: VllmEngine, *, exchanges: bool) -> list[Manifest]:
    weights = settings.weights
    plain = {
        # Without an entry in /etc/passwd the user has neither a home nor a name.
        "HOME": CACHE,
        "USER": "vllm",
        "XDG_CACHE_HOME": CACHE,
        "XDG_CONFIG_HOME": f"{CACHE}/config",
        "TRITON_CACHE_DIR": f"{CACHE}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
        "HF_HOME": weights.mount_path,
        "HF_MODULES_CACHE": f"{CACHE}/modules",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if weights.claim_name and weights.read_only:
        plain["HF_HUB_OFFLINE"] = "1"
    found: list[Manifest] = [{"name": name, "value": value} for name, value in plain.items()]
    if settings.token_secret is not None:
        reference = {"name": settings.token_secret.name, "key": settings.token_secret.key}
        found.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    if exchanges:
        transfer = settings.transfer
        found += [
            {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(transfer.side_channel_port)},
            {"name": "UCX_TLS", "value": transfer.ucx_tls},
            {"name": "UCX_NET_DEVICES", "value": transfer.ucx_net_devices},
        ]
    return found


def _weights_mount(weights: Weights) -> Manifest:
    mount: Manifest = {"name": "weights", "mountPath": weights.mount_path}
    return {**mount, "readOnly": True} if weights.claim_name and weights.read_only else mount
