"""Claim: a trace is replayed offline at least ten times as fast as by NVIDIA Dynamo, in the whole and in the loop.

    .venv/bin/python benchmarks/replay_against_dynamo.py [--rounds N] [--trace FILE] [--json FILE]

Both sides read the same trace of conversations with block hashes, put 8 colocated workers with prefix caches behind a
router (round robin, then by KV) and report latencies. They take turns, whole programs each: from the start of a Python
to its end, imports and reading the trace included. `loop` is what each side itself measures around its simulation,
trace reading left out. Wall time and CPU time are both given: other load on the machine changes the first more.

Dynamo (ai-dynamo 1.6.1, SDK `dynamo.replay.run_trace_replay`, a single thread of Rust) has its default KV room, 16,384
blocks of 64 tokens a worker, and its default time model. Ours has the same number of tokens in blocks of 512, which is
what the trace's hashes stand for, and the roofline of Llama-3-8B on an H100. The ratio is to that default; Dynamo with
blocks of 512 is run as well, which makes it an eighth faster. The two models of time differ, so latencies do; the share
of prompts found cached under round robin should not, and is printed.

The wheels are installed without dependencies into a folder of the user's cache (DISAGG_CACHE, else ~/.cache/disagg).
The trace is Mooncake's where DISAGG_DATA names a folder that has it, and otherwise one generated with the same
statistics; the result says which.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from venv import EnvBuilder

from results import FOLDER, store

from disagg_load.workloads.builtin import builtin_workload

SEED = 0
TRACE = "mooncake_conversation_trace.jsonl"
TRACE_LINES = 12_031
WORKERS = 8
KV_TOKENS = 16_384 * 64
BLOCK_TOKENS = 512
DYNAMO_BLOCK_TOKENS = 64
VERSION = "1.6.1"
WHEELS = (f"ai-dynamo-runtime=={VERSION}", f"ai-dynamo=={VERSION}")
NEEDED = ("pydantic<=2.13.5,>=2.10.6", "uvloop", "packaging", "pyyaml", "msgspec")
PEERS = Path(__file__).parent / "peers"
POLICIES = {"round robin": ("round-robin", "round_robin"), "kv": ("kv", "kv_router")}
"""What each side calls them."""

LEAST_RATIO = 10.0


def dynamo_python() -> Path:
    """Python of an environment with Dynamo; made on first use."""
    cache = Path(os.environ.get("DISAGG_CACHE") or Path.home() / ".cache" / "disagg")
    folder = cache / "peers" / f"dynamo-{VERSION}"
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        print(f"installing Dynamo {VERSION} into {folder}")
        EnvBuilder(with_pip=True, clear=True).create(folder)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", *WHEELS], check=True)
        subprocess.run([*pip, *NEEDED], check=True, stderr=subprocess.DEVNULL)  # says what else the wheels would want
        done.touch()
    return python


def trace_file(folder: Path) -> tuple[str, Path]:
    """What the trace is, and where."""
    path = Path(os.environ.get("DISAGG_DATA", "")) / "traces" / TRACE
    if os.environ.get("DISAGG_DATA") and path.is_file():
        return TRACE, path
    print(f"DISAGG_DATA has no {TRACE}: replaying a generated trace of the same size")
    load = builtin_workload(f"mooncake?requests={TRACE_LINES}", seed=SEED)
    lines = (
        json.dumps(
            {
                "timestamp": round(request.arrival_seconds * 1000),
                "input_length": request.input_tokens,
                "output_length": request.output_tokens,
                "hash_ids": request.hash_ids,
            }
        )
        for request in load.requests
    )
    path = folder / "generated.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return "generated", path


def run(python: Path | str, script: str, *arguments: object) -> dict[str, Any]:
    """Seconds of the whole program, and what it says."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        [str(python), str(PEERS / script), *map(str, arguments)],
        env={**os.environ, "DYN_LOG": "error"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"whole_seconds": wall, "whole_cpu_seconds": cpu, **json.loads(done.stdout.strip().splitlines()[-1])}


def compare(trace: Path, policy: str, *, rounds: int) -> dict[str, Any]:
    ours, theirs = POLICIES[policy]
    python = dynamo_python()
    sides = {
        "dynamo": (python, "dynamo_trace.py", theirs, DYNAMO_BLOCK_TOKENS),
        "disagg": (sys.executable, "disagg_trace.py", ours, BLOCK_TOKENS),
        "dynamo_512": (python, "dynamo_trace.py", theirs, BLOCK_TOKENS),
    }
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, (program, script, name, block) in sides.items():
            runs[side].append(run(program, script, trace, name, WORKERS, KV_TOKENS // block, block))
    found: dict[str, Any] = {}
    for side, all_runs in runs.items():
        last = all_runs[-1]
        timed = ("whole_seconds", "whole_cpu_seconds", "loop_seconds")
        found[side] = {name: median(one[name] for one in all_runs) for name in timed}
        found[side]["requests_per_second"] = last["completed"] / found[side]["whole_seconds"]
        known = ("completed", "output_tokens", "simulated_seconds", "prefix_reuse", "peak_bytes")
        found[side] |= {name: last[name] for name in known} | {"mean_ttft_seconds": last["ttft_seconds"]["mean"]}
    found["ratio"] = {
        name: found["dynamo"][f"{name}_seconds"] / found["disagg"][f"{name}_seconds"]
        for name in ("whole", "whole_cpu", "loop")
    }
    return found


def show(policy: str, found: dict[str, Any]) -> None:
    print(f"\n{policy:<12} whole s   CPU s   loop s  requests/s  cached  mean TTFT s  simulated s   MB")
    for side in ("dynamo", "dynamo_512", "disagg"):
        one = found[side]
        print(
            f"{side:<12} {one['whole_seconds']:7.2f} {one['whole_cpu_seconds']:7.2f} {one['loop_seconds']:8.2f} "
            f"{one['requests_per_second']:11,.0f} {one['prefix_reuse']:7.3f} {one['mean_ttft_seconds']:12.3f} "
            f"{one['simulated_seconds']:12.0f} {one['peak_bytes'] / 1e6:4.0f}"
        )
    ratio = found["ratio"]
    print(f"{'ratio':<12} {ratio['whole']:7.1f} {ratio['whole_cpu']:7.1f} {ratio['loop']:8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side, the median counts (default 5)")
    parser.add_argument("--trace", type=Path, help="a trace like Mooncake's instead of the one described above")
    parser.add_argument(
        "--json", type=Path, default=FOLDER / "replay_against_dynamo.json", help="where the result goes"
    )
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        name, trace = (options.trace.name, options.trace) if options.trace else trace_file(Path(folder))
        found = {policy: compare(trace, policy, rounds=options.rounds) for policy in POLICIES}
    for policy, one in found.items():
        show(policy, one)
    store(
        options.json,
        seed=SEED,
        figures={
            "trace": name,
            "workers": WORKERS,
            "kv_tokens_per_worker": KV_TOKENS,
            "block_tokens": {"disagg": BLOCK_TOKENS, "dynamo": DYNAMO_BLOCK_TOKENS, "dynamo_512": BLOCK_TOKENS},
            "rounds": options.rounds,
            "policies": found,
        },
    )
    short = [policy for policy, one in found.items() if min(one["ratio"]["whole"], one["ratio"]["loop"]) < LEAST_RATIO]
    if short:
        print(f"below {LEAST_RATIO:g} times: {', '.join(short)}")


if __name__ == "__main__":
    main()
