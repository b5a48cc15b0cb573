"""Direct scraping over real HTTP: differences, resets, newcomers and silence."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from disagg_contract.discovery import DiscoveredWorker, DiscoveryFile
from disagg_contract.labels import Role
from disagg_planner.core import signals
from disagg_planner.core.signals import ProblemKind, Reading
from disagg_planner.shell.scrape import ScrapeSource

STARTED = "disagg_router_requests_started_total"
BUSY = "disagg_worker_busy_seconds_total"


def counter(name: str, value: float) -> str:
    return f'# TYPE {name.removesuffix("_total")} counter\n{name}{{model="m"}} {value}\n'


@dataclass
class Site:
    """A router and workers whose pages a test may change at any time; an int is the status of an answer."""

    source: ScrapeSource
    pages: dict[str, str | int]
    path: Path
    rows: list[DiscoveredWorker] = field(default_factory=list)

    def write(self) -> None:
        self.path.write_bytes(DiscoveryFile(workers=tuple(self.rows)).to_json())


Open = Callable[..., Any]


@pytest.fixture
async def site(serve: Any, page: Any, tmp_path: Path) -> AsyncIterator[Open]:
    opened: list[ScrapeSource] = []

    async def build(*, workers: int = 1, window_seconds: float = 30.0) -> Site:
        pages: dict[str, str | int] = {"router": counter(STARTED, 0)}

        async def host(name: str) -> str:
            return str(await serve(page(lambda: pages[name])))

        path = tmp_path / "workers.json"
        source = ScrapeSource(
            router_url=await host("router"),
            discovery_file=str(path),
            model="m",
            window_seconds=window_seconds,
            timeout_seconds=5.0,
        )
        opened.append(source)
        made = Site(source, pages, path)
        for number in range(workers):
            name = f"w{number}"
            pages[name] = counter(BUSY, 0)
            port = int((await host(name)).rpartition(":")[2])
            made.rows.append(DiscoveredWorker(f"uid-{name}", name, Role.PREFILL, "127.0.0.1", port))
        made.write()
        return made

    yield build
    for source in opened:
        await source.close()


def problem(reading: Reading) -> ProblemKind | None:
    return reading.problem.kind if reading.problem is not None else None


async def test_a_window_is_the_difference_of_two_scrapes(site: Open) -> None:
    here = await site(workers=2)
    await here.source.start(0.0)
    here.pages |= {"router": counter(STARTED, 90), "w0": counter(BUSY, 4), "w1": counter(BUSY, 5)}
    reading = await here.source.read(31.0)
    assert reading.problem is None
    assert (reading.window_seconds, reading.silent) == (31.0, ())
    assert reading.increases == {signals.STARTED.key: 90.0, signals.PREFILL_BUSY.key: 9.0}


async def test_the_first_scrape_alone_is_no_window(site: Open) -> None:
    here = await site()
    assert problem(await here.source.read(0.0)) is ProblemKind.MISSING
    assert problem(await here.source.read(30.0)) is None


async def test_a_restarted_target_counts_from_zero(site: Open) -> None:
    here = await site()
    here.pages |= {"router": counter(STARTED, 500), "w0": counter(BUSY, 80)}
    await here.source.start(0.0)
    here.pages |= {"router": counter(STARTED, 7), "w0": counter(BUSY, 3)}
    reading = await here.source.read(30.0)
    assert reading.increases == {signals.STARTED.key: 7.0, signals.PREFILL_BUSY.key: 3.0}


async def test_pm6_what_a_new_worker_counted_before_its_first_scrape_is_seen(site: Open) -> None:
    here = await site(workers=2)
    newcomer = here.rows.pop()
    here.write()
    await here.source.start(0.0)
    here.rows.append(newcomer)
    here.write()
    here.pages["w1"] = counter(BUSY, 6)
    reading = await here.source.read(30.0)
    assert reading.increases[signals.PREFILL_BUSY.key] == 6.0


async def test_pl17_one_worker_that_refuses_does_not_spoil_the_rest(site: Open) -> None:
    here = await site(workers=6)
    await here.source.start(0.0)
    here.pages |= {f"w{number}": counter(BUSY, 2) for number in range(6)}
    here.pages["w3"] = 503
    reading = await here.source.read(30.0)
    assert (problem(reading), reading.silent) == (None, ("w3",))
    assert reading.increases[signals.PREFILL_BUSY.key] == 10.0
    here.pages["w3"] = counter(BUSY, 3)
    assert (await here.source.read(60.0)).increases[signals.PREFILL_BUSY.key] == 3.0, "it catches up"


async def test_pl17_a_port_nobody_listens_on_is_silence(site: Open) -> None:
    here = await site()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        here.rows.append(DiscoveredWorker("uid-gone", "gone", Role.DECODE, "127.0.0.1", port))
        here.rows.append(DiscoveredWorker("uid-new", "new", Role.DECODE, "127.0.0.1", port, ready=False))
        here.write()
        await here.source.start(0.0)
        assert (await here.source.read(30.0)).silent == ("gone",), "one that is still starting owes no answer"


@pytest.mark.parametrize("answer", [500, "<html>"])
async def test_without_the_router_there_is_no_reading(site: Open, answer: str | int) -> None:
    here = await site()
    await here.source.start(0.0)
    here.pages["router"] = answer
    assert problem(await here.source.read(30.0)) is ProblemKind.UNREACHABLE
    here.pages["router"] = counter(STARTED, 60)
    reading = await here.source.read(60.0)
    assert (reading.window_seconds, reading.increases[signals.STARTED.key]) == (60.0, 60.0)


async def test_a_discovery_file_that_cannot_be_read_is_a_problem(site: Open) -> None:
    here = await site()
    here.path.write_text("{")
    assert problem(await here.source.read(0.0)) is ProblemKind.UNREACHABLE
    here.path.unlink()
    assert problem(await here.source.read(0.0)) is ProblemKind.UNREACHABLE


async def test_a_router_without_series_of_the_model_is_missing_not_zero(site: Open) -> None:
    here = await site()
    here.pages["router"] = counter(STARTED, 5).replace('"m"', '"other"')
    await here.source.start(0.0)
    assert signals.STARTED.key not in (await here.source.read(30.0)).increases


async def test_a_window_longer_than_the_interval_reaches_back(site: Open) -> None:
    here = await site(window_seconds=60.0)
    await here.source.start(0.0)
    windows = []
    for tick in range(1, 6):
        here.pages["router"] = counter(STARTED, 30 * tick)
        reading = await here.source.read(30.0 * tick)
        windows.append((reading.window_seconds, reading.increases[signals.STARTED.key]))
    assert windows == [(30.0, 30.0), (60.0, 60.0), (60.0, 60.0), (60.0, 60.0), (60.0, 60.0)]
