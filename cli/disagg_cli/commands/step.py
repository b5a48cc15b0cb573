"""`disagg step`: how long one iteration takes, and why."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

from disagg_cli.catalogues import read_catalogue
from disagg_cli.errors import UsageError
from disagg_cli.instances import add_instance_options, add_time_model_options, build_instance, build_time_model
from disagg_cli.parsing import Parser, count
from disagg_engine.errors import EngineError, ModelDoesNotFitError
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, Chunk, IterationCost, TimeModelKind

DESCRIPTION = """\
Times one iteration of an instance: prompts, decodes, or both in one batch. Says whether arithmetic or memory limits it.
A model that does not fit the GPUs is timed all the same, with a warning that says what would fit.
"""

EXAMPLES = (
    "disagg step --model opt-13b --gpu a100-80gb --prefill 512",
    "disagg step --model opt-13b --gpu a100-80gb --decode 32 --context 1024",
    "disagg step --model opt-13b --gpu a100-80gb --prefill 1024 --decode 32 --context 1024 --json",
    "disagg step --model llama-3.1-70b --gpu h100 --tensor 8 --prefill 512,1024 --cached 0,2048 --weights fp8",
    "disagg step --model deepseek-v3 --gpu h200 --tensor 4 --data-parallel 80 --expert-parallel 320 \\\n"
    "      --weights fp8 --decode 20480 --context 4096",
    "disagg step --model opt-66b --gpu a100-80gb --tensor 3 --time-model fitted --decode 16 --context 512",
)

EXPLAINING = (TimeModelKind.ROOFLINE, TimeModelKind.CALIBRATED)
OVERHEAD_SHOWN_SECONDS = 5e-7
"""Time models that know arithmetic from memory traffic; the others measure."""


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    add_instance_options(parser)
    work = parser.add_argument_group("the batch")
    work.add_argument("--prefill", type=_lengths, metavar="N[,N]", help="new tokens of each prompt")
    work.add_argument(
        "--cached", type=_cached, metavar="N[,N]", help="tokens of each prompt that are held already (0); one for all"
    )
    work.add_argument("--decode", type=count, metavar="B", help="sequences that decode one token each")
    work.add_argument("--context", type=count, metavar="L", help="tokens that each decoding sequence holds")
    add_time_model_options(parser)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON, in base SI units")


def run(arguments: argparse.Namespace, name: str) -> int:
    """Print the time of the iteration."""
    batch = _batch(arguments)
    instance = build_instance(arguments, read_catalogue(arguments.catalogue))
    try:
        cost = build_time_model(arguments, instance).iteration_seconds(batch)
    except EngineError as error:
        raise UsageError(str(error)) from None
    room, misfit = _room(instance)
    answer = _answer(arguments, instance, batch, cost, room)
    if misfit:
        print(f"disagg {name}: warning: {misfit}", file=sys.stderr)
    elif room < answer["kv_tokens"]:
        print(
            f"disagg {name}: warning: the batch holds {answer['kv_tokens']} tokens of KV; there is room for {room}",
            file=sys.stderr,
        )
    print(json.dumps(answer, indent=1) if arguments.json else _text(instance, batch, cost, answer))
    return 0


def _batch(arguments: argparse.Namespace) -> BatchShape:
    prompts: tuple[int, ...] = arguments.prefill or ()
    if not prompts and arguments.decode is None:
        raise UsageError("an iteration needs work: --prefill N, --decode B with --context L, or both")
    if (arguments.decode is None) != (arguments.context is None):
        raise UsageError("--decode and --context go together: so many sequences, so many tokens held by each")
    cached: tuple[int, ...] = arguments.cached or (0,)
    if arguments.cached and not prompts:
        raise UsageError("--cached is about prompts; give their new tokens with --prefill")
    if len(cached) not in (1, len(prompts)) and prompts:
        raise UsageError(f"--cached has {len(cached)} lengths, --prefill {len(prompts)}; give one for all, or as many")
    if len(cached) == 1:
        cached *= len(prompts)
    decodes = arguments.decode or 0
    return BatchShape(
        chunks=tuple(Chunk(held, new) for held, new in zip(cached, prompts, strict=True)),
        decode_sequences=decodes,
        decode_context_tokens=decodes * (arguments.context or 0),
    )


def _room(instance: Instance) -> tuple[int, str]:
    """KV room in tokens, or 0 and why there is none."""
    try:
        return instance.kv_capacity_tokens(), ""
    except ModelDoesNotFitError as error:
        return 0, str(error)


def _answer(
    arguments: argparse.Namespace, instance: Instance, batch: BatchShape, cost: IterationCost, room: int
) -> dict[str, Any]:
    return {
        "seconds": cost.seconds,
        "compute_seconds": cost.compute_seconds,
        "memory_seconds": cost.memory_seconds,
        "bound": cost.bound,
        "communication_seconds": cost.communication_seconds,
        "stage_seconds": cost.stage_seconds,
        "tokens_per_second": batch.new_tokens / cost.stage_seconds,
        "new_tokens": batch.new_tokens,
        "kv_tokens": batch.new_tokens + batch.reread_tokens,
        "kv_capacity_tokens": room,
        "fits": room > 0,
        "model": instance.model.name,
        "gpu": instance.gpu.name,
        "gpus": instance.gpus,
        "tensor": instance.tensor,
        "pipeline": instance.pipeline,
        "data_parallel": instance.data_parallel,
        "expert_parallel": instance.expert_parallel,
        "weights": instance.weight_precision.value,
        "kv": instance.kv_precision.value,
        "time_model": arguments.time_model,
    }


def _text(instance: Instance, batch: BatchShape, cost: IterationCost, answer: dict[str, Any]) -> str:
    work = []
    for chunk in batch.chunks:
        after = f" after {chunk.cached_tokens} cached" if chunk.cached_tokens else ""
        work.append(f"a prompt of {chunk.new_tokens}{after}")
    if batch.decode_sequences:
        held = batch.decode_context_tokens // batch.decode_sequences
        decodes = "1 decode" if batch.decode_sequences == 1 else f"{batch.decode_sequences} decodes"
        work.append(f"{decodes} at {held} tokens of context")
    if len(work) > 6:
        work = [f"{len(batch.chunks)} prompts of {batch.prefill_tokens} tokens in all", *work[len(batch.chunks) :]]
    explained = answer["time_model"] in EXPLAINING
    limit = f", bound by {cost.bound}" if explained else f" by the time model {answer['time_model']}"
    lines = [
        f"{instance.model.title} on {instance.gpus} × {instance.gpu.title} ({instance.layout()})",
        f"{', '.join(work)}: {_milliseconds(cost.seconds)}{limit}",
    ]
    if explained:
        lines.append(f"  arithmetic  {_milliseconds(cost.compute_seconds)}")
        lines.append(f"  memory      {_milliseconds(cost.memory_seconds)}")
    if cost.communication_seconds:
        lines.append(f"  exchange    {_milliseconds(cost.communication_seconds)}")
    overhead = cost.seconds - max(cost.compute_seconds, cost.memory_seconds) - cost.communication_seconds
    if explained and overhead > OVERHEAD_SHOWN_SECONDS:
        lines.append(f"  overhead    {_milliseconds(overhead)}: on top of the slower of the two")
    if instance.pipeline > 1:
        lines.append(f"  each stage  {_milliseconds(cost.stage_seconds)}: the next batch can start then")
    lines.append(f"  {answer['tokens_per_second']:,.0f} tokens/s; KV room for {answer['kv_capacity_tokens']:,} tokens")
    return "\n".join(lines)


def _milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    digits = max(0, 3 - (math.floor(math.log10(value)) + 1)) if value > 0 else 0
    return f"{value:,.{digits}f} ms"


def _lengths(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, separated by commas."""
    return tuple(count(part) for part in text.split(","))


def _cached(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 0, separated by commas."""
    return tuple(0 if part.strip() == "0" else count(part) for part in text.split(","))
