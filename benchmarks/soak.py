"""Some minutes of a deployment in processes, under load, kills, scaling and clients that go away.

    .venv/bin/python benchmarks/soak.py [--seconds N] [--rate R] [--seed N] [--json FILE]

Poisson arrivals with shared prefixes go to the router of `disagg up`. Meanwhile, one fault every few seconds: a worker
is killed (SIGKILL to a pid that the runtime says it started), or a role is scaled through the control API. A share of
the clients hangs up in the middle of its answer. Then the load ends and what must hold is checked:

- every request ended in a complete answer, an explicit error, or because its client went away; an error only while a
  worker was being killed (scale-downs drain and cost nobody anything);
- the same request got the same text each time, whoever answered it and whatever was in the caches;
- router and workers counted each request once: started = sum of the outcomes, nothing in flight, nothing queued;
- KV room is free again on every worker, and nothing is pinned;
- the fleet is what was asked for last, and no process, no descriptor and no temporary file is left over;
- memory of the programs that ran all the time grew by no more than a bound.

Choices come from the seed; when they meet which request depends on the machine.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from results import FOLDER, store

from disagg_contract import metrics
from disagg_contract.control import STATUS_PATH, RuntimeStatus, Scale, scale_path
from disagg_contract.labels import Role
from disagg_contract.metrics import Metric
from disagg_contract.ports import METRICS_PATH
from disagg_load.answers import AnswerReader, error_message
from disagg_load.lag import LoopLag, show_lag
from disagg_load.shell.http import HttpClient
from disagg_operator.shell.local.launcher import launch
from disagg_operator.shell.local.state import read_state

MODEL = "opt-13b"
DEPLOYMENT = """
apiVersion: disagg.dev/v1alpha1
kind: DisaggDeployment
metadata: {name: soak}
spec:
  model: opt-13b
  slo: {ttftSeconds: 0.25, tpotSeconds: 0.1}
  engine: {simulated: {startupSeconds: 1}}
  prefill: {autoscaling: {mode: external, min: 1, max: 3, initial: 2}, gpu: {type: a100-80gb}}
  decode: {autoscaling: {mode: external, min: 1, max: 3, initial: 2}, gpu: {type: a100-80gb}}
"""
MOST_REPLICAS = 3
MARK = "DISAGG_SOAK_MARK"
SETTLE_SECONDS = 90.0
"""After the load: more than a lease of pinned KV plus a restart with its pause."""
KILL_SHADOW_SECONDS = 3.0
"""Requests that run when a worker is killed may fail, and those sent before its death is known everywhere."""
GROWTH_BYTES_PER_REQUEST = 4096
GROWTH_BYTES = 32 * 2**20
SPARE_DESCRIPTORS = 24
"""Kept-alive connections to the workers that exist now."""


@dataclass(slots=True, kw_only=True)
class Sent:
    """One request as its client saw it.

    ``outcome``: completed, cancelled (by the client), error, refused (its own fault), or broken (ended without a word).
    """

    sent: float
    ended: float = 0.0
    outcome: str = ""
    message: str = ""


@dataclass(slots=True, kw_only=True)
class Usage:
    """Resident memory and open descriptors of one process."""

    resident_bytes: int
    descriptors: int


@dataclass(slots=True)
class Soak:
    """What happened."""

    requests: list[Sent] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    scales: int = 0
    problems: list[str] = field(default_factory=list)
    texts: dict[bytes, Counter[str]] = field(default_factory=dict)
    """Choices of the complete answers to each request that was not streamed."""

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problems.append(otherwise)
            print(f"PROBLEM: {otherwise}", flush=True)


# Talking to the deployment.


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
        return body


def read_status(control_url: str) -> RuntimeStatus:
    return RuntimeStatus.from_json(get(control_url + STATUS_PATH))


def rescale(control_url: str, role: Role, replicas: int) -> None:
    found = Scale.from_json(get(control_url + scale_path(role)))
    wanted = Scale(role, replicas, found.resource_version).to_json()
    request = urllib.request.Request(control_url + scale_path(role), wanted, method="PUT")
    with urllib.request.urlopen(request, timeout=10):
        return


class Series:
    """One scrape."""

    def __init__(self, url: str) -> None:
        self.samples = [
            sample
            for family in text_string_to_metric_families(get(url + METRICS_PATH).decode())
            for sample in family.samples
        ]

    def sum(self, metric: Metric, **labels: str) -> float:
        wanted = labels.items()
        return sum(s.value for s in self.samples if s.name == metric.series and wanted <= s.labels.items())


def marked(mark: str) -> dict[int, str]:
    """Pid and name of the processes that carry the mark in their environment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = program(folder)
    return found


def program(folder: Path) -> str:
    """``router``, ``worker``, ``up``: what follows the module in the command line."""
    words = (folder / "cmdline").read_bytes().decode().split("\0")
    return words[words.index("disagg_cli.main") + 1] if "disagg_cli.main" in words else words[0]


def usage(pid: int) -> Usage:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Usage(resident_bytes=pages * os.sysconf("SC_PAGE_SIZE"), descriptors=len(os.listdir(f"/proc/{pid}/fd")))


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        with contextlib.suppress(OSError):
            if await asyncio.to_thread(condition):
                return True
        await asyncio.sleep(0.5)
    return False


@asynccontextmanager
async def deployment(folder: Path) -> AsyncIterator[str]:
    """URL of the control API of a deployment that is ready."""
    (folder / "soak.yaml").write_text(DEPLOYMENT)
    command = [sys.executable, "-m", "disagg_cli.main", "up", str(folder / "soak.yaml"), "--port", "0"]
    process = launch([*command, "--state-dir", str(folder / "state")], log=folder / "up.log")
    try:

        def ready() -> bool:
            if process.poll() is not None:
                raise SystemExit(f"the deployment did not start:\n{(folder / 'up.log').read_text()}")
            state = read_state(folder / "state")
            return state is not None and is_whole(read_status(state.control_url))

        if not await until(ready, 120) or (state := read_state(folder / "state")) is None:
            raise SystemExit(f"the deployment did not get ready:\n{(folder / 'up.log').read_text()}")
        yield state.control_url
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.wait, 60)


def is_whole(status: RuntimeStatus) -> bool:
    return bool(status.groups) and all(g.ready == g.replicas == g.current for g in status.groups)


# The load.


def body(rng: Random) -> tuple[bytes, bool]:
    """A request, and whether it is streamed. Eight come again and again, so that their answers can be compared."""
    again = rng.random() < 0.15
    if again:
        rng = Random(rng.randrange(8))
    shared = [1000 + rng.randrange(4)] * rng.choice((0, 128, 512))
    streamed = not again and rng.random() < 0.9
    fields: dict[str, Any] = {
        "model": MODEL,
        "prompt": shared + [rng.randrange(1000, 12000) for _ in range(rng.randrange(16, 400))],
        "max_tokens": rng.randrange(1, 120),
        "ignore_eos": rng.random() < 0.5,
        "seed": rng.randrange(1 << 30),
        "stream": streamed,
    }
    if rng.random() < 0.05:
        fields["n"] = 2
    return msgspec.json.encode(fields), streamed


async def send(soak: Soak, client: HttpClient, request: bytes, streamed: bool, hang_up: float | None) -> Sent:
    """One request; its client goes away after ``hang_up`` seconds, if it still waits then."""
    loop = asyncio.get_running_loop()
    seen = Sent(sent=loop.time())
    reader = AnswerReader()
    try:
        async with asyncio.timeout(hang_up or 300):
            answer = await client.request(
                "POST", "/v1/completions", body=request, sink=reader.feed if streamed else None
            )
        seen.outcome, seen.message = judge(reader, answer.status, answer.body, streamed)
        if seen.outcome == "completed" and not streamed:
            soak.texts.setdefault(request, Counter())[json.dumps(json.loads(answer.body)["choices"])] += 1
    except TimeoutError:
        seen.outcome = "cancelled" if hang_up else "broken"
        seen.message = "" if hang_up else "no end within 300 s"
    except OSError as error:
        seen.outcome, seen.message = "broken", str(error)
    seen.ended = loop.time()
    return seen


def judge(reader: AnswerReader, status: int, answer: bytes, streamed: bool) -> tuple[str, str]:
    if status != 200:
        return ("error" if status >= 500 else "refused"), f"HTTP {status}: {error_message(answer)}"
    if not streamed:
        reasons = [choice["finish_reason"] for choice in json.loads(answer)["choices"]]
        return ("completed", "") if reasons and all(reasons) else ("broken", f"finish reasons {reasons}")
    reader.end()
    if not reader.problem:
        return "completed", ""
    return ("error" if reader.problem.startswith("error event") else "broken"), reader.problem


async def load(soak: Soak, url: str, *, seconds: float, rate: float, rng: Random) -> None:
    loop = asyncio.get_running_loop()
    client = HttpClient(url, max_connections=512)
    end, due = loop.time() + seconds, loop.time()
    running: set[asyncio.Task[None]] = set()

    async def one(request: bytes, streamed: bool, hang_up: float | None) -> None:
        soak.requests.append(await send(soak, client, request, streamed, hang_up))

    while due < end:
        due += rng.expovariate(rate)
        request, streamed = body(rng)
        hang_up = rng.uniform(0.02, 3) if rng.random() < 0.15 else None
        await asyncio.sleep(max(0.0, due - loop.time()))
        task = loop.create_task(one(request, streamed, hang_up))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    await client.close()


async def trouble(soak: Soak, control_url: str, *, mark: str, seconds: float, rng: Random) -> None:
    """Kills and scalings until shortly before the load ends."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(rng.uniform(3, 9))
        role = rng.choice((Role.PREFILL, Role.DECODE))
        status = await asyncio.to_thread(read_status, control_url)
        victims = [i for i in status.instances if i.role is role and i.state == "ready"]
        if rng.random() < 0.5 and len(victims) > 1:
            victim = rng.choice(victims)
            if victim.pid in await asyncio.to_thread(marked, mark):
                soak.kills.append(loop.time())
                os.kill(victim.pid, signal.SIGKILL)
        else:
            soak.scales += 1
            await asyncio.to_thread(rescale, control_url, role, rng.randint(1, MOST_REPLICAS))


# What must hold.


def check_answers(soak: Soak) -> None:
    for outcome, meaning in (("broken", "ended without an answer or an error"), ("refused", "were refused")):
        found = [r for r in soak.requests if r.outcome == outcome]
        soak.expect(not found, f"{len(found)} requests {meaning}, e.g. {found[:3]}")
    unprovoked = [
        r
        for r in soak.requests
        if r.outcome == "error" and not any(r.sent - KILL_SHADOW_SECONDS <= at <= r.ended for at in soak.kills)
    ]
    soak.expect(not unprovoked, f"{len(unprovoked)} errors while no worker was killed, e.g. {unprovoked[:3]}")
    differing = [sorted(texts) for texts in soak.texts.values() if len(texts) > 1]
    soak.expect(not differing, f"{len(differing)} requests got different texts, e.g. {differing[:1]}")
    for message, count in Counter(r.message for r in soak.requests if r.message).most_common(10):
        print(f"  {count} × {message}")


async def check_counts(soak: Soak, control_url: str, warm: Series) -> None:
    """``warm`` is the router's scrape before the load."""
    status = await asyncio.to_thread(read_status, control_url)

    def settled() -> bool:
        router = Series(status.router_url)
        return not router.sum(metrics.ROUTER_IN_FLIGHT) and not router.sum(metrics.ROUTER_QUEUED)

    soak.expect(await until(settled, SETTLE_SECONDS), "the router still has requests in flight")
    router = await asyncio.to_thread(Series, status.router_url)
    seen = Counter(r.outcome for r in soak.requests)

    def count(metric: Metric, **labels: str) -> float:
        return router.sum(metric, **labels) - warm.sum(metric, **labels)

    started, ended = count(metrics.ROUTER_STARTED), count(metrics.ROUTER_REQUESTS)
    completed = count(metrics.ROUTER_REQUESTS, outcome=metrics.Outcome.COMPLETED)
    sent = len(soak.requests)
    soak.expect(started == ended, f"the router started {started:g} requests and ended {ended:g}")
    # A client may hang up before its head was read, or when the answer is already on its way.
    most, least = sent, sent - seen["cancelled"]
    soak.expect(least <= started <= most, f"the router started {started:g} requests of {least} to {most}")
    most, least = seen["completed"] + seen["cancelled"], seen["completed"]
    soak.expect(least <= completed <= most, f"the router completed {completed:g} requests of {least} to {most}")


def worker_problems(url: str) -> list[str]:
    """What a worker still holds or counted wrong."""
    worker = Series(url)
    held = (metrics.WORKER_KV_USAGE, metrics.WORKER_PINNED_BLOCKS, metrics.WORKER_RUNNING, metrics.WORKER_WAITING)
    found = [f"{metric.name} is {worker.sum(metric):g}" for metric in held if worker.sum(metric)]
    started, ended = worker.sum(metrics.WORKER_STARTED), worker.sum(metrics.WORKER_REQUESTS)
    if started != ended:
        found.append(f"{started:g} requests started, {ended:g} ended")
    return found


async def check_workers(soak: Soak, control_url: str) -> str:
    """What the workers hold and counted. Returns how far their loops lagged."""
    whole = await until(lambda: is_whole(read_status(control_url)), SETTLE_SECONDS)
    status = await asyncio.to_thread(read_status, control_url)
    soak.expect(whole, f"the fleet is not what was asked for: {status.groups}")
    for instance in status.instances:
        free = await until(lambda url=instance.url: not worker_problems(url), SETTLE_SECONDS)  # type: ignore[misc]
        soak.expect(free, f"{instance.name}: {', '.join(await asyncio.to_thread(worker_problems, instance.url))}")
    texts = {i.name: (await asyncio.to_thread(get, i.url + METRICS_PATH)).decode() for i in status.instances}
    return show_lag({name: lag for name, text in texts.items() if (lag := LoopLag.from_metrics(text))})


def check_growth(soak: Soak, before: dict[int, Usage], after: dict[int, Usage], names: dict[int, str]) -> None:
    for pid in before.keys() & after.keys():
        growth = after[pid].resident_bytes - before[pid].resident_bytes
        most = GROWTH_BYTES + GROWTH_BYTES_PER_REQUEST * len(soak.requests)
        soak.expect(growth <= most, f"{names[pid]} grew by {growth / 2**20:.0f} MiB")
        opened = after[pid].descriptors - before[pid].descriptors
        soak.expect(opened <= SPARE_DESCRIPTORS, f"{names[pid]} has {opened} more descriptors open than before")


def check_files(soak: Soak, folder: Path) -> None:
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".log")
    soak.expect(files == ["soak.yaml", "state/lock", "state/workers.json"], f"files besides logs: {files}")


async def run(options: argparse.Namespace, folder: Path) -> tuple[Soak, dict[str, Any]]:
    soak, rng, mark = Soak(), Random(options.seed), f"{os.getpid()}-{options.seed}"
    os.environ[MARK] = mark
    async with deployment(folder) as control_url:
        router_url = (await asyncio.to_thread(read_status, control_url)).router_url
        # Modules are loaded and caches filled before memory is looked at.
        await load(Soak(), router_url, seconds=5, rate=options.rate, rng=Random(options.seed + 1))
        await until(lambda: not Series(router_url).sum(metrics.ROUTER_IN_FLIGHT), SETTLE_SECONDS)
        warm = await asyncio.to_thread(Series, router_url)
        names = {pid: name for pid, name in (await asyncio.to_thread(marked, mark)).items() if pid != os.getpid()}
        before = {pid: usage(pid) for pid in names}
        print(f"{options.seconds:g} s at {options.rate:g} req/s, seed {options.seed}; logs in {folder}", flush=True)
        await asyncio.gather(
            load(soak, router_url, seconds=options.seconds, rate=options.rate, rng=Random(rng.random())),
            trouble(soak, control_url, mark=mark, seconds=options.seconds - 10, rng=Random(rng.random())),
        )
        check_answers(soak)
        lag = await check_workers(soak, control_url)
        await check_counts(soak, control_url, warm)
        survivors = await asyncio.to_thread(marked, mark)
        status = await asyncio.to_thread(read_status, control_url)
        expected = len(status.instances) + 2
        found = {pid: name for pid, name in survivors.items() if pid != os.getpid()}
        soak.expect(len(found) == expected, f"{expected} processes should run: {sorted(found.values())}")
        after = {pid: usage(pid) for pid in before if pid in survivors}
        check_growth(soak, before, after, names)
    left = {pid: name for pid, name in marked(mark).items() if pid != os.getpid()}
    soak.expect(not left, f"processes are left over: {left}")
    check_files(soak, folder)
    outcomes = Counter(r.outcome for r in soak.requests)
    figures = {
        "seconds": options.seconds,
        "requests_per_second": options.rate,
        "requests": len(soak.requests),
        "outcomes": dict(sorted(outcomes.items())),
        "answers_compared": sum(texts.total() for texts in soak.texts.values() if texts.total() > 1),
        "kills": len(soak.kills),
        "scalings": soak.scales,
        "worker_loops": lag,
        "programs": [
            {"program": names[pid], "before": asdict(before[pid]), "after": asdict(after[pid])}
            for pid in sorted(after, key=lambda pid: names[pid])
        ],
        "problems": soak.problems,
    }
    return soak, figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="length of the load (default 600)")
    parser.add_argument("--rate", type=float, default=4, help="requests a second (default 4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="state and logs (default: a new folder, removed after success)")
    parser.add_argument("--json", type=Path, default=FOLDER / "soak.json", help="where the result goes")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="disagg-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    soak, figures = asyncio.run(run(options, folder))
    print(json.dumps(figures, indent=1))
    store(options.json, seed=options.seed, figures=figures)
    if soak.problems:
        print(f"{len(soak.problems)} problems; logs are in {folder}")
        return 1
    if options.folder is None:
        shutil.rmtree(folder)
    print("everything held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
