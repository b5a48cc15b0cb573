"""A deployment in processes whose every engine call is recorded, and its twin: the same arrivals in the simulator.

Workers and router are the programs that run in pods, on loopback, at time scale 1. Each worker writes its iteration log
(`disagg_workers.iteration_log`), on its own engine's clock. The twin is the cluster lane of the simulator, built from
the settings that the log begins with, and fed with the arrivals of the log:

colocated   the worker's arrivals
prefill     the arrivals at the prefill worker, as a prefill-only deployment
decode      the arrivals at the decode worker: a prefill instance that takes no time hands each request on at once, and
            its KV crosses a link like the worker's. What passes between the two legs is the router's and the client's
            time, which no engine's clock shows.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from disagg_contract import ports
from disagg_contract.config import WorkerConfig
from disagg_contract.discovery import DiscoveredWorker, DiscoveryFile
from disagg_contract.labels import Role
from disagg_contract.settings import to_args
from disagg_contract.tokenizer import default_tokenizer
from disagg_engine.batching import BatchingConfig, FirstToken
from disagg_engine.timemodel import BatchShape, DecodeLine, IterationCost, Roofline
from disagg_load.columns import Columns
from disagg_load.lag import LoopLag
from disagg_load.records import RequestRecord
from disagg_load.requests import Workload
from disagg_load.shell.replay import ReplayOptions, replay
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.deployment import Deployment, Group, Ledger, Link, Mode, Sharing
from disagg_simulator.recording import Recording
from disagg_workers.instance import build
from disagg_workers.iteration_log import KEY_BYTES
from tests.support.serving import free_port

PROGRAM = str(Path(sys.executable).parent / "disagg")
START_SECONDS = 60.0
NO_TIME = 1e-9
"""Seconds that a prefill takes which is to take none: an iteration has a length."""


@dataclass(frozen=True)
class Process:
    """One worker: where it answers, and where it writes what its engine did."""

    name: str
    role: Role
    url: str
    log: Path


@dataclass(frozen=True)
class Served:
    """A deployment that serves."""

    url: str
    workers: tuple[Process, ...]

    def lag(self) -> dict[str, LoopLag]:
        """How far each worker's loop lags so far."""
        found = {}
        for worker in self.workers:
            with urllib.request.urlopen(worker.url + ports.METRICS_PATH, timeout=10) as answer:
                lag = LoopLag.from_metrics(answer.read().decode())
            if lag is not None:
                found[worker.name] = lag
        return found


@contextmanager
def serving(folder: Path, roles: Sequence[Role], **settings: Any) -> Iterator[Served]:
    """Workers of these roles behind a router. `settings` are of every worker (WorkerConfig); logs are in `folder`."""
    workers = []
    with ExitStack() as stack:
        for number, role in enumerate(roles):
            port, name = free_port(), f"{role.value}-{number}"
            log = folder / f"{name}.jsonl"
            config = WorkerConfig(
                role=role,
                host="127.0.0.1",
                port=port,
                kv_port=0,
                startup_seconds=0.0,
                iteration_log=str(log),
                log_level="warning",
                **settings,
            )
            stack.enter_context(_program("worker", *to_args(config)))
            workers.append(Process(name, role, f"http://127.0.0.1:{port}", log))
        for worker in workers:
            _wait(worker.url + ports.HEALTH_PATH)
        rows = tuple(
            DiscoveredWorker(
                uid=worker.name,
                name=worker.name,
                role=worker.role,
                host="127.0.0.1",
                port=int(worker.url.rsplit(":", 1)[1]),
            )
            for worker in workers
        )
        discovery = folder / "workers.json"
        discovery.write_bytes(DiscoveryFile(deployment="twin", workers=rows).to_json())
        port = free_port()
        stack.enter_context(
            _program(
                "router",
                f"--discovery-file={discovery}",
                "--host=127.0.0.1",
                f"--port={port}",
                "--policy=least-loaded",
                "--log-level=warning",
            )
        )
        url = f"http://127.0.0.1:{port}"
        _wait(url + ports.HEALTH_PATH)
        yield Served(url, tuple(workers))


@contextmanager
def _program(*arguments: str) -> Iterator[None]:
    process = subprocess.Popen([PROGRAM, *arguments])
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        if time.monotonic() > end:
            raise TimeoutError(f"nothing is ready at {url} after {START_SECONDS:g} s")
        time.sleep(0.05)


class _Quiet:
    def sent(self, index: int) -> None:
        """Nobody watches."""

    def finished(self, record: RequestRecord) -> None:
        """Nobody watches."""


def send(workload: Workload, served: Served) -> tuple[RequestRecord, ...]:
    """Replay the workload; what its client saw, in the order the requests ended."""
    result = asyncio.run(
        replay(
            workload,
            ReplayOptions(url=served.url),
            tokenizer=default_tokenizer(),
            observer=_Quiet(),
            stop=asyncio.Event(),
        )
    )
    return result.records


# ---- what a worker recorded ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Told:
    """One request at one worker, on its engine's clock. `keys` names the full blocks of its prompt."""

    arrival: float
    prompt_tokens: int
    most_tokens: int
    keys: str
    token_seconds: list[float] = field(default_factory=list)

    @property
    def ttft_seconds(self) -> float:
        return self.token_seconds[0] - self.arrival

    @property
    def tpot_seconds(self) -> float:
        """0 for one token, which has none."""
        return (self.token_seconds[-1] - self.token_seconds[0]) / max(1, len(self.token_seconds) - 1)


@dataclass(frozen=True)
class Record:
    """An iteration log, read: settings, and requests in order of arrival."""

    config: WorkerConfig
    requests: tuple[Told, ...]

    @classmethod
    def read(cls, path: Path) -> Record:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        first = lines[0]
        assert first["kind"] == "worker"
        told: dict[str, Told] = {}
        for line in lines[1:]:
            match line["kind"]:
                case "arrival":
                    told[line["request"]] = Told(line["at"], line["prompt"], line["max"], line["keys"])
                case "pulled":
                    if line["first"] == FirstToken.LOGITS.value:
                        told[line["request"]].token_seconds.append(line["at"])
                case "iteration":
                    for request, _, _, emits in line["works"]:
                        if emits:
                            told[request].token_seconds.append(line["end"])
        return cls(msgspec.convert(first["config"], WorkerConfig), tuple(told.values()))

    def columns(self) -> Columns:
        """The arrivals, from the first one on, and as many tokens as each was given."""
        origin = self.requests[0].arrival
        numbers: dict[str, int] = {}
        width = 2 * KEY_BYTES
        block = self.config.block_tokens
        ids = []
        for request in self.requests:
            names = [request.keys[start : start + width] for start in range(0, len(request.keys), width)]
            chain = [numbers.setdefault(name, len(numbers)) for name in names]
            if request.prompt_tokens % block:  # the last block is not full, and nobody else's
                chain.append(numbers.setdefault(f"rest {len(ids)}", len(numbers)))
            ids.append(chain)
        return Columns(
            name="recorded",
            arrival_seconds=array("d", [request.arrival - origin for request in self.requests]),
            input_tokens=array("i", [request.prompt_tokens for request in self.requests]),
            output_tokens=array("i", [len(request.token_seconds) for request in self.requests]),
            hash_ids=ids,
            block_tokens=block,
        )


# ---- its twin -----------------------------------------------------------------------------------------------------


class NoTime:
    """A time model in which nothing takes any."""

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        return IterationCost(
            seconds=NO_TIME, compute_seconds=NO_TIME, memory_seconds=0.0, stage_seconds=NO_TIME, bound="compute"
        )

    def decode_window(self, sequences: int, context_tokens: int, steps: int, /) -> float | None:
        return steps * NO_TIME

    def decode_lines(self, sequences: int, /) -> tuple[DecodeLine, ...]:
        return (DecodeLine(float("inf"), NO_TIME, 0.0),)


def simulate_twin(record: Record) -> Recording:
    """The recorded arrivals through the simulator's loops, with the worker's own settings."""
    simulated = build(record.config)
    columns, role = record.columns(), record.config.role
    group = group_of(record.config)
    if role is Role.WORKER:
        deployment = Deployment(mode=Mode.COLOCATED, workers=(group,))
    elif role is Role.PREFILL:
        deployment = Deployment(mode=Mode.PREFILL_ONLY, prefill=(group,))
    else:
        at_once = Group(
            instance=simulated.instance,
            time_model=NoTime(),
            batching=BatchingConfig(role=Role.PREFILL, fill_tokens=10**9, max_batched_tokens=10**9),
            kv_capacity_tokens=10**9,
        )
        deployment = Deployment(
            mode=Mode.DISAGGREGATED,
            prefill=(at_once,),
            decode=(group,),
            first_token=FirstToken.LOGITS,
            link=Link(
                name=record.config.link,
                bytes_per_second=simulated.link_bytes_per_second,
                latency_seconds=simulated.link_latency_seconds,
                sharing=Sharing.ALL,
            ),
        )
    return simulate_cluster(deployment, columns, seed=0)


def group_of(config: WorkerConfig) -> Group:
    """One instance with the settings of a worker."""
    simulated = build(config)
    return Group(
        instance=simulated.instance,
        time_model=Roofline(simulated.instance),
        batching=simulated.loop.config,
        kv_capacity_tokens=simulated.capacity_tokens,
        ledger=Ledger.BLOCKS,
        block_tokens=config.block_tokens,
    )


@dataclass(frozen=True)
class Difference:
    """Worst relative difference of a request, and the means, of the time to first token and between tokens."""

    ttft: float
    tpot: float
    mean_ttft_seconds: tuple[float, float]
    mean_tpot_seconds: tuple[float, float]


def compare(record: Record, twin: Recording) -> Difference:
    """Recorded against simulated, on the engine's clock. Raises AssertionError where token counts differ."""
    told = record.requests
    assert list(twin.tokens) == [len(request.token_seconds) for request in told], "token counts differ"
    arrivals = twin.requests.arrival_seconds
    ttft = [first - arrival for first, arrival in zip(twin.first_token, arrivals, strict=True)]
    tpot = [
        (finish - first) / max(1, tokens - 1)
        for finish, first, tokens in zip(twin.finish, twin.first_token, twin.tokens, strict=True)
    ]
    real_ttft = [request.ttft_seconds for request in told]
    real_tpot = [request.tpot_seconds for request in told]
    return Difference(
        ttft=max(abs(a - b) / a for a, b in zip(real_ttft, ttft, strict=True)),
        tpot=max((abs(a - b) / a for a, b in zip(real_tpot, tpot, strict=True) if a), default=0.0),
        mean_ttft_seconds=(fmean(real_ttft), fmean(ttft)),
        mean_tpot_seconds=(fmean(real_tpot), fmean(tpot)),
    )
