"""One offline replay of a trace by NVIDIA Dynamo's SDK, as a whole program; its result is one JSON line.

python dynamo_trace.py TRACE ROUTER_MODE WORKERS KV_BLOCKS BLOCK_TOKENS

Runs in an environment of its own that has the wheels `ai-dynamo` and `ai-dynamo-runtime`, and imports nothing of ours.
"""

import json
import resource
import sys
from time import perf_counter, process_time

from dynamo._core import _normalize_mocker_config
from dynamo.replay import run_trace_replay

TRACE_BLOCK_TOKENS = 512
"""Tokens of a block in Mooncake's traces."""


def main() -> None:
    trace, mode, workers, kv_blocks, block_tokens = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    engine = _normalize_mocker_config({"engine": {"block_size": block_tokens, "num_gpu_blocks": kv_blocks}})
    wall, cpu = perf_counter(), process_time()
    report = run_trace_replay(
        trace, router_mode=mode, trace_block_size=TRACE_BLOCK_TOKENS, extra_engine_args=engine, num_workers=workers
    )
    wall, cpu = perf_counter() - wall, process_time() - cpu
    summary = report.summary
    print(
        json.dumps(
            {
                "call_seconds": wall,
                "call_cpu_seconds": cpu,
                "loop_seconds": summary["wall_time_ms"] / 1000,
                "completed": summary["completed_requests"],
                "output_tokens": summary["total_output_tokens"],
                "simulated_seconds": summary["duration_ms"] / 1000,
                "prefix_reuse": summary["prefix_cache_reused_ratio"],
                "ttft_seconds": {"mean": summary["mean_ttft_ms"] / 1000},
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
