"""A router in front of engines that have vLLM's own endpoints and nothing of ours.

The fake keeps vLLM's side of the exchange strictly: what a prefill returns is opaque, reaches decode unchanged, and
belongs to one request id. What the router knows of the engine is what the operator renders into the pod.
"""

import json
from dataclasses import replace

import msgspec
import pytest
from aiohttp import web

from disagg_contract import labels
from disagg_crds import Role, load_deployment, read_group
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.instances import NewInstance, pod
from disagg_router.shell.discovery.kube import _Pod, row_of

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SPEC = """
apiVersion: disagg.dev/v1alpha1
kind: DisaggDeployment
metadata: {name: chat, namespace: team, uid: u}
spec:
  model: meta-llama/Llama-3.1-8B-Instruct
  slo: {ttftSeconds: 1, tpotSeconds: 0.1}
  engine: {type: vllm, image: "vllm:1", vllm: {blockTokens: 64}}
  prefill: {replicas: 1, gpu: {type: h100}}
  decode: {replicas: 1, gpu: {type: h100}}
"""
GROUP = {
    "apiVersion": "disagg.dev/v1alpha1",
    "kind": "DisaggGroup",
    "metadata": {"name": "g", "namespace": "team", "uid": "g"},
    "spec": {"deployment": "chat", "role": "prefill", "replicas": 1},
}


class FakeVllm:
    """One engine; ``healthy`` and ``broken`` (KV cannot be loaded) say how it does."""

    def __init__(self, role):
        self.role = Role(role)
        self.uid = f"uid-of-{role}"
        self.container = "containerd://first"
        self.healthy = True
        self.broken = 0
        self.held = {}
        self.pulled = []
        self.prefills = 0

    async def start(self):
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/completions", self._completions)
        self.runner = web.AppRunner(app, shutdown_timeout=0.05, access_log=None)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.port = self.runner.addresses[0][1]

    async def stop(self):
        await self.runner.cleanup()

    @property
    def row(self):
        """The pod that the operator renders, as the router reads it."""
        (deployment,) = load_deployment(SPEC)
        new = NewInstance(name=f"chat-{self.role.value}-x", role=self.role, gang="chat")
        manifest = pod(deployment, read_group(GROUP), new, around=Surroundings())
        manifest["metadata"]["uid"] = self.uid
        manifest["status"] = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "worker", "containerID": self.container}],
        }
        return replace(row_of(msgspec.convert(manifest, _Pod)), port=self.port)

    async def _health(self, request):
        return web.Response(status=200 if self.healthy else 503)

    async def _completions(self, request):
        body = await request.json()
        transfer = body.get("kv_transfer_params") or {}
        request_id = request.headers["X-Request-Id"]
        params = None
        if transfer.get("do_remote_decode"):
            assert self.role is Role.PREFILL
            assert (body["max_tokens"], body["stream"]) == (1, False)
            params = {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": [[3, 4], [9]],
                "remote_engine_id": "e-1",
                "remote_request_id": f"cmpl-{request_id}",
                "remote_host": "127.0.0.1",
                "remote_port": 5600,
                "tp_size": 1,
            }
            self.held[request_id] = params
            self.prefills += 1
        elif transfer.get("do_remote_prefill"):
            assert self.role is Role.DECODE
            self.pulled.append((request_id, transfer))
            if self.broken:
                self.broken -= 1
                return web.json_response({"error": {"message": "KV load failed", "code": 500}}, status=500)
        answer = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            "created": 1,
            "model": MODEL,
            "choices": [{"index": 0, "text": " yes", "finish_reason": "stop", "logprobs": None}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
            "kv_transfer_params": params,
        }
        return web.json_response(answer)


@pytest.fixture
async def engines(bench, tools):
    """A router that knows a prefill and a decode engine."""
    router = await bench()
    prefill, decode = FakeVllm("prefill"), FakeVllm("decode")
    for engine in (prefill, decode):
        await engine.start()
        router.workers.append(engine)
    router.source.put(prefill.row, decode.row)
    await tools.eventually(lambda: len(eligible(router)) == 2, "both join")
    return router, prefill, decode


def eligible(router):
    return {worker.key.uid for worker in router.app.fleet.workers if worker.eligible}


async def ask(router):
    return await router.post({"model": MODEL, "max_tokens": 4})


async def test_kv_parameters_pass_from_prefill_to_decode_unchanged(engines):
    router, prefill, decode = engines
    answer = await ask(router)
    assert answer.status == 200, await answer.text()
    assert json.loads(await answer.text())["choices"][0]["text"] == " yes"
    ((request_id, transfer),) = decode.pulled
    assert transfer == prefill.held[request_id]


async def test_the_router_knows_what_the_operator_wrote_into_the_pod(engines):
    router, prefill, decode = engines
    workers = {worker.key.uid: worker for worker in router.app.fleet.workers}
    assert workers[prefill.uid].info.block_tokens == 64
    assert workers[prefill.uid].info.revision == workers[decode.uid].info.revision != ""
    assert workers[prefill.uid].key.engine_id == "containerd://first"


async def test_kv_that_cannot_be_loaded_costs_another_prefill(engines, tools):
    router, prefill, decode = engines
    second = FakeVllm("decode")
    second.uid = "uid-of-another"
    await second.start()
    router.workers.append(second)
    router.source.put(second.row)
    await tools.eventually(lambda: second.uid in eligible(router), "a third joins")
    decode.broken = 1
    assert {(await ask(router)).status for _ in range(4)} == {200}
    assert decode.broken == 0
    assert prefill.prefills == sum(len(engine.pulled) for engine in (decode, second))


async def test_an_engine_that_died_is_not_chosen_until_it_is_healthy_again(engines, tools):
    router, _, decode = engines
    decode.healthy = False
    router.source.put(replace(decode.row, domain="changed"))
    await tools.eventually(lambda: decode.uid not in eligible(router), "it is left out")
    decode.healthy = True
    await tools.eventually(lambda: decode.uid in eligible(router), "it is back")


async def test_rt4_a_restarted_container_is_another_engine(engines, tools):
    router, _, decode = engines
    decode.container = "containerd://second"
    router.source.put(decode.row)
    await tools.eventually(
        lambda: "containerd://second" in {worker.key.engine_id for worker in router.app.fleet.workers}, "it is new"
    )
    assert len(router.app.fleet.workers) == 2
    assert (await ask(router)).status == 200


def test_a_pod_whose_annotation_is_nonsense_is_asked_instead(caplog):
    document = {
        "metadata": {
            "uid": "u",
            "name": "p",
            "labels": {labels.ROLE: "decode"},
            "annotations": {labels.WORKER_INFO: "{"},
        },
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }
    row = row_of(msgspec.convert(document, _Pod))
    assert row.info is None
    assert "pod p: annotation disagg.dev/worker-info: not JSON" in caplog.text
