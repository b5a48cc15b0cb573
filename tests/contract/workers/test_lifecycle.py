"""Start, cancellation, drain, limits, and a process of its own."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from disagg_contract.config import WorkerConfig
from disagg_contract.discovery import WorkerInfo
from disagg_contract.labels import Role
from disagg_contract.listening import ListenError
from disagg_contract.settings import to_args
from disagg_engine.batching import BatchingLoop, FirstToken, Request
from disagg_engine.kv import BlockLedger, CountingLedger
from disagg_engine.timemodel import Roofline
from disagg_workers.errors import StartError
from disagg_workers.iteration_log import unpack_keys
from disagg_workers.main import main
from disagg_workers.worker import Worker
from tests.contract.workers.conftest import Site, eventually

WORDS = "The quick brown fox jumps over the lazy dog and then sleeps. "
LONG: dict[str, Any] = {"max_tokens": 1000, "ignore_eos": True}


async def drop(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def freed(site: Site) -> None:
    """The request is gone and its KV free, long before it would have ended by itself."""
    generated = await site.metric("disagg_worker_generated_tokens_total")
    await site.idle()
    assert await site.metric("disagg_worker_generated_tokens_total") - generated <= 2
    assert await site.metric("disagg_worker_requests_total", outcome="cancelled") >= 1


async def test_ap7_a_stream_whose_client_leaves_is_dropped(start: Any) -> None:
    site = await start(time_scale=2.0)
    async with site.session.post(site.url + "/v1/completions", json={"prompt": WORDS, "stream": True, **LONG}) as reply:
        for _ in range(3):
            await reply.content.readline()
        assert site.used_tokens > 0
        reply.close()
    await eventually(lambda: site.worker.driver.counts().cancelled == 1)
    await freed(site)


async def test_ap7_also_when_not_streamed_queued_or_prefilling(start: Any) -> None:
    site = await start(time_scale=0.5, max_sequences=1)
    running = asyncio.create_task(site.complete(**LONG))
    await eventually(lambda: site.worker.driver.counts().running == 1)
    queued = asyncio.create_task(site.complete("Another prompt", **LONG))
    await eventually(lambda: site.worker.driver.counts().waiting == 1)
    await drop(queued)
    await eventually(lambda: site.worker.driver.counts().waiting == 0)
    await drop(running)
    await eventually(lambda: site.worker.driver.counts().running == 0)
    prefilling = asyncio.create_task(site.complete(WORDS * 80, **{**LONG, "max_tokens": 100}))
    await eventually(lambda: site.worker.driver.counts().running == 1)
    await drop(prefilling)
    await freed(site)
    assert site.worker.driver.counts().cancelled == 3


async def test_ap7_also_while_kv_is_on_its_way(start: Any) -> None:
    prefill = await start(Role.PREFILL)
    decode = await start(Role.DECODE, link_bytes_per_second=1e6)
    params = await prefill.prefill(WORDS * 6)
    assert prefill.used_tokens > 0
    pulling = asyncio.create_task(decode.complete(WORDS * 6, **LONG, kv_transfer_params=params))
    await eventually(lambda: decode.worker.driver.counts().pulling == 1)
    await drop(pulling)
    await decode.idle()
    # The decode side gives the pin back; nothing has to wait for the lease.
    await prefill.idle()
    assert await prefill.metric("disagg_worker_kv_leases_expired_total") == 0


async def test_ap8_models_are_listed_when_they_can_be_served(start: Any) -> None:
    site = await start(wait=False, startup_seconds=20.0)
    early = await site.complete(max_tokens=1)
    assert (early.status, early.headers["Retry-After"]) == (503, "1")
    assert early.json["error"]["code"] == "worker_not_ready"
    assert (await site.send("GET", "/health")).status == 503
    assert not WorkerInfo.from_json((await site.send("GET", "/disagg/info")).body).ready

    async def listed() -> bool:
        return bool((await site.send("GET", "/v1/models")).json["data"])

    await eventually(listed)
    assert (await site.complete(max_tokens=1)).status == 200
    assert (await site.send("GET", "/health")).status == 200


async def test_info_tells_what_the_router_compares(start: Any) -> None:
    site = await start(Role.DECODE, revision="r1", served_model_name="chat")
    info = WorkerInfo.from_json((await site.send("GET", "/disagg/info")).body)
    assert (info.role, info.model, info.revision, info.block_tokens) == (Role.DECODE, "chat", "r1", 16)
    assert info.engine_id == site.worker.engine_id != (await start()).worker.engine_id
    assert info.kv_capacity_tokens == 58592
    assert info.max_context_tokens == 2048
    assert (info.kv_host, info.kv_port) == ("127.0.0.1", site.worker.pulls.port)
    assert info.ready
    assert info.tokenizer_digest == (await start()).worker.info().tokenizer_digest


async def test_kv9_kv10_a_worker_that_is_told_to_stop_finishes_what_it_has(start: Any) -> None:
    site = await start(time_scale=5.0)
    streams = [
        asyncio.create_task(site.complete(f"{n} {WORDS}", max_tokens=60, ignore_eos=True, stream=True))
        for n in range(20)
    ]
    await eventually(lambda: len(site.worker.service.live) == 20)
    site.worker.stop()
    assert (await site.send("GET", "/health")).status == 503
    refused = await site.complete(max_tokens=1)
    assert (refused.status, refused.json["error"]["code"]) == (503, "worker_not_ready")
    assert not site.running.done()
    replies = await asyncio.gather(*streams)
    assert all(reply.done and len(reply.events) == 60 for reply in replies)
    await site.running


async def test_kv9_pinned_kv_is_waited_for(start: Any) -> None:
    prefill, decode = await start(Role.PREFILL), await start(Role.DECODE)
    params = await prefill.prefill(WORDS * 6)
    prefill.worker.stop()
    reply = await decode.complete(WORDS * 6, max_tokens=4, kv_transfer_params=params)
    assert reply.status == 200
    await prefill.running
    assert await decode.metric("disagg_worker_kv_transfer_failures_total") == 0


async def test_kv9_the_grace_period_ends_what_does_not_end(start: Any) -> None:
    site = await start(time_scale=0.1, grace_seconds=0.2)
    whole = asyncio.create_task(site.complete(**LONG))
    stream = asyncio.create_task(site.complete("Stream", **LONG, stream=True))
    await eventually(lambda: site.worker.driver.counts().running == 2)
    await eventually(lambda: all(generation.times for generation in site.worker.service.live))
    site.worker.stop()
    await site.running
    await site.worker.close()
    assert (await whole).status == 503
    ended = await stream
    assert not ended.done
    assert ended.events[-1]["error"]["code"] == "worker_stopped"
    assert not any(choice["finish_reason"] for event in ended.events for choice in event.get("choices", []))


async def test_a_drain_mark_can_be_taken_away(start: Any) -> None:
    site = await start(time_scale=2.0)
    running = asyncio.create_task(site.complete(**{**LONG, "max_tokens": 50}))
    await eventually(lambda: len(site.worker.service.live) == 1)
    marked = (await site.send("POST", "/drain")).json
    assert marked == {"draining": True, "empty": False, "inflight": 1, "pinned": 0}
    assert (await site.send("GET", "/disagg/info")).json["draining"]
    await running
    assert (await site.send("GET", "/drain")).json["empty"]
    assert not (await site.send("DELETE", "/drain")).json["draining"]
    assert (await site.complete(max_tokens=1)).status == 200


async def test_pins_keep_a_prefill_worker_from_being_empty(start: Any) -> None:
    site = await start(Role.PREFILL)
    await site.prefill()
    state = (await site.send("GET", "/drain")).json
    assert (state["empty"], state["inflight"], state["pinned"]) == (False, 0, 1)


@pytest.mark.parametrize(
    ("prompt", "limit", "status"), [(784, 16, 200), (799, 1, 200), (800, 1, 400), (801, 1, 400), (700, 200, 400)]
)
async def test_wb2_what_can_never_fit_is_refused_at_once(start: Any, prompt: int, limit: int, status: int) -> None:
    site = await start(kv_capacity_tokens=800)
    reply = await site.complete([5000 + n for n in range(prompt)], max_tokens=limit)
    assert reply.status == status
    if status == 400:
        assert reply.json["error"]["param"] == ("prompt" if prompt >= 800 else "max_tokens")
    assert (await site.complete(list(range(100)), max_tokens=4)).status == 200
    assert site.worker.driver.counts().waiting == 0


async def test_a_full_queue_answers_503(start: Any) -> None:
    site = await start(time_scale=0.5, max_sequences=1, max_waiting=2)
    tasks = [asyncio.create_task(site.complete("Zero", **LONG))]
    await eventually(lambda: site.worker.driver.counts().running == 1)
    tasks += [asyncio.create_task(site.complete(f"{n}", **LONG)) for n in range(2)]
    await eventually(lambda: site.worker.driver.counts().waiting == 2)
    full = await site.complete(max_tokens=1)
    assert (full.status, full.json["error"]["code"]) == (503, "queue_full")
    for task in tasks:
        await drop(task)


@pytest.mark.parametrize("role", list(Role))
async def test_wb5_no_block_is_left_behind(start: Any, role: Role) -> None:
    prefill, site = await start(Role.PREFILL, lease_seconds=1.0), await start(role)
    tasks = []
    for number in range(120):
        length = (15, 16, 17, 31, 32, 33)[number % 6]
        prompt = [(number * 40 + position) % 9000 + 20 for position in range(length - 5)]
        fields: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True}
        if role is Role.DECODE:
            fields["kv_transfer_params"] = await prefill.prefill(prompt)
        if number % 3 == 1:
            fields["stop"] = "e"
        task = asyncio.create_task(site.complete(prompt, **fields))
        tasks.append(task)
        if number % 3 == 2:
            await asyncio.sleep(0.001 * (number % 4))
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await site.idle()
    await prefill.idle()
    counts = site.worker.driver.counts()
    assert counts.submitted == counts.finished + counts.cancelled + counts.failed + counts.refused
    assert counts.cancelled + counts.finished >= 80


async def test_slowdown_endpoint(start: Any) -> None:
    site = await start(debug_endpoints=True)
    fast = float((await site.complete(max_tokens=10)).headers["x-disagg-tpot-seconds"])
    assert (await site.send("POST", "/debug/slowdown", json={"factor": 2})).json == {"factor": 2}
    slow = float((await site.complete("Other", max_tokens=10)).headers["x-disagg-tpot-seconds"])
    assert slow == pytest.approx(2 * fast, rel=0.05)
    for body in ({"factor": 0}, {"factor": "x"}, [], {}):
        assert (await site.send("POST", "/debug/slowdown", json=body)).status == 400
    assert (await site.send("POST", "/debug/slowdown", data=b"{")).status == 400
    assert (await (await start()).send("POST", "/debug/slowdown", json={"factor": 2})).status == 404


async def test_iteration_log_tells_what_the_engine_did(start: Any, tmp_path: Path) -> None:
    path = tmp_path / "iterations.jsonl"
    site = await start(iteration_log=str(path))
    await site.complete(WORDS, max_tokens=5, ignore_eos=True)
    site.worker._log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["kind"] == "worker"
    assert lines[0]["config"]["iteration_log"] == str(path)
    assert lines[1]["kind"] == "arrival"
    assert lines[1]["max"] == 5
    assert len(unpack_keys(lines[1]["keys"])) == lines[1]["prompt"] // 16
    iterations = [line for line in lines if line["kind"] == "iteration"]
    assert [line["number"] for line in iterations] == [1, 2, 3, 4, 5]
    assert iterations[0]["start"] == pytest.approx(lines[1]["at"])
    for before, after in pairwise(iterations):
        assert after["start"] == before["end"]


async def test_recorded_arrivals_give_a_simulated_instance_the_same_iterations(start: Any, tmp_path: Path) -> None:
    """One engine, two clocks: the record of a real run, fed to the loop under a virtual clock."""
    path = tmp_path / "iterations.jsonl"
    site = await start(iteration_log=str(path), prefix_caching=False, time_scale=10.0, max_sequences=8)
    tasks = []
    for number in range(24):
        tasks.append(
            asyncio.create_task(
                site.complete(f"{number} {WORDS * (number % 7)}", max_tokens=5 + number, ignore_eos=True)
            )
        )
        await asyncio.sleep(0.003)
    await asyncio.gather(*tasks)
    site.worker._log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    real = [(line["start"], line["end"], line["works"]) for line in lines if line["kind"] == "iteration"]
    arrivals = [line for line in lines if line["kind"] == "arrival"]
    config, instance = site.worker.simulated.loop.config, site.worker.simulated.instance
    loop = BatchingLoop(
        config=config,
        time_model=Roofline(instance),
        ledger=CountingLedger(capacity_tokens=instance.kv_capacity_tokens(), block_tokens=16),
    )
    for line in arrivals:
        loop.submit(
            Request(request_id=line["request"], prompt_tokens=line["prompt"], max_tokens=line["max"]), now=line["at"]
        )
    virtual: list[Any] = []
    while (due := loop.next_seconds()) is not None:
        for done in loop.complete(now=due):
            works = [[w.request_id, w.start_tokens, w.new_tokens, w.emits] for w in done.works]
            virtual.append((done.iteration.start_seconds, done.iteration.end_seconds, works))
        loop.plan(now=due)
    assert len(real) > 40
    assert virtual == real


async def test_a_record_is_replayed_to_the_last_bit(start: Any, tmp_path: Path) -> None:
    """Shared prefixes, answers that end by themselves, cancellations and a tight pool: every call is in the record."""
    path = tmp_path / "iterations.jsonl"
    settings = {"kv_capacity_tokens": 480, "time_scale": 4.0, "max_sequences": 16, "answer_tokens_mean": 40.0}
    site = await start(iteration_log=str(path), **settings)
    tasks = []
    for number in range(40):
        prompt = WORDS * (1 + number % 5) + f" {number % 8}"
        tasks.append(asyncio.create_task(site.complete(prompt, max_tokens=60, stream=number % 3 == 0)))
        await asyncio.sleep(0.002)
        if number % 10 == 9:
            await drop(tasks.pop(-5))
    await asyncio.gather(*tasks)
    await eventually(lambda: site.worker.driver.counts().running == 0)
    kinds = replay_site(site, path)
    assert kinds["iteration"] > 40
    assert kinds["blocks"] > 40
    assert kinds["cancel"] > 0
    assert kinds["finish"] > 30
    assert kinds["preemption"] > 0


async def test_records_of_a_pair_are_replayed_too(start: Any, tmp_path: Path) -> None:
    """Pulls that arrive, one that fails and is computed at the decode worker, releases, a slowdown."""
    paths = {role: tmp_path / f"{role}.jsonl" for role in (Role.PREFILL, Role.DECODE)}
    prefill, decode = [
        await start(role, iteration_log=str(path), time_scale=4.0, debug_endpoints=True) for role, path in paths.items()
    ]
    params = [await prefill.prefill(f"{number % 3} {WORDS * (1 + number % 4)}") for number in range(12)]
    params[5] = {**params[5], "remote_port": 1}
    replies = await asyncio.gather(
        *(
            decode.complete(
                f"{number % 3} {WORDS * (1 + number % 4)}", max_tokens=30, kv_transfer_params=params[number]
            )
            for number in range(12)
        )
    )
    assert [reply.status for reply in replies] == [200] * 12
    await decode.send("POST", "/debug/slowdown", json={"factor": 2})
    await decode.complete(WORDS, max_tokens=5, ignore_eos=True)
    await eventually(lambda: len(prefill.worker.pins) <= 1)  # that of the pull that failed may wait for its lease
    kinds = replay_site(decode, paths[Role.DECODE])
    assert (kinds["arrival"], kinds["pulled"], kinds["pull-failed"], kinds["slowdown"]) == (13, 11, 1, 1)
    kinds = replay_site(prefill, paths[Role.PREFILL])
    assert kinds["arrival"] == 12
    assert kinds["release"] >= 11


def replay_site(site: Site, path: Path) -> Counter[str]:
    """Replay a worker's record; it must end with the worker's own counts. How many lines it has of each kind."""
    site.worker._log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    simulated = site.worker.simulated
    loop = BatchingLoop(
        config=simulated.loop.config,
        time_model=Roofline(simulated.instance),
        ledger=BlockLedger(capacity_tokens=lines[0]["capacity"], block_tokens=lines[0]["config"]["block_tokens"]),
    )
    kinds = replay(lines, loop)
    assert loop.counts() == site.worker.driver.counts()
    return kinds


def replay(lines: list[dict[str, Any]], loop: BatchingLoop) -> Counter[str]:
    """Make the calls that a record tells of, and compare what the loop answers."""
    preempted: list[str] = []
    for line in lines[1:]:
        at, name = line.get("at", 0.0), line.get("request", "")
        match line["kind"]:
            case "arrival":
                request = Request(
                    request_id=name,
                    prompt_tokens=line["prompt"],
                    max_tokens=line["max"],
                    block_keys=unpack_keys(line["keys"]),
                    remote_kv=line["remote"],
                    keep_kv=line["keep"],
                )
                loop.submit(request, now=at)
            case "blocks":
                loop.add_block_keys(name, unpack_keys(line["keys"]))
            case "cancel":
                loop.cancel(name, now=at)
            case "finish":
                loop.finish(name, now=at)
            case "pulled":
                loop.kv_arrived(name, now=at, first_token=FirstToken(line["first"]))
            case "pull-failed":
                loop.kv_failed(name, now=at)
            case "release":
                loop.release(name, now=at)
            case "slowdown":
                loop.set_slowdown(line["factor"], now=at)
            case "plan":
                preempted.extend(loop.plan(now=at).preempted)
            case "preemption":
                assert name == preempted.pop(0)
            case "iteration":
                (done,) = loop.complete(now=line["end"])
                assert done.iteration.start_seconds == line["start"]
                assert done.iteration.end_seconds == line["end"]
                assert [[w.request_id, w.start_tokens, w.new_tokens, w.emits] for w in done.works] == line["works"]
        if line["kind"] in ("arrival", "pulled", "pull-failed", "cancel", "release"):
            loop.start_transfers(now=at)
    assert not preempted
    return Counter(line["kind"] for line in lines)


async def test_an_engine_that_fails_ends_everything_with_an_error(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = await start(time_scale=1.0)
    stream = asyncio.create_task(site.complete(**LONG, stream=True))
    await eventually(lambda: any(generation.times for generation in site.worker.service.live))

    def broken(*, now: float) -> None:
        raise RuntimeError("the engine is broken")

    monkeypatch.setattr(site.worker.simulated.loop, "plan", broken)
    with pytest.raises(RuntimeError, match="the engine is broken"):
        await site.running
    ended = await stream
    assert ended.events[-1]["error"]["code"] == "engine_failed"
    assert not ended.done
    assert await site.metric("disagg_worker_requests_total", outcome="failed") == 1


async def test_wb6_a_prompt_that_is_all_cached_computes_its_last_block(start: Any) -> None:
    site = await start()
    prompt = list(range(1000, 1064))
    first = await site.complete(prompt, max_tokens=3)
    computed = await site.metric("disagg_worker_prompt_tokens_total")
    second = await site.complete(prompt, max_tokens=3)
    assert second.text == first.text
    assert second.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 48
    assert await site.metric("disagg_worker_prompt_tokens_total") - computed == 16
    assert float(second.headers["x-disagg-ttft-seconds"]) > 0


async def test_a_port_in_use_is_named_with_its_flag(start: Any) -> None:
    site = await start()
    worker = Worker(WorkerConfig(host="127.0.0.1", port=site.worker.port, kv_port=0))
    with pytest.raises(ListenError, match=f"port {site.worker.port} on 127.0.0.1 is in use; .* --port"):
        await worker.start()
    worker = Worker(WorkerConfig(host="127.0.0.1", port=0, kv_port=site.worker.pulls.port))
    with pytest.raises(ListenError, match="--kv-port"):
        await worker.start()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "gpt-5"}, "unknown model 'gpt-5'; known are: .*opt-13b"),
        ({"gpu": "tpu"}, "unknown GPU 'tpu'; known are: .*a100-80gb"),
        ({"link": "string"}, "unknown link 'string'; known are: .*nvlink"),
        ({"model": "opt-175b"}, "opt-175b needs"),
        ({"gpu": "l40s", "link": "nvlink", "model": "llama-3-8b"}, "no NVLink"),
        ({"tokenizer": "/nowhere/tokenizer.json"}, "--tokenizer=/nowhere/tokenizer.json: can't be read"),
        ({"catalogue": "/nowhere/catalogue.yaml"}, "--catalogue=/nowhere/catalogue.yaml: can't be read"),
        ({"log_level": "loud"}, "--log-level=loud"),
    ],
)
def test_settings_that_can_not_work_exit_2_with_a_sentence(
    settings: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = WorkerConfig(**{"model": "opt-13b", "gpu": "a100-80gb", **settings})
    if "log_level" not in settings:
        with pytest.raises(StartError, match=message):
            Worker(config)
    assert main(to_args(config)) == 2
    said = capsys.readouterr().err
    assert said.startswith("disagg worker: ")
    assert said.count("\n") == 1


async def read_until(stream: asyncio.StreamReader, text: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(60):
        while text not in seen:
            line = await stream.readline()
            assert line, seen
            seen += line
    return seen


async def test_kv10_a_process_that_gets_sigterm_finishes_and_exits_0(unused_tcp_port_factory: Any) -> None:
    port = unused_tcp_port_factory()
    config = WorkerConfig(
        model="opt-13b", gpu="a100-80gb", host="127.0.0.1", port=port, kv_port=0, time_scale=5, startup_seconds=0
    )
    paths = [
        str(Path(sys.modules[name].__path__[0]).parent)
        for name in ("disagg_contract", "disagg_engine", "disagg_workers")
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "disagg_workers.main",
        *to_args(config),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        await read_until(process.stderr, b"ready after")
        body = {"prompt": WORDS, "max_tokens": 80, "ignore_eos": True, "stream": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as response,
        ):
            await response.content.readline()
            process.send_signal(signal.SIGTERM)
            rest = await response.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
