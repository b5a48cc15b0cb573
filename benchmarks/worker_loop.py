"""Claim: blocks with identities cost an iteration of a worker's loop little, beside a ledger that only counts.

    .venv/bin/python benchmarks/worker_loop.py [--sequences N] [--rounds N] [--json FILE]

The batching loop of a decode-heavy colocated worker runs the same requests on `CountingLedger` (room as a number: the
floor) and on `BlockLedger` (blocks with prefix hashes and reference counts, which pods use). Nothing is shared between
the prompts, so both give the same iterations, which is checked; what differs is bookkeeping. CPU of this process an
iteration, interleaved rounds, the median counts; the clock is the engine's, so nothing sleeps. An iteration of that
batch takes the modelled GPU some 50 ms, and the share of it that the loop uses is printed as well.
"""

import argparse
import time
from pathlib import Path
from statistics import median

from results import FOLDER, store

from disagg_engine import catalogue
from disagg_engine.batching import Admission, BatchingConfig, BatchingLoop, BatchPolicy, Request, Role
from disagg_engine.instance import Instance
from disagg_engine.kv import BlockLedger, CountingLedger, KvLedger
from disagg_engine.timemodel import Roofline

BLOCK_TOKENS = 16
PROMPT_TOKENS = 512
ANSWER_TOKENS = 256
SEED = 0
"""Nothing here is random."""


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64, help="sequences in the batch (default 64)")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default 9)")
    parser.add_argument("--json", type=Path, default=FOLDER / "worker_loop.json", help="where the result goes")
    options = parser.parse_args()
    capacity = 2 * options.sequences * (PROMPT_TOKENS + ANSWER_TOKENS)
    spent: dict[str, list[float]] = {"counting": [], "blocks": []}
    schedules = []
    for _ in range(options.rounds):
        for name, ledger in (
            ("counting", CountingLedger(capacity_tokens=capacity, block_tokens=BLOCK_TOKENS)),
            ("blocks", BlockLedger(capacity_tokens=capacity, block_tokens=BLOCK_TOKENS, prefix_caching=True)),
        ):
            seconds, ends = drive(ledger, options.sequences)
            spent[name].append(seconds / len(ends) * 1e6)
            schedules.append(ends)
    if any(schedule != schedules[0] for schedule in schedules):
        raise SystemExit("the two ledgers gave different iterations")
    modelled = schedules[0][-1] / len(schedules[0]) * 1e6
    counting, blocks = median(spent["counting"]), median(spent["blocks"])
    print(f"CPU an iteration of {options.sequences} sequences, µs: counting {counting:.0f}, blocks {blocks:.0f}")
    print(f"ratio {blocks / counting:.2f}; {blocks / modelled:.2%} of the {modelled / 1000:.1f} ms it models")
    store(
        options.json,
        seed=SEED,
        figures={
            "sequences": options.sequences,
            "iterations": len(schedules[0]),
            "cpu_microseconds_per_iteration": spent,
            "ratio": blocks / counting,
            "modelled_microseconds_per_iteration": modelled,
        },
    )


if __name__ == "__main__":
    main()
