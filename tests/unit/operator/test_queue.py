"""The work queue: one entry a key, serial for each, back-off with jitter."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from disagg_operator.errors import ApiError, Conflict
from disagg_operator.shell.kube.metrics import Metrics
from disagg_operator.shell.kube.operator import _reconcile
from disagg_operator.shell.kube.queue import WorkQueue
from disagg_operator.shell.kube.watcher import Key


@asynccontextmanager
async def running(
    work: Callable[[str], Awaitable[float | None]], errors: list[Exception] | None = None, workers: int = 4
) -> AsyncIterator[WorkQueue[str]]:
    queue = WorkQueue(
        work,
        rng=random.Random(1),
        report=lambda key, error: errors.append(error) if errors is not None else None,
        first_pause_seconds=0.001,
        longest_pause_seconds=0.01,
    )
    task = asyncio.create_task(queue.run(workers))
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_key_that_waits_is_there_once() -> None:
    seen: list[str] = []
    done = asyncio.Event()

    async def work(key: str) -> None:
        seen.append(key)
        if key == "last":
            done.set()

    async with running(work, workers=1) as queue:
        for key in ("a", "b", "a", "a", "last"):
            queue.add(key)
        assert len(queue) == 3
        await asyncio.wait_for(done.wait(), 10)
    assert seen == ["a", "b", "last"]


async def test_op8_a_key_is_never_worked_on_twice_at_a_time_and_nothing_is_lost() -> None:
    active, runs = 0, 0
    release, finished = asyncio.Event(), asyncio.Event()

    async def work(key: str) -> None:
        nonlocal active, runs
        active += 1
        assert active == 1
        runs += 1
        await release.wait()
        active -= 1
        if runs == 2:
            finished.set()

    async with running(work) as queue:
        queue.add("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for _ in range(5):
            queue.add("a")
        release.set()
        await asyncio.wait_for(finished.wait(), 10)
        await asyncio.sleep(0.02)
    assert runs == 2, "what arrived meanwhile is one more run, not five"


async def test_failures_come_back_and_do_not_stop_others() -> None:
    tries: list[str] = []
    errors: list[Exception] = []
    done = asyncio.Event()

    async def work(key: str) -> None:
        tries.append(key)
        if key == "bad" and tries.count("bad") < 4:
            raise ApiError("not now")
        if tries.count("bad") == 4:
            done.set()

    async with running(work, errors) as queue:
        queue.add("bad")
        queue.add("good")
        await asyncio.wait_for(done.wait(), 10)
    assert tries.count("good") == 1
    assert [str(error) for error in errors] == ["not now"] * 3


async def test_work_may_ask_to_be_called_again() -> None:
    runs = 0
    done = asyncio.Event()

    async def work(key: str) -> float | None:
        nonlocal runs
        runs += 1
        if runs == 3:
            done.set()
            return None
        return 0.001

    async with running(work) as queue:
        queue.add("a")
        await asyncio.wait_for(done.wait(), 10)
        await asyncio.sleep(0.02)
    assert runs == 3


async def test_an_earlier_appointment_stands() -> None:
    done = asyncio.Event()

    async def work(key: str) -> None:
        done.set()

    async with running(work) as queue:
        queue.add_after("a", 0.001)
        queue.add_after("a", 100.0)
        await asyncio.wait_for(done.wait(), 10)


async def test_op4_a_conflict_is_a_retry_and_no_error() -> None:
    metrics, tries = Metrics(), 0

    async def work(namespace: str, name: str) -> float | None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise Conflict("the object has been modified", code=409)
        return None

    reconcile = _reconcile({"dd": work}, metrics)
    key = Key("dd", "team", "chat")
    pauses = [await reconcile(key) for _ in range(3)]
    assert pauses[:2] == [0.2, 0.2]
    assert pauses[2] is None
    text = metrics.exposition().decode()
    assert 'disagg_operator_reconciles_total{kind="dd",result="conflict"} 2.0' in text
    assert 'disagg_operator_reconciles_total{kind="dd",result="error"} 0.0' in text
