"""Pods of real vLLM instances against golden files, and what must hold for each of them.

``DISAGG_UPDATE_GOLDEN=1`` writes the files anew; look at the difference before committing it.
"""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_contract import labels
from disagg_contract.discovery import WorkerInfo
from disagg_crds import DisaggDeployment, DisaggGroup, Role
from disagg_engine.catalogue import default
from disagg_operator.core.fit import check_fit
from disagg_operator.core.target import compatibility, role_revision
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.instances import NewInstance, pod
from disagg_operator.render.vllm import LAST_SECONDS, stop_script

GOLDEN = Path(__file__).parent / "golden"
AROUND = Surroundings(image="disagg:0.1.0", version="0.1.0")
Make = Callable[..., DisaggDeployment]
MakeGroup = Callable[..., DisaggGroup]
GPU = {"type": "h100-sxm"}

PAIR: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "engine": {
        "type": "vllm",
        "image": "registry.example/vllm:v0.11.0",
        "imagePullSecrets": ["registry"],
        "vllm": {
            "model": "/models/llama-3.1-70b",
            "weights": {"claimName": "llama-70b"},
            "tokenSecret": {"name": "hugging-face", "key": "token"},
            "blockTokens": 64,
            "maxModelTokens": 16384,
            "gpuMemoryUtilization": 0.92,
            "sharedMemory": "32Gi",
            "startupSeconds": 1801,
            "transfer": {
                "ucxTls": "rc,cuda_copy,cuda_ipc",
                "ucxNetDevices": "mlx5_0:1",
                "loadFailurePolicy": "fail",
                "rdma": {"resourceName": "rdma/ib", "count": 2, "lockMemory": True},
            },
            "extraArgs": ["--enable-chunked-prefill", "--dtype=bfloat16"],
        },
    },
    "prefill": {"replicas": 2, "gpu": GPU, "parallelism": {"tensor": 2}, "batching": {"maxBatchedTokens": 8192}},
    "decode": {
        "replicas": 1,
        "gpu": GPU,
        "parallelism": {"tensor": 4},
        "batching": {"policy": "chunked", "chunkTokens": 1024, "maxSequences": 128},
        "template": {
            "runtimeClassName": "nvidia",
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "resources": {"requests": {"cpu": "8", "memory": "64Gi"}},
            "env": [{"name": "UCX_TLS", "value": "tcp"}],
            "terminationGracePeriodSeconds": 300,
        },
    },
}
COLOCATED: dict[str, Any] = {
    "model": "Qwen/Qwen3-0.6B",
    "engine": {"type": "vllm", "image": "vllm/vllm-openai:v0.11.0"},
    "prefill": None,
    "decode": None,
    "worker": {"replicas": 1, "gpu": GPU},
}
CASES = (("prefill", PAIR, Role.PREFILL), ("decode", PAIR, Role.DECODE), ("colocated", COLOCATED, Role.WORKER))


@pytest.fixture
def render(make_deployment: Make, make_group: MakeGroup) -> Callable[..., dict[str, Any]]:
    def rendered(role: Role, spec: dict[str, Any]) -> dict[str, Any]:
        new = NewInstance(name=f"chat-{role.value}-x7k2p", role=role, gang="chat")
        return pod(make_deployment(**spec), make_group(role=role.value), new, around=AROUND)

    return rendered


def variables(manifest: dict[str, Any]) -> dict[str, Any]:
    env = manifest["spec"]["containers"][0]["env"]
    names = [item["name"] for item in env]
    assert len(set(names)) == len(names)
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in env}


@pytest.mark.parametrize(("name", "spec", "role"), CASES)
def test_pods_equal_the_golden_files(
    render: Callable[..., dict[str, Any]], name: str, spec: dict[str, Any], role: Role
) -> None:
    path = GOLDEN / f"vllm-{name}.yaml"
    text = yaml.safe_dump(render(role, spec), sort_keys=True)
    if os.environ.get("DISAGG_UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text, f"{path.name} differs; DISAGG_UPDATE_GOLDEN=1 writes it anew"


def test_prefill_and_decode_are_told_to_exchange_kv(render: Callable[..., dict[str, Any]]) -> None:
    for role, kv_role in ((Role.PREFILL, "kv_producer"), (Role.DECODE, "kv_consumer")):
        container = render(role, PAIR)["spec"]["containers"][0]
        assert container["command"] == ["vllm", "serve"]
        assert container["args"][0] == "/models/llama-3.1-70b"
        (config,) = [json.loads(a.partition("=")[2]) for a in container["args"] if a.startswith("--kv-transfer-config")]
        assert config == {"kv_connector": "NixlConnector", "kv_role": kv_role, "kv_load_failure_policy": "fail"}
        found = variables(render(role, PAIR))
        assert found["VLLM_NIXL_SIDE_CHANNEL_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        assert {port["containerPort"] for port in container["ports"]} == {
            8000,
            int(found["VLLM_NIXL_SIDE_CHANNEL_PORT"]),
        }


def test_another_transport_is_named_to_nixl(render: Callable[..., dict[str, Any]]) -> None:
    engine = {**PAIR["engine"], "vllm": {"transfer": {"backend": "LIBFABRIC"}}}
    args = render(Role.PREFILL, {**PAIR, "engine": engine})["spec"]["containers"][0]["args"]
    (config,) = [json.loads(a.partition("=")[2]) for a in args if a.startswith("--kv-transfer-config")]
    assert config["kv_connector_extra_config"] == {"backends": ["LIBFABRIC"]}


def test_colocated_workers_know_nothing_of_transfers(render: Callable[..., dict[str, Any]]) -> None:
    manifest = render(Role.WORKER, COLOCATED)
    text = yaml.safe_dump(manifest)
    assert "NIXL" not in text
    assert "kv-transfer" not in text
    assert "UCX" not in text


def test_a_token_is_never_in_the_manifest(render: Callable[..., dict[str, Any]]) -> None:
    found = variables(render(Role.PREFILL, PAIR))
    assert found["HF_TOKEN"] == {"secretKeyRef": {"name": "hugging-face", "key": "token"}}
    assert "HF_TOKEN" not in variables(render(Role.WORKER, COLOCATED))


def test_a_claim_is_read_and_a_volume_of_its_own_is_filled(render: Callable[..., dict[str, Any]]) -> None:
    read = render(Role.PREFILL, PAIR)
    assert variables(read)["HF_HUB_OFFLINE"] == "1"
    assert "fsGroup" not in read["spec"]["securityContext"]
    engine = {**PAIR["engine"], "vllm": {"weights": {"claimName": "cache", "readOnly": False, "mountPath": "/hub"}}}
    kept = render(Role.PREFILL, {**PAIR, "engine": engine})
    assert kept["spec"]["securityContext"]["fsGroup"] == 1000
    assert variables(kept)["HF_HOME"] == "/hub"
    own = {volume["name"]: volume for volume in render(Role.WORKER, COLOCATED)["spec"]["volumes"]}
    assert own["weights"] == {"name": "weights", "emptyDir": {}}


@pytest.mark.parametrize(("name", "spec", "role"), CASES)
def test_pods_are_restricted_but_for_what_was_asked(
    render: Callable[..., dict[str, Any]], name: str, spec: dict[str, Any], role: Role
) -> None:
    manifest = render(role, spec)["spec"]
    assert manifest["securityContext"]["runAsNonRoot"] is True
    assert manifest["securityContext"]["runAsUser"] > 0
    assert manifest["schedulingGates"] == [{"name": labels.SCHEDULING_GATE}]
    security = manifest["containers"][0]["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"].get("add") == (None if name == "colocated" else ["IPC_LOCK"])


def test_gpus_and_network_devices_are_asked_for(render: Callable[..., dict[str, Any]]) -> None:
    asked = render(Role.DECODE, PAIR)["spec"]["containers"][0]["resources"]
    assert asked["limits"] == {"nvidia.com/gpu": "4", "rdma/ib": "2"}
    assert asked["requests"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "4", "rdma/ib": "2"}


def test_the_start_up_probe_waits_as_long_as_the_spec_says(render: Callable[..., dict[str, Any]]) -> None:
    probe = render(Role.DECODE, PAIR)["spec"]["containers"][0]["startupProbe"]
    assert probe["httpGet"]["path"] == "/health"
    assert 1801 <= probe["periodSeconds"] * probe["failureThreshold"] < 1801 + probe["periodSeconds"]


def test_the_stop_hook_ends_before_the_grace_period(make_deployment: Make) -> None:
    decode = make_deployment(**PAIR).spec.roles[Role.DECODE]
    script = stop_script(decode)
    compile(script, "preStop", "exec")
    assert f"time.monotonic() + {300 - LAST_SECONDS}" in script


def test_the_stop_hook_counts_what_vllm_counts(make_deployment: Make) -> None:
    script = stop_script(make_deployment(**PAIR).spec.roles[Role.DECODE])
    (pattern,) = re.findall(r're\.findall\(r"(.*?)", text', script)
    text = (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} 1.0\n'
        "vllm:num_requests_waiting_by_reason 9.0\n"
    )
    assert re.findall(pattern, text, re.M) == ["2.0", "1.0"]


def test_the_pod_says_what_routers_need(make_deployment: Make, render: Callable[..., dict[str, Any]]) -> None:
    deployment = make_deployment(**PAIR)
    info = WorkerInfo.from_json(render(Role.DECODE, PAIR)["metadata"]["annotations"][labels.WORKER_INFO])
    assert (info.role.value, info.model, info.block_tokens) == ("decode", "meta-llama/Llama-3.1-70B-Instruct", 64)
    assert info.revision == compatibility(deployment)


def test_unknown_models_need_no_catalogue(make_deployment: Make) -> None:
    assert check_fit(make_deployment(**PAIR).spec, default()).fits


def test_settings_change_the_revision_and_block_size_the_pairing(make_deployment: Make) -> None:
    before = make_deployment(**PAIR)

    def changed(**settings: Any) -> DisaggDeployment:
        engine = {**PAIR["engine"], "vllm": {**PAIR["engine"]["vllm"], **settings}}
        return make_deployment(**{**PAIR, "engine": engine})

    longer = changed(extraArgs=["--enforce-eager"])
    assert role_revision(longer, Role.DECODE, image="") != role_revision(before, Role.DECODE, image="")
    assert compatibility(longer) == compatibility(before)
    assert compatibility(changed(blockTokens=16)) != compatibility(before)
