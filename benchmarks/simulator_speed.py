"""Claim: millions of requests are simulated on one core, and nothing is lost by it.

    .venv/bin/python benchmarks/simulator_speed.py [--requests N] [--rounds N] [--most N] [--json FILE]

OPT-13B on A100s, prompts of 512 and answers of 64 tokens, Poisson arrivals; `simulate()` from requests to recording,
without making the requests. One process, one core, CPython.

speed      the fast lane at 2P1D (24 req/s, KV over NVLink), colocated prefill-first (4.7 req/s) and chunked (budget
           512, 3 req/s), and beside it, in the same rounds, the pods' own loops: the cluster lane, which skips over
           equal iterations, and the stepper, which computes every one of them. The slower lanes get fewer requests of
           the same load; the fast lane runs these as well, and the largest difference between the times is printed.
           The best round counts, since other programs only make a round slower.
growth     seconds and bytes a request from 100,000 to `--most` requests (10,000,000 for the whole claim), 2P1D, each
           size in a process of its own. Kept is what the process grew by while requests and recording are alive.
goodput    seconds for each search of REFERENCE row 14 (TTFT 0.4 s, TPOT 0.04 s, 90 %).
"""

import argparse
import gc
import multiprocessing
import os
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from results import FOLDER, store

from disagg_contract.labels import Role
from disagg_engine import catalogue
from disagg_engine.batching import BatchingConfig, BatchPolicy
from disagg_engine.instance import Instance
from disagg_engine.timemodel import Roofline
from disagg_load.columns import Columns
from disagg_load.report import Slo
from disagg_load.workloads.arrivals import PoissonArrivals
from disagg_load.workloads.drawing import draw
from disagg_load.workloads.lengths import FixedLengths
from disagg_simulator.cluster import link_named
from disagg_simulator.deployment import Deployment, Group, Mode
from disagg_simulator.goodput import Search, find_goodput
from disagg_simulator.options import Lane, Options
from disagg_simulator.recording import Recording
from disagg_simulator.simulate import simulate
from disagg_simulator.trials import Trials

SEED = 14
SHARES = {Lane.FAST: 1.0, Lane.CLUSTER: 0.1, Lane.STEPPER: 0.02}
"""How many of the requests each lane gets."""

CASES = {"2P1D": (24.0, 150_000), "colocated": (4.7, 100_000), "chunked": (3.0, 60_000)}
"""Requests a second that arrive, and how many a second must at least be simulated."""

SEARCHES = {"colocated": 3000, "prefill-only": 3000, "decode-only": 8000, "2P1D": 3000}
"""Requests of a trial."""

MOST_BYTES = 200
MOST_SEARCH_SECONDS = 2.0


def deployments() -> dict[str, Deployment]:
    known = catalogue.default()
    instance = Instance(model=known.model("opt-13b"), gpu=known.gpu("a100"))
    time_model = Roofline(instance)

    def group(role: Role, replicas: int = 1, policy: BatchPolicy = BatchPolicy.PREFILL_FIRST) -> tuple[Group, ...]:
        batching = BatchingConfig(role=role, policy=policy, chunk_tokens=512)
        return (Group(instance=instance, time_model=time_model, batching=batching, replicas=replicas),)

    link = link_named("nvlink", prefill=[instance], decode=[instance])
    return {
        "2P1D": Deployment(
            mode=Mode.DISAGGREGATED, prefill=group(Role.PREFILL, 2), decode=group(Role.DECODE), link=link
        ),
        "colocated": Deployment(mode=Mode.COLOCATED, workers=group(Role.WORKER)),
        "chunked": Deployment(mode=Mode.COLOCATED, workers=group(Role.WORKER, policy=BatchPolicy.CHUNKED)),
        "prefill-only": Deployment(mode=Mode.PREFILL_ONLY, prefill=group(Role.PREFILL)),
        "decode-only": Deployment(mode=Mode.DECODE_ONLY, decode=group(Role.DECODE)),
    }


def load(rate: float, requests: int) -> Columns:
    return draw(PoissonArrivals(rate), FixedLengths(512), FixedLengths(64), seed=SEED, requests=requests)


def timed(deployment: Deployment, requests: Columns, lane: Lane) -> tuple[float, Recording]:
    before = time.process_time()
    recording = simulate(deployment, requests, seed=SEED, options=Options(lane=lane))
    return time.process_time() - before, recording


def difference(one: Recording, other: Recording) -> float:
    """Largest difference between two recordings' times, seconds."""
    columns = ("prefill_start", "prefill_end", "first_token", "finish")
    return max(float(np.abs(np.subtract(getattr(one, name), getattr(other, name))).max()) for name in columns)


def measure_speed(name: str, requests: int, rounds: int) -> dict[str, Any]:
    deployment, (rate, wanted) = deployments()[name], CASES[name]
    loads = {lane: load(rate, int(requests * share)) for lane, share in SHARES.items()}
    speeds: dict[Lane, list[float]] = {lane: [] for lane in SHARES}
    recordings = {}
    for _ in range(rounds):
        for lane, columns in loads.items():
            seconds, recordings[lane] = timed(deployment, columns, lane)
            speeds[lane].append(len(columns) / seconds)
    best = {lane: max(found) for lane, found in speeds.items()}
    apart = max(
        difference(timed(deployment, loads[lane], Lane.FAST)[1], recordings[lane])
        for lane in (Lane.CLUSTER, Lane.STEPPER)
    )
    print(
        f"{name:10} {best[Lane.FAST]:9,.0f} requests/s (at least {wanted:,}: {verdict(best[Lane.FAST] >= wanted)}); "
        f"cluster lane {best[Lane.CLUSTER]:7,.0f}, stepper {best[Lane.STEPPER]:6,.0f}; "
        f"{best[Lane.FAST] / best[Lane.CLUSTER]:.0f} and {best[Lane.FAST] / best[Lane.STEPPER]:.0f} times as fast; "
        f"times differ by {apart:.0e} s"
    )
    return {
        "rate": rate,
        "requests": {lane.value: len(columns) for lane, columns in loads.items()},
        "requests_per_second": {lane.value: found for lane, found in speeds.items()},
        "best_requests_per_second": {lane.value: found for lane, found in best.items()},
        "wanted_requests_per_second": wanted,
        "largest_difference_seconds": apart,
    }


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grow(requests: int) -> dict[str, float]:
    """One size, in a process of its own."""
    deployment = deployments()["2P1D"]
    timed(deployment, load(24.0, 1000), Lane.FAST)
    gc.collect()
    before = resident_bytes()
    columns = load(24.0, requests)
    seconds, recording = timed(deployment, columns, Lane.FAST)
    gc.collect()
    kept = resident_bytes() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return {
        "requests": len(recording.requests),
        "microseconds_per_request": seconds / requests * 1e6,
        "kept_bytes_per_request": kept / requests,
        "peak_bytes_per_request": peak / requests,
    }


def measure_growth(most: int) -> list[dict[str, float]]:
    sizes = [size for size in (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000) if size <= most]
    found = []
    for size in sizes:
        with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
            found.append(pool.submit(grow, size).result())
        one = found[-1]
        print(
            f"{size:10,} requests: {one['microseconds_per_request']:.2f} µs, {one['kept_bytes_per_request']:.0f} bytes "
            f"kept (below {MOST_BYTES}: {verdict(one['kept_bytes_per_request'] < MOST_BYTES)}), "
            f"{one['peak_bytes_per_request']:.0f} at the peak, each"
        )
    return found


def measure_goodput() -> dict[str, Any]:
    slo = Slo(ttft_seconds=0.4, tpot_seconds=0.04)
    figures = {}
    for name, requests in SEARCHES.items():
        deployment = deployments()[name]
        before = time.process_time()
        trials = Trials(deployment, load, slo, seed=SEED)
        found = find_goodput(trials, Search(requests=requests))
        seconds = time.process_time() - before
        figures[name] = {
            "seconds": seconds,
            "goodput_requests_per_second": found.requests_per_second,
            "evaluations": found.evaluations,
        }
        print(
            f"goodput of {name}: {found.requests_per_second:.2f} req/s after {found.evaluations} runs in "
            f"{seconds:.2f} s (below {MOST_SEARCH_SECONDS:.0f} s: {verdict(seconds < MOST_SEARCH_SECONDS)})"
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000, help="requests of the fast lane (default 100,000)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--most", type=int, default=1_000_000, help="largest size of `growth` (default 1,000,000)")
    parser.add_argument("--json", type=Path, default=FOLDER / "simulator_speed.json", help="where the result goes")
    options = parser.parse_args()
    figures = {
        "speed": {name: measure_speed(name, options.requests, options.rounds) for name in CASES},
        "growth": measure_growth(options.most),
        "goodput": measure_goodput(),
    }
    store(options.json, seed=SEED, figures=figures)


if __name__ == "__main__":
    main()
