"""Workers that come, go, restart, drain and disagree; the watched file."""

import asyncio
import json
import logging
from collections import Counter
from dataclasses import replace

import aiohttp
import pytest

from disagg_contract.discovery import DiscoveryFile
from disagg_router.shell.discovery import registrar
from disagg_router.shell.discovery.file import FileSource


async def test_ap8_a_model_is_listed_once_it_can_be_served(bench, pair, tools):
    router = await bench()

    async def listed():
        return [model["id"] for model in (await (await router.get("/v1/models")).json())["data"]]

    assert await listed() == []
    assert (await router.get("/health")).status == 503
    prefill, decode = pair
    prefill.ready = False
    await prefill.start()
    router.workers.append(prefill)
    router.source.put(prefill.row)
    await router.add(decode)
    assert await listed() == []
    assert (await router.get("/health")).status == 503
    assert (await router.get("/health/live")).status == 200
    prefill.ready = True

    async def served_as_soon_as_listed():
        if not await listed():
            return False
        assert (await router.post()).status == 200
        return True

    await tools.eventually(served_as_soon_as_listed, "the model is listed")
    assert (await router.get("/health")).status == 200
    router.source.remove(decode.uid)

    async def gone():
        return await listed() == [] and (await router.get("/health")).status == 503

    await tools.eventually(gone, "it is no longer listed")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("policy", ["kv", "least-loaded", "round-robin"])
async def test_rt6_idle_workers_share_short_prompts(bench, tools, policy, path):
    workers = [tools.FakeWorker(tools.Role.WORKER) for _ in range(3)]
    router = await bench(*workers, policy=policy)
    for number in range(300):
        prompt = {"prompt": f"prompt {number}"}
        if "chat" in path:
            prompt = {"messages": [{"role": "user", "content": f"prompt {number}"}]}
        assert (
            await router.post(json.dumps({"model": tools.MODEL, **prompt, "max_tokens": 1}), path=path)
        ).status == 200
    shares = Counter({worker.uid: len(worker.legs) for worker in workers})
    assert all(70 <= share <= 130 for share in shares.values()), shares


async def test_the_kv_policy_keeps_a_prefix_at_its_worker(bench, tools):
    workers = [tools.FakeWorker(tools.Role.PREFILL) for _ in range(4)]
    router = await bench(*workers, tools.FakeWorker(tools.Role.DECODE), policy="kv")
    for session in range(8):
        before = {worker.uid: len(worker.legs) for worker in workers}
        for turn in range(6):
            prompt = f"session {session} " + "the quick brown fox " * 40 * (turn + 1)
            assert (await router.post({"prompt": prompt, "max_tokens": 1})).status == 200
        used = [worker for worker in workers if len(worker.legs) > before[worker.uid]]
        assert len(used) == 1


async def test_rt5_health_rounds_keep_load(bench, pair, tools):
    pair[1].mode = "hold"
    router = await bench(*pair)
    running = [asyncio.ensure_future(router.post({"stream": True})) for _ in range(10)]
    await tools.eventually(lambda: pair[1].running == 10, "all run")
    worker = router.app.fleet.get(pair[1].uid)
    for _ in range(50):
        router.app.registrar.nudge(pair[1].uid)
        await asyncio.sleep(0)
    router.source.put(replace(pair[1].row, ready=False))
    await tools.eventually(lambda: not worker.eligible, "it is not ready")
    router.source.put(pair[1].row)
    await tools.eventually(lambda: worker.eligible, "it is ready")
    assert router.app.fleet.get(pair[1].uid) is worker
    assert worker.requests == 10
    pair[1].go.set()
    for answer in await asyncio.gather(*running):
        assert b"[DONE]" in await answer.read()
    assert (worker.requests, worker.tokens, worker.blocks) == (0, 0, 0)


async def test_rt4_a_draining_worker_finishes_and_gets_nothing_new(bench, pair, tools):
    other = tools.FakeWorker(tools.Role.DECODE)
    router = await bench(*pair)
    pair[1].mode = "hold"
    running = await router.post({"stream": True})
    await router.add(other)
    router.source.put(replace(pair[1].row, draining=True))
    await tools.eventually(lambda: not router.eligible(pair[1]), "it drains")
    for _ in range(10):
        assert (await router.post()).status == 200
    assert len(pair[1].legs) == 1
    router.source.remove(pair[1].uid)
    await tools.eventually(lambda: router.app.fleet.get(pair[1].uid) is None, "it left")
    pair[1].go.set()
    assert b"[DONE]" in await running.read()


async def test_a_worker_says_itself_that_it_drains(bench, tools):
    workers = [tools.FakeWorker(tools.Role.WORKER) for _ in range(2)]
    router = await bench(*workers)
    workers[0].draining = True
    router.app.registrar.nudge(workers[0].uid)
    await tools.eventually(lambda: not router.eligible(workers[0]), "it drains")
    workers[0].draining = False
    await tools.eventually(lambda: router.eligible(workers[0]), "the drain was cancelled")


async def test_rt11_a_worker_with_another_block_size_is_refused(bench, tools, caplog):
    router = await bench(tools.FakeWorker(tools.Role.WORKER))
    odd = await tools.FakeWorker(tools.Role.WORKER, block_tokens=64).start()
    router.workers.append(odd)
    router.source.put(odd.row)

    async def refused():
        return (await router.metrics())['disagg_router_workers_refused_total{reason="block_tokens"}'] == 1

    await tools.eventually(refused, "it is refused")
    assert "block_tokens is 64, but worker-" in caplog.text
    assert router.app.fleet.get(odd.uid) is None
    for _ in range(10):
        assert (await router.post()).status == 200
    assert odd.legs == []


async def test_rt15_a_new_router_finds_all_workers(bench, tools):
    roles = (tools.Role.PREFILL, tools.Role.DECODE)
    workers = [tools.FakeWorker(role, model=f"m{n % 3}") for n in range(4) for role in roles]
    await bench(*workers)
    again = await bench()
    again.source.put(*(worker.row for worker in workers))
    await tools.eventually(lambda: all(map(again.eligible, workers)), "all are found")
    models = [model["id"] for model in (await (await again.get("/v1/models")).json())["data"]]
    assert sorted(models) == ["m0", "m1", "m2"]
    for model in models:
        assert (await again.post({"model": model})).status == 200


async def test_rt16_pm12_churn_leaks_nothing(bench, tools):
    worker = await tools.FakeWorker(tools.Role.WORKER).start()
    router = await bench()
    router.workers.append(worker)
    page = set(await router.metrics())
    tasks = len(asyncio.all_tasks())
    registrar = router.app.registrar
    for number in range(500):
        row = replace(worker.row, uid=f"churn-{number}")
        registrar.update((row,))
        if number % 50 == 0:
            await tools.eventually(lambda row=row: router.app.fleet.get(row.uid) is not None, "it joined")
            await router.post()
        else:
            await asyncio.sleep(0)
        registrar.update(())
    await tools.eventually(lambda: len(asyncio.all_tasks()) <= tasks + 2, "the tasks are gone")
    assert registrar.tasks == 0
    assert list(router.app.fleet.workers) == []
    assert len(router.app._policy._index) == 0
    assert router.app.pool.connections <= 2
    after = await router.metrics()
    assert {series for series in set(after) - page if tools.MODEL not in series} == set()
    assert not any("churn" in series for series in after)


async def test_a_worker_that_starts_slowly_is_asked_until_it_answers(bench, tools):
    router = await bench()
    worker = await tools.FakeWorker(tools.Role.WORKER).start()
    await worker.stop()
    router.source.put(worker.row)
    await tools.eventually(lambda: router.app.registrar.tasks == 1, "it is named")
    await worker.start()
    router.workers.append(worker)
    await tools.eventually(lambda: router.eligible(worker), "it is taken in")


async def rows_of(source):
    async for rows in source.watch():
        yield rows


async def test_rt2_the_file_is_followed_through_replacements_and_mistakes(tools, tmp_path, caplog):
    path = tmp_path / "workers.json"
    seen = []

    async def follow():
        async for rows in FileSource(path, poll_seconds=0.01).watch():
            seen.append([row.uid for row in rows])

    def replace_with(text):
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)

    caplog.set_level(logging.ERROR)
    task = asyncio.ensure_future(follow())
    await tools.eventually(lambda: "No such file" in caplog.text, "a missing file is said")
    rows = [tools.FakeWorker(tools.Role.WORKER, uid=uid).row for uid in ("a", "b", "c")]
    path.write_text("")
    replace_with(DiscoveryFile(workers=tuple(rows[:2])).to_json().decode())
    await tools.eventually(lambda: seen == [["a", "b"]], "the file is read")
    for broken in ("{", '{"workers": [{"uid": 1}]}', '{"version": 9}', ""):
        caplog.clear()
        replace_with(broken)
        await tools.eventually(lambda: "stay in use" in caplog.text, "the mistake is said")
    assert len(caplog.records) == 1, "once, not at every poll"
    assert str(path) in caplog.text
    replace_with(DiscoveryFile(workers=tuple(rows[1:])).to_json().decode())
    await tools.eventually(lambda: seen == [["a", "b"], ["b", "c"]], "the file is read again")
    task.cancel()


async def test_a_router_of_a_file(tools, tmp_path, pair):
    from disagg_contract.config import RouterConfig
    from disagg_router.main import make_source
    from disagg_router.shell.app import RouterApp

    path = tmp_path / "workers.json"
    for worker in pair:
        await worker.start()
    path.write_bytes(DiscoveryFile(workers=tuple(worker.row for worker in pair)).to_json())
    config = RouterConfig(host="127.0.0.1", port=0, discovery_file=str(path))
    app = RouterApp(config, make_source(config))
    await app.start()
    await tools.eventually(lambda: bool(app.fleet.servable_models), "the workers are found")
    async with aiohttp.ClientSession() as client:
        answer = await client.post(app.url + "/v1/completions", json={"prompt": "x"})
        assert answer.status == 200
    await app.stop()
    for worker in pair:
        await worker.stop()


async def test_a_worker_that_ends_idle_is_no_warning_until_it_stays_silent(bench, tools, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    workers = [tools.FakeWorker(tools.Role.WORKER) for _ in range(2)]
    router = await bench(*workers)
    for _ in range(4):
        assert (await router.post()).status == 200
    gone = workers[0]
    await gone.stop()
    await tools.eventually(lambda: not router.eligible(gone), "its end is noticed")
    assert (await router.post()).status == 200
    assert "does not answer" in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    monkeypatch.setattr(registrar, "SILENT_SECONDS", 0.05)
    await tools.eventually(lambda: "has not answered for" in caplog.text, "it stays silent although it is named")
    gone.port = router.app.fleet.get(gone.uid).port
    await gone.start()
    await tools.eventually(lambda: router.eligible(gone), "it is back")
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


async def test_a_worker_that_loses_requests_is_a_warning_with_the_reason(bench, tools, caplog):
    workers = [tools.FakeWorker(tools.Role.WORKER) for _ in range(2)]
    router = await bench(*workers, policy="round-robin")
    workers[0].mode, workers[0].dies_after = "die", 0
    for _ in range(2):
        assert (await router.post({"stream": True})).status == 200
    (record,) = [record for record in caplog.records if "not chosen until it answers" in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert "closed the connection" in record.getMessage()
