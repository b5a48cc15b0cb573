"""CPU that the router's process spends on a request, beside a plain aiohttp proxy in the same run.

    .venv/bin/python benchmarks/router_relay.py [--requests N] [--rounds N] [--json FILE]

Everything runs on 127.0.0.1: two workers that answer at once without an engine, the target, and a closed loop of 32
clients. Requests per second depend on what else the machine does; CPU per request of the target's process is the
figure that travels, and the ratio to the proxy measured in the same minute more so. The proxy makes no choice, counts
nothing and tries nothing twice: it is the floor of a Python proxy made of ordinary parts.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median

import httptools
import uvloop
from results import FOLDER, store

CLIENTS = 32
SEED = 1
MODEL = "bench"
TICKS = os.sysconf("SC_CLK_TCK")
CASES = {"1 token": (128, 1, False), "64 streamed": (128, 64, True), "1,600 words": (1600, 1, False)}
"""Name: words of the prompt, tokens of the answer, streamed."""
TARGETS = {
    "aiohttp proxy": ("proxy", "worker", "worker", ""),
    "round-robin": ("router", "worker", "worker", "round-robin"),
    "least-loaded": ("router", "worker", "worker", "least-loaded"),
    "kv": ("router", "worker", "worker", "kv"),
    "prefill/decode": ("router", "prefill", "decode", "round-robin"),
    "kv + prefill/decode": ("router", "prefill", "decode", "kv"),
}
"""Name: program, roles of the two workers, policy."""


# The worker: answers from memory.


class Worker(asyncio.Protocol):
    def __init__(self, role: str) -> None:
        from disagg_contract.openai import DONE, Choice, Endpoint, StreamWriter, Usage, build_response
        from disagg_contract.transfer import RemoteKV

        remote = RemoteKV(engine_id="e", block_ids=tuple(range(8)), host="127.0.0.1", port=1, transfer_id="t")
        answer = build_response(
            Endpoint.COMPLETIONS,
            identity="cmpl-1",
            created=1,
            model=MODEL,
            choices=[Choice(index=0, text=" word", finish_reason="length")],
            usage=Usage(prompt_tokens=128, completion_tokens=1),
            kv_transfer_params=remote.to_params() if role == "prefill" else None,
        )
        self.whole = self.with_head(b"application/json", answer)
        writer = StreamWriter(Endpoint.COMPLETIONS, identity="cmpl-1", created=1, model=MODEL)
        token = b"".join([writer.chunk(0, " word")])
        self.token = b"%x\r\n%b\r\n" % (len(token), token)
        last = writer.chunk(0, " word", finish_reason="length")
        end = last + writer.usage(Usage(prompt_tokens=128, completion_tokens=64)) + DONE
        self.end = b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end)
        self.role = role

    @staticmethod
    def with_head(kind: bytes, body: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (kind, len(body), body)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""
        self.url = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        if self.url == b"/disagg/info":
            self.transport.write(self.with_head(b"application/json", info(self.role)))
        elif b'"stream":true' not in body:
            self.transport.write(self.whole)
        else:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            self.transport.write(head + self.token)
            asyncio.get_running_loop().call_soon(self.stream, 62)

    def stream(self, left: int) -> None:
        """One token a turn of the loop: each is a packet of its own."""
        self.transport.write(self.token if left else self.end)
        if left:
            asyncio.get_running_loop().call_soon(self.stream, left - 1)


def info(role: str) -> bytes:
    from disagg_contract.discovery import WorkerInfo
    from disagg_contract.labels import Role

    return WorkerInfo(
        engine_id=f"e-{os.getpid()}",
        role=Role(role),
        model=MODEL,
        gpu="none",
        block_tokens=16,
        kv_capacity_tokens=1 << 20,
        max_context_tokens=1 << 16,
        tokenizer_digest="t",
        template_digest="t",
        hash_digest="t",
        ready=True,
    ).to_json()


def serve_worker(role: str) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Worker(role), "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    uvloop.run(main())


# The targets.


def serve_proxy(*upstreams: str) -> None:
    from itertools import cycle

    import aiohttp
    from aiohttp import web

    turns = cycle(upstreams)

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        url = f"http://127.0.0.1:{next(turns)}{request.path_qs}"
        async with request.app[session].post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
            if "content-length" in answer.headers:
                whole = await answer.read()
                return web.Response(body=whole, status=answer.status, content_type=answer.content_type)
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            async for data in answer.content.iter_any():
                await response.write(data)
            await response.write_eof()
            return response

    session = web.AppKey("session", aiohttp.ClientSession)

    async def main() -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/{path:.*}", handle)
        app[session] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    uvloop.run(main())


def serve_router(policy: str, file: str) -> None:
    from disagg_contract.config import RouterConfig, RoutingPolicy
    from disagg_router.main import make_source
    from disagg_router.shell.app import RouterApp

    async def main() -> None:
        config = RouterConfig(
            host="127.0.0.1", port=0, policy=RoutingPolicy(policy), discovery_file=file, slo_ttft_seconds=1.0
        )
        app = RouterApp(config, make_source(config))
        await app.start()
        both = asyncio.Event()
        app.fleet.on_change = lambda: both.set() if sum(w.eligible for w in app.fleet.workers) == 2 else None
        await both.wait()
        print(app.port, flush=True)
        await asyncio.Event().wait()

    uvloop.run(main())


@contextmanager
def program(*arguments: str) -> Iterator[tuple[int, int]]:
    """Pid and port of a process of this file."""
    process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@contextmanager
def target(name: str) -> Iterator[tuple[int, int]]:
    from disagg_contract.discovery import DiscoveredWorker, DiscoveryFile
    from disagg_contract.labels import Role

    kind, *roles, policy = TARGETS[name]
    with ExitStack() as stack:
        ports = [stack.enter_context(program("worker", role))[1] for role in roles]
        if kind == "proxy":
            yield stack.enter_context(program("proxy", *map(str, ports)))
            return
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "workers.json"
        rows = (
            DiscoveredWorker(uid=str(port), name=str(port), role=Role(role), host="127.0.0.1", port=port)
            for role, port in zip(roles, ports, strict=True)
        )
        file.write_bytes(DiscoveryFile(workers=tuple(rows)).to_json())
        yield stack.enter_context(program("router", policy, str(file)))


# The load.


def prompts(words: int, tokens: int, stream: bool, number: int) -> list[bytes]:
    """``number`` different requests, with 16 shared prefixes of three quarters of the prompt."""
    rng = Random(SEED)
    vocabulary = ["the", "of", "and", "to", "water", "time", "people", "house", "about", "number", "after", "think"]
    shared = [" ".join(rng.choices(vocabulary, k=words * 3 // 4)) for _ in range(16)]
    requests = []
    for _ in range(number):
        prompt = f"{rng.choice(shared)} {' '.join(rng.choices(vocabulary, k=words // 4))}"
        fields = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
        body = json.dumps(fields, separators=(",", ":")).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        requests.append(head % len(body) + body)
    return requests


class Client(asyncio.Protocol):
    """Sends the next request as soon as an answer is complete."""

    def __init__(self, load: "Load") -> None:
        self.load = load
        self.parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.next()

    def next(self) -> None:
        request = self.load.take()
        if request is not None:
            self.sent = time.perf_counter()
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self.parser.get_status_code() != 200:
            raise RuntimeError(f"status {self.parser.get_status_code()}")
        self.load.done(time.perf_counter() - self.sent)
        self.next()


class Load:
    def __init__(self, requests: list[bytes], number: int) -> None:
        self.requests = requests
        self.left = number
        self.number = number
        self.latencies: list[float] = []
        self.finished = asyncio.Event()

    def take(self) -> bytes | None:
        if not self.left:
            return None
        self.left -= 1
        return self.requests[self.left % len(self.requests)]

    def done(self, seconds: float) -> None:
        self.latencies.append(seconds)
        if len(self.latencies) == self.number:
            self.finished.set()


@dataclass(frozen=True, slots=True)
class Measured:
    cpu_microseconds: float
    requests_per_second: float
    p50_seconds: float
    p99_seconds: float


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def drive(port: int, requests: list[bytes], number: int) -> Load:
    load = Load(requests, number)
    loop = asyncio.get_running_loop()
    transports = [(await loop.create_connection(lambda: Client(load), "127.0.0.1", port))[0] for _ in range(CLIENTS)]
    await load.finished.wait()
    for transport in transports:
        transport.close()
    return load


def measure(name: str, case: str, number: int) -> Measured:
    words, tokens, stream = CASES[case]
    warm = number // 5
    requests = prompts(words, tokens, stream, warm + number)
    with target(name) as (pid, port):
        uvloop.run(drive(port, requests[number:], warm))
        before, clock = cpu_seconds(pid), time.perf_counter()
        load = uvloop.run(drive(port, requests, number))
        spent, wall = cpu_seconds(pid) - before, time.perf_counter() - clock
    latencies = sorted(load.latencies)
    return Measured(
        cpu_microseconds=spent / number * 1e6,
        requests_per_second=number / wall,
        p50_seconds=latencies[len(latencies) // 2],
        p99_seconds=latencies[len(latencies) * 99 // 100],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000, help="requests of a measurement")
    parser.add_argument("--rounds", type=int, default=2, help="interleaved rounds; the median counts")
    parser.add_argument("--only", default="", help="targets, comma-separated, besides the proxy")
    parser.add_argument("--json", type=Path, default=FOLDER / "router_relay.json", help="where the results go")
    options = parser.parse_args()
    chosen = [name for name in TARGETS if not options.only or name in ("aiohttp proxy", *options.only.split(","))]
    results: dict[str, dict[str, list[Measured]]] = {name: {case: [] for case in CASES} for name in chosen}
    for _ in range(options.rounds):
        for case, (_, tokens, _stream) in CASES.items():
            for name in chosen:
                number = options.requests if tokens == 1 else options.requests // 4
                results[name][case].append(measure(name, case, number))
    print(
        f"CPU of the target's process a request, µs (ratio to the proxy); {platform.machine()}, {os.cpu_count()} CPUs"
    )
    print(f"{'':22}" + "".join(f"{case:>20}" for case in CASES))
    for name in chosen:
        cells = []
        for case in CASES:
            cost = median(m.cpu_microseconds for m in results[name][case])
            floor = median(m.cpu_microseconds for m in results["aiohttp proxy"][case])
            cells.append(f"{cost:8.0f} ({cost / floor:.2f})")
        print(f"{name:22}" + "".join(f"{cell:>20}" for cell in cells))
    rows = {name: {case: [asdict(m) for m in found] for case, found in by.items()} for name, by in results.items()}
    store(options.json, seed=SEED, figures={"requests": options.requests, "targets": rows})


if __name__ == "__main__":
    roles = {"worker": serve_worker, "proxy": serve_proxy, "router": serve_router}
    if len(sys.argv) > 1 and sys.argv[1] in roles:
        roles[sys.argv[1]](*sys.argv[2:])
    else:
        main()
