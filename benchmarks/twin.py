"""Claim: what clients measure on real worker processes is what the simulator says, within 5 % in the mean.

    .venv/bin/python benchmarks/twin.py [--requests N] [--rate R] [--rounds N] [--json FILE]

OPT-13B on A100s, the load `chat`, at time scale 1: one colocated worker, and one prefill with one decode
worker, each behind a router on loopback. The same load goes through the simulator: arrivals as they were scheduled, the
workers' own settings, no network, no router. Mean TTFT and TPOT of the clients' clock are put beside those of the
simulator; what differs is the machine (how far the workers' loops lag is printed) and the two hops that a request
takes. Beside them, the differences on the engines' clocks, request by request, from the iteration logs.

A run in which a loop lagged too often (`disagg_load.lag`) is void: it is run again, once, and the result says so.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from results import FOLDER, ROOT, store

sys.path.insert(0, str(ROOT))  # what the twin check and this have in common lies with the tests

from disagg_contract.labels import Role
from disagg_engine.batching import FirstToken
from disagg_load.columns import Columns
from disagg_load.lag import is_void, show_lag
from disagg_load.records import Outcome
from disagg_load.requests import Workload
from disagg_load.workloads.builtin import builtin_workload
from disagg_simulator.cluster import link_named
from disagg_simulator.deployment import Deployment, Mode
from disagg_simulator.recording import Recording
from disagg_simulator.simulate import simulate
from tests.support.twin import Record, compare, group_of, send, serving, simulate_twin

SEED = 21
LOAD = "chat?lengths=lognormal"
SHAPES = {"colocated": (Role.WORKER,), "1P1D": (Role.PREFILL, Role.DECODE)}
LINK = "eth-25"
"""25 Gb/s: on a faster one the modelled time is shorter than what the bytes really take over loopback."""
MOST_DIFFERENCE = 0.05


def simulated(records: dict[Role, Record], workload: Workload) -> Recording:
    """The load as it was scheduled, through a deployment with the workers' own settings."""
    groups = {role: group_of(record.config) for role, record in records.items()}
    if Role.WORKER in groups:
        deployment = Deployment(mode=Mode.COLOCATED, workers=(groups[Role.WORKER],))
    else:
        prefill, decode = groups[Role.PREFILL], groups[Role.DECODE]
        deployment = Deployment(
            mode=Mode.DISAGGREGATED,
            prefill=(prefill,),
            decode=(decode,),
            link=link_named(LINK, prefill=[prefill.instance], decode=[decode.instance]),
            first_token=FirstToken.LOGITS,
        )
    return simulate(deployment, Columns.of(workload), seed=SEED)


def run(shape: str, workload: Workload) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        with serving(Path(folder), SHAPES[shape], model="opt-13b", gpu="a100-80gb", link=LINK) as served:
            answers = send(workload, served)
            lags = served.lag()
        logs = {worker.role: Record.read(worker.log) for worker in served.workers}
    failed = [answer.message for answer in answers if answer.outcome is not Outcome.COMPLETED]
    if failed:
        raise SystemExit(f"{shape}: {len(failed)} requests failed, the first because {failed[0]}")
    twin = simulated(logs, workload)
    arrivals = twin.requests.arrival_seconds
    several = [index for index, tokens in enumerate(twin.tokens) if tokens > 1]
    ours = {
        "ttft": fmean(first - arrival for first, arrival in zip(twin.first_token, arrivals, strict=True)),
        "tpot": fmean((twin.finish[i] - twin.first_token[i]) / (twin.tokens[i] - 1) for i in several),
    }
    theirs = {
        "ttft": fmean(answer.ttft_seconds for answer in answers if answer.ttft_seconds is not None),
        "tpot": fmean(answer.tpot_seconds for answer in answers if answer.tpot_seconds is not None),
    }
    engines = {role: compare(record, simulate_twin(record)) for role, record in logs.items()}
    return {
        "void": is_void(lags),
        "lag": show_lag(lags),
        "mean_seconds": {name: {"clients": theirs[name], "simulator": ours[name]} for name in ours},
        "difference": {name: theirs[name] / ours[name] - 1 for name in ours},
        "worst_difference_on_engine_clocks": {
            role.value: {"ttft": one.ttft, "tpot": one.tpot} for role, one in engines.items()
        },
    }


def show(shape: str, found: dict[str, Any]) -> None:
    for name, pair in found["mean_seconds"].items():
        print(
            f"{shape:<10} mean {name.upper()}: clients {pair['clients'] * 1e3:7.2f} ms, simulator "
            f"{pair['simulator'] * 1e3:7.2f} ms, {found['difference'][name]:+.1%}"
        )
    for role, worst in found["worst_difference_on_engine_clocks"].items():
        print(f"{'':<10} {role}'s engine clock, worst request: TTFT {worst['ttft']:.2%}, TPOT {worst['tpot']:.2%}")
    print(f"{'':<10} {found['lag']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=150, help="requests of a run (default 150)")
    parser.add_argument("--rate", type=float, default=2.5, help="requests a second (default 2.5)")
    parser.add_argument("--json", type=Path, default=FOLDER / "twin.json", help="where the result goes")
    options = parser.parse_args()
    workload = builtin_workload(f"{LOAD}&requests={options.requests}&rate={options.rate}", seed=SEED)
    figures: dict[str, Any] = {"requests": options.requests, "requests_per_second": options.rate, "load": LOAD}
    above = []
    for shape in SHAPES:
        found = run(shape, workload)
        if found["void"]:
            print(f"{shape}: void, the machine was busy ({found['lag']}); once more")
            found = run(shape, workload) | {"runs": 2}
        show(shape, found)
        figures[shape] = found
        above += [f"{shape} {name}" for name, by in found["difference"].items() if abs(by) > MOST_DIFFERENCE]
    store(options.json, seed=SEED, figures=figures)
    if above:
        print(f"more than {MOST_DIFFERENCE:.0%} apart: {', '.join(above)}")


if __name__ == "__main__":
    main()
