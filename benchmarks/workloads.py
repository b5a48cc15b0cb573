"""Claim: loads cost little beside what is done with them: at most 1.5 µs a request drawn, a tenth of a second a trace.

    .venv/bin/python benchmarks/workloads.py [--requests N] [--rounds N] [--json FILE]

(The two loads whose prompts share prefixes take 3 to 5 µs, for block hashes by the dozen.)

CPU of this process, the median of some rounds: each built-in load drawn as columns, ten million requests with their
memory (in a process of its own, so that the peak is theirs), the load of six hours, and a trace with block hashes read
by the fast way and by the careful one, which must give the same requests. That trace is Mooncake's where DISAGG_DATA
names a folder that has it, and otherwise a generated one of the same size; the result says which.
"""

import argparse
import os
import time
from multiprocessing import get_context
from pathlib import Path

from results import FOLDER, read, store
from timing import cpu_seconds

from disagg_load.traces.columns import read_columns
from disagg_load.traces.own import write
from disagg_load.traces.reader import read_trace
from disagg_load.workloads.builtin import RECIPES, builtin_columns, builtin_workload

SEED = 0
MANY = 10_000_000
TRACE = "mooncake_conversation_trace.jsonl"
TRACE_LINES = 12_031


def draw_many(requests: int) -> tuple[float, float]:
    """CPU seconds, and bytes of memory at the peak, beyond what the process had before."""
    builtin_columns("chat?requests=1", seed=SEED)
    before_bytes, before = peak_bytes(), time.process_time()
    load = builtin_columns(f"chat?requests={requests}", seed=SEED)
    seconds = time.process_time() - before
    assert len(load) == requests
    return seconds, peak_bytes() - before_bytes


def peak_bytes() -> float:
    """The most memory that this process held so far."""
    line = next(line for line in read("/proc/self/status") if line.startswith("VmHWM"))
    return 1024.0 * int(line.split()[1])


def trace_bytes() -> tuple[str, bytes]:
    path = Path(os.environ.get("DISAGG_DATA", "")) / "traces" / TRACE
    if path.is_file():
        return TRACE, path.read_bytes()
    print(f"DISAGG_DATA has no {TRACE}: reading a generated trace of the same size")
    load = builtin_workload(f"mooncake?requests={TRACE_LINES}", seed=SEED)
    return "generated", "".join(write(load)).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000, help="requests of each load (default 100,000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, the median counts (default 5)")
    parser.add_argument("--json", type=Path, default=FOLDER / "workloads.json", help="where the result goes")
    options = parser.parse_args()

    drawn = {}
    for name in RECIPES:
        spec = f"{name}?requests={options.requests}"
        seconds = cpu_seconds(lambda spec=spec: builtin_columns(spec, seed=SEED), options.rounds)  # type: ignore[misc]
        drawn[name] = seconds / options.requests * 1e6
        print(f"{name:<14} {drawn[name]:6.2f} µs a request")

    with get_context("spawn").Pool(1) as pool:
        seconds, peak = pool.apply(draw_many, (MANY,))
    print(f"{MANY:,} requests of chat: {seconds:.2f} s, {peak / MANY:.1f} bytes each at the peak")

    day = cpu_seconds(lambda: builtin_columns("six-hours", seed=SEED), options.rounds)
    print(f"six-hours, whole: {day:.2f} s")

    source, text = trace_bytes()
    if read_columns(text, source=source).workload() != read_trace(text.decode().splitlines(True), source=source):
        raise SystemExit("the two ways to read a trace gave different requests")
    fast = cpu_seconds(lambda: read_columns(text, source=source), options.rounds)
    careful = cpu_seconds(lambda: read_trace(text.decode().splitlines(True), source=source), options.rounds)
    print(f"{source}: {fast * 1e3:.0f} ms as columns, {careful * 1e3:.0f} ms by the careful reader")

    store(
        options.json,
        seed=SEED,
        figures={
            "cpu_microseconds_per_request": drawn,
            "ten_million": {"cpu_seconds": seconds, "peak_bytes_per_request": peak / MANY},
            "six_hours_cpu_seconds": day,
            "trace": {"source": source, "cpu_seconds": fast, "careful_cpu_seconds": careful},
        },
    )


if __name__ == "__main__":
    main()
