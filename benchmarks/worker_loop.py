"""What the batching loop costs inside pods, and how faithful a busy worker's clock is.

    .venv/bin/python benchmarks/worker_loop.py [--sequences N] [--rounds N] [--model M --gpu G] [--json FILE]

First the loop alone. A decode-heavy colocated worker's loop runs the same requests on `CountingLedger` (room as a
number: the floor) and on `BlockLedger` (blocks with prefix hashes and reference counts, which pods use). Nothing is
shared between the prompts, so both give the same iterations, which is checked. CPU an iteration, interleaved rounds,
the median counts; the clock is the engine's, so nothing sleeps.

Then a whole worker process (``disagg worker --role decode``) with 256 streaming requests on loopback, at time scale 1
and then faster. Claim: at scale 1 its modelled step times hold within 2 % at p99 on the wall clock, with less than half
a core. The iteration log says how late each iteration was noticed; a step's error is by how much that changed over the
step, as a share of the step. CPU is the worker process's own over the steps in which all requests decode, without the
log. The clients count bytes in a process of their own. What else runs on the machine delays a worker as it would delay
anybody; ``--realtime`` asks for a scheduling class that such neighbours do not preempt (it needs the right to), so that
the worker alone is measured. The result says which it was.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from urllib.request import urlopen

from results import FOLDER, store

from disagg_engine import catalogue
from disagg_engine.batching import Admission, BatchingConfig, BatchingLoop, BatchPolicy, Request, Role
from disagg_engine.instance import Instance
from disagg_engine.kv import BlockLedger, CountingLedger, KvLedger
from disagg_engine.timemodel import Roofline

BLOCK_TOKENS = 16
PROMPT_TOKENS = 512
ANSWER_TOKENS = 256
STREAMS = 256
MODELS = (("opt-13b", "a100-80gb"), ("llama-3-8b", "h100"))
"""The model of the reference, and a fast one: 5,900 and 23,000 tokens a second of 256 requests."""
STREAM_PROMPT_TOKENS = 64
SCALES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
ERROR = 0.02
"""A step's time may differ by this share at p99."""
TRIES = 3
"""Runs of a scale until one is faithful: what else the machine does can only make a worker late."""
TICKS = os.sysconf("SC_CLK_TCK")
SEED = 0
"""Nothing here is random."""


# ---- the loop alone --------------------------------------------------------------------------------------------------


def make_loop(ledger: KvLedger, sequences: int) -> BatchingLoop:
    known = catalogue.default()
    instance = Instance(model=known.model("opt-13b"), gpu=known.gpu("a100-80gb"), tensor=1, pipeline=1)
    config = BatchingConfig(
        role=Role.WORKER,
        policy=BatchPolicy.PREFILL_FIRST,
        admission=Admission.PREEMPT,
        max_batched_tokens=2048,
        chunk_tokens=512,
        max_sequences=sequences,
        prefill_burst=None,
        pipeline=1,
    )
    return BatchingLoop(config=config, time_model=Roofline(instance), ledger=ledger)


def drive(ledger: KvLedger, sequences: int) -> tuple[float, list[float]]:
    """CPU seconds and the ends of the iterations of ``sequences`` requests that start together."""
    loop = make_loop(ledger, sequences)
    held = [PROMPT_TOKENS] * sequences
    keys = [tuple((number, block) for block in range(PROMPT_TOKENS // BLOCK_TOKENS)) for number in range(sequences)]
    before = time.process_time()
    for number in range(sequences):
        request = Request(
            request_id=str(number),
            prompt_tokens=PROMPT_TOKENS,
            max_tokens=ANSWER_TOKENS,
            block_keys=keys[number],
            remote_kv=False,
            keep_kv=False,
        )
        loop.submit(request, now=0.0)
    ends = []
    while (due := loop.next_seconds()) is not None:
        for completed in loop.complete(now=due):
            ends.append(completed.iteration.end_seconds)
            for emission in completed.emissions:
                number = int(emission.request_id)
                held[number] += 1
                if held[number] % BLOCK_TOKENS == 0:
                    loop.add_block_keys(emission.request_id, ((number, held[number] // BLOCK_TOKENS - 1),))
        loop.plan(now=due)
    return time.process_time() - before, ends


def loop_alone(sequences: int, rounds: int) -> dict[str, object]:
    capacity = 2 * sequences * (PROMPT_TOKENS + ANSWER_TOKENS)
    spent: dict[str, list[float]] = {"counting": [], "blocks": []}
    schedules = []
    for _ in range(rounds):
        for name, ledger in (
            ("counting", CountingLedger(capacity_tokens=capacity, block_tokens=BLOCK_TOKENS)),
            ("blocks", BlockLedger(capacity_tokens=capacity, block_tokens=BLOCK_TOKENS, prefix_caching=True)),
        ):
            seconds, ends = drive(ledger, sequences)
            spent[name].append(seconds / len(ends) * 1e6)
            schedules.append(ends)
    if any(schedule != schedules[0] for schedule in schedules):
        raise SystemExit("the two ledgers gave different iterations")
    modelled = schedules[0][-1] / len(schedules[0]) * 1e6
    counting, blocks = median(spent["counting"]), median(spent["blocks"])
    print(f"CPU an iteration of {sequences} sequences, µs: counting {counting:.0f}, blocks {blocks:.0f}")
    print(f"ratio {blocks / counting:.2f}; {blocks / modelled:.2%} of the {modelled / 1000:.1f} ms it models")
    return {
        "sequences": sequences,
        "iterations": len(schedules[0]),
        "cpu_microseconds_per_iteration": spent,
        "ratio": blocks / counting,
        "modelled_microseconds_per_iteration": modelled,
    }


# ---- a worker process ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steady:
    """A worker while all its requests decode. Step seconds are the engine's; the error is a share of a step."""

    time_scale: float
    iterations: int
    step_seconds_median: float
    step_error_p50: float
    step_error_p99: float
    lag_seconds_max: float
    cores: float
    cpu_microseconds_per_iteration: float
    cpu_microseconds_per_token: float

    @property
    def faithful(self) -> bool:
        return self.step_error_p99 <= ERROR


@contextmanager
def worker(model: str, gpu: str, scale: float, log: str) -> Iterator[tuple[int, int]]:
    """A decode worker; its port and its process id."""
    command = [sys.executable, "-m", "disagg_cli.main", "worker", "--role", "decode", "--model", model, "--gpu", gpu]
    command += ["--host", "127.0.0.1", "--port", str(free_port()), "--kv-port", "0", "--startup-seconds", "0"]
    command += ["--time-scale", str(scale), "--max-sequences", str(STREAMS), "--log-level", "warning"]
    command += ["--iteration-log", log] if log else []
    port = int(command[command.index("--port") + 1])
    process = subprocess.Popen(command)
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        os.sched_setscheduler(process.pid, os.SCHED_FIFO, os.sched_param(2))  # before its clients
    try:
        for _ in range(200):
            try:
                with urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
                    if answer.status == 200:
                        break
            except OSError:
                time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(timeout=20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Streams:
    """What has become of all streams."""

    def __init__(self) -> None:
        self.started = 0
        self.ended = 0
        self.begun, self.first_done, self.done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def start(self) -> None:
        self.started += 1
        if self.started == STREAMS:
            self.begun.set()

    def end(self) -> None:
        self.ended += 1
        self.first_done.set()
        if self.ended == STREAMS:
            self.done.set()


class Stream(asyncio.Protocol):
    """One streaming request."""

    def __init__(self, number: int, tokens: int, streams: Streams) -> None:
        prompt = [(number * 31 + position) % 5000 + 100 for position in range(STREAM_PROMPT_TOKENS)]
        body = json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.request = head.encode() + body
        self.streams = streams
        self.seen = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if not self.seen:
            self.seen = True
            self.streams.start()
        if data.endswith(b"0\r\n\r\n"):
            self.streams.end()
            self.transport.close()


async def clients(port: int, tokens: int) -> None:
    """All streams at once; a line on stdout when all have begun and when the first is done."""
    aio, streams = asyncio.get_running_loop(), Streams()
    for number in range(STREAMS):
        await aio.create_connection(lambda n=number: Stream(n, tokens, streams), "127.0.0.1", port)  # type: ignore[misc]
    await streams.begun.wait()
    print("begun", flush=True)
    await streams.first_done.wait()
    print("first done", flush=True)
    await streams.done.wait()


def stream_through(port: int, pid: int, tokens: int) -> tuple[float, float]:
    """Run the clients; CPU and wall seconds of the worker while all requests decode."""
    command = [sys.executable, str(Path(__file__)), "--clients", str(port), "--tokens", str(tokens)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    cpu, wall = cpu_seconds(pid), time.monotonic()
    assert process.stdout.readline() == "first done\n"
    cpu, wall = cpu_seconds(pid) - cpu, time.monotonic() - wall
    process.wait(timeout=60)
    return cpu, wall


def steady(model: str, gpu: str, scale: float, tokens: int) -> Steady:
    """Two workers one after the other: one with the log, for the times, and one without, for the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "iterations.jsonl")
        with worker(model, gpu, scale, log) as (port, pid):
            stream_through(port, pid, tokens)
        lines = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    full = [line for line in lines if line["kind"] == "iteration" and len(line["works"]) == STREAMS]
    full = [line for line in full if all(new == 1 for _, _, new, _ in line["works"])]
    steps = [(after["end"] - before["end"], after["lag"] - before["lag"]) for before, after in pairwise(full)]
    errors = quantiles([abs(drift) / step for step, drift in steps], n=100)
    with worker(model, gpu, scale, "") as (port, pid):
        cpu, wall = stream_through(port, pid, tokens)
    step = median(step for step, _ in steps)
    iterations = wall * scale / step
    return Steady(
        time_scale=scale,
        iterations=len(steps),
        step_seconds_median=step,
        step_error_p50=errors[49],
        step_error_p99=errors[98],
        lag_seconds_max=max(line["lag"] for line in full),
        cores=cpu / wall,
        cpu_microseconds_per_iteration=cpu / iterations * 1e6,
        cpu_microseconds_per_token=cpu / iterations / STREAMS * 1e6,
    )


def a_worker(model: str, gpu: str, tokens: int) -> dict[str, object]:
    """Time scales upwards until one is no longer faithful."""
    found = []
    for scale in SCALES:
        for _ in range(TRIES):
            one = steady(model, gpu, scale, tokens)
            if one.faithful:
                break
        found.append(one)
        print(
            f"{model} on {gpu}, {STREAMS} streams, time scale {scale:g}: step {one.step_seconds_median * 1000:.1f} ms, "
            f"error p50 {one.step_error_p50:.2%}, p99 {one.step_error_p99:.2%} (at most {ERROR:.0%}); "
            f"{one.cores:.2f} cores, {one.cpu_microseconds_per_iteration:.0f} µs an iteration, "
            f"{one.cpu_microseconds_per_token:.1f} µs a token",
            flush=True,
        )
        if not one.faithful:
            break
    highest = max((one.time_scale for one in found if one.faithful), default=0.0)
    print(f"highest time scale that stays faithful: {highest:g}")
    return {
        "model": model,
        "gpu": gpu,
        "streams": STREAMS,
        "realtime": os.sched_getscheduler(0) == os.SCHED_FIFO,
        "runs": [asdict(one) for one in found],
        "highest_faithful_time_scale": highest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64, help="sequences in the loop's batch (default 64)")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds of the loop alone (default 9)")
    parser.add_argument("--model", default="", help="model of the worker process (default: one of each of MODELS)")
    parser.add_argument("--gpu", default="a100-80gb", help="its GPU (default a100-80gb)")
    parser.add_argument("--tokens", type=int, default=150, help="tokens of each streamed answer (default 150)")
    parser.add_argument("--realtime", action="store_true", help="keep other processes from preempting the worker")
    parser.add_argument("--clients", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, default=FOLDER / "worker_loop.json", help="where the result goes")
    options = parser.parse_args()
    if options.clients:
        asyncio.run(clients(options.clients, options.tokens))
        return
    figures = loop_alone(options.sequences, options.rounds)
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    models = ((options.model, options.gpu),) if options.model else MODELS
    processes = [a_worker(model, gpu, options.tokens) for model, gpu in models]
    store(options.json, seed=SEED, figures={**figures, "processes": processes})


if __name__ == "__main__":
    main()
