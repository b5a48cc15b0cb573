"""One offline replay of a trace by `disagg_simulator`, as a whole program; its result is one JSON line.

python disagg_trace.py TRACE POLICY WORKERS KV_BLOCKS BLOCK_TOKENS
"""

import gc
import json
import resource
import sys
from time import perf_counter, process_time

from disagg_contract.choices import RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import Roofline
from disagg_load.requests import percentile
from disagg_load.shell.files import load_columns
from disagg_simulator.deployment import Deployment, Group, Ledger, Mode
from disagg_simulator.simulate import simulate


def spread(values: list[float]) -> dict[str, float]:
    """Seconds: mean and percentiles."""
    values.sort()
    found = {f"p{percent}": percentile(values, percent) for percent in (50, 75, 90, 95, 99)}
    return {"mean": sum(values) / len(values), "max": values[-1], **found}


def main() -> None:
    gc.disable()  # nothing here makes cycles, and all of it is needed to the end
    trace, policy, workers, kv_blocks, block_tokens = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    catalogue = default()
    instance = Instance(model=catalogue.model("llama-3-8b"), gpu=catalogue.gpu("h100"))
    group = Group(
        instance=instance,
        time_model=Roofline(instance),
        batching=BatchingConfig(role=Role.WORKER),
        replicas=workers,
        kv_capacity_tokens=kv_blocks * block_tokens,
        ledger=Ledger.BLOCKS,
        block_tokens=block_tokens,
    )
    deployment = Deployment(mode=Mode.COLOCATED, workers=(group,), routing=RoutingPolicy(policy))
    requests = load_columns(trace, seed=0)
    wall, cpu = perf_counter(), process_time()
    run = simulate(deployment, requests, seed=0)
    wall, cpu = perf_counter() - wall, process_time() - cpu
    arrivals, firsts, ends, tokens = requests.arrival_seconds, run.first_token, run.finish, run.tokens
    several = [index for index in range(len(requests)) if tokens[index] > 1]
    print(
        json.dumps(
            {
                "loop_seconds": wall,
                "loop_cpu_seconds": cpu,
                "completed": sum(outcome == 1 for outcome in run.outcome),
                "output_tokens": sum(tokens),
                "simulated_seconds": run.end_seconds,
                "prefix_reuse": sum(record.prefix_hit_tokens for record in run.instances)
                / sum(record.prefix_queried_tokens for record in run.instances),
                "ttft_seconds": spread([first - start for first, start in zip(firsts, arrivals, strict=True)]),
                "tpot_seconds": spread([(ends[i] - firsts[i]) / (tokens[i] - 1) for i in several]),
                "latency_seconds": spread([end - start for end, start in zip(ends, arrivals, strict=True)]),
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
