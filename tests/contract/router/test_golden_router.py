"""The router's side of the golden files: what it writes and reads is what the files say."""

import json
from pathlib import Path

from disagg_contract import labels, ports
from disagg_contract.discovery import DiscoveredWorker, WorkerInfo
from disagg_contract.labels import Role
from disagg_contract.openai import Endpoint
from disagg_router.core.bodies import answer_body, parse_inbound, prefill_body, read_prefill
from disagg_router.core.fleet import Fleet
from disagg_router.shell.discovery.file import FileSource
from disagg_router.shell.discovery.kube import KubeSource

GOLDEN = Path(__file__).parents[1] / "golden"
RAW = b'{"model":"opt-13b","prompt":"x","max_tokens":3}'


def golden(name):
    return json.loads((GOLDEN / name).read_text())


def test_the_prefill_leg_carries_the_golden_parameters():
    leg = json.loads(prefill_body(parse_inbound(Endpoint.COMPLETIONS, RAW)))
    assert leg.items() >= golden("prefill_leg.json").items()


def test_the_decode_leg_carries_the_golden_answer():
    answer = read_prefill((GOLDEN / "decode_leg.json").read_bytes())
    leg = json.loads(answer_body(parse_inbound(Endpoint.COMPLETIONS, RAW), answer.transfer))
    assert leg == {**json.loads(RAW), **golden("decode_leg.json")}


async def test_the_golden_discovery_file_is_followed():
    async for rows in FileSource(GOLDEN / "discovery_file.json").watch():
        expected = golden("discovery_file.json")["workers"]
        assert [(row.uid, row.role, row.host, row.port) for row in rows] == [
            (worker["uid"], worker["role"], worker["host"], worker["port"]) for worker in expected
        ]
        break


def test_the_golden_worker_is_taken_in():
    info = WorkerInfo.from_json((GOLDEN / "worker_info.json").read_bytes())
    row = DiscoveredWorker(uid="u", name="n", role=Role(golden("worker_info.json")["role"]), host="h", port=1)
    assert Fleet().join(row, info).key == ("u", info.engine_id)


def test_pods_are_selected_by_the_golden_labels():
    assert (
        KubeSource(None, namespace="ns", deployment="chat")._selector == golden("labels.json")["worker_selector(chat)"]
    )
    assert golden("labels.json")["DRAINING"] == labels.DRAINING
    assert golden("ports.json")["HTTP"] == ports.HTTP


async def test_the_exported_names_are_the_golden_ones(bench):
    router = await bench(model="m")
    page = await (await router.get("/metrics")).text()
    kinds = dict(line.split()[2:4] for line in page.splitlines() if line.startswith("# TYPE disagg_"))
    wanted = {
        name + ("_total" if metric["kind"] == "counter" else ""): metric["kind"]
        for name, metric in golden("metrics.json").items()
        if name.startswith("disagg_router_")
    }
    assert kinds == wanted
