"""`disagg gpus`, `disagg models`, `disagg links`: what the engine's catalogues hold."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from disagg_cli.catalogues import read_catalogue
from disagg_cli.parsing import Parser
from disagg_engine.catalogue import Gpu, Link, Model

DESCRIPTION = """\
Lists what the simulated workers know: names to use in a DisaggDeployment and in worker flags, and the figures behind
them: peaks without sparsity, memory in GB, NVLink in GB/s each way, board power, an assumed price. A YAML file of the
same shape (gpus:, models:, links:) adds entries or replaces them.
"""

EXAMPLES = (
    "disagg gpus",
    "disagg models --json",
    "disagg links",
    "disagg gpus --catalogue my-gpus.yaml",
)


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("--catalogue", metavar="FILE", help="YAML file with further GPUs, models and links")
    parser.add_argument("--json", action="store_true", help="print all fields as JSON, in base SI units")


def run(arguments: argparse.Namespace, name: str) -> int:
    """Print the list called `name`."""
    catalogue = read_catalogue(arguments.catalogue)
    entries: Sequence[Any] = {"gpus": catalogue.gpus, "models": catalogue.models, "links": catalogue.links}[name]
    if arguments.json:
        print(json.dumps([asdict(entry) for entry in entries], indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table

    shows: dict[str, Callable[[Any], dict[str, str]]]
    shows = {"gpus": _show_gpu, "models": _show_model, "links": _show_link}
    rows = [shows[name](entry) for entry in entries]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(rows[0] if rows else ()):
        table.add_column(heading, justify="right" if number > 1 else "left", no_wrap=number != 1)
    for row in rows:
        table.add_row(*row.values())
    Console().print(table, highlight=False)
    return 0


def _show_gpu(gpu: Gpu) -> dict[str, str]:
    return {
        "name": gpu.name,
        "": gpu.title,
        "TFLOP/s": f"{gpu.flops / 1e12:.0f}",
        "FP8": f"{gpu.flops_fp8 / 1e12:.0f}" if gpu.flops_fp8 else "-",
        "GB": f"{gpu.memory_bytes / 1e9:.0f}",
        "TB/s": f"{gpu.memory_bandwidth / 1e12:.2f}",
        "NVLink": f"{gpu.nvlink_bandwidth / 1e9:.0f}" if gpu.nvlink_bandwidth else "-",
        "W": f"{gpu.watts:.0f}" if gpu.watts else "-",
        "$/h": f"{gpu.dollars_per_hour:.2f}" if gpu.dollars_per_hour else "-",
    }


def _show_model(model: Model) -> dict[str, str]:
    return {
        "name": model.name,
        "": model.title,
        "params": f"{model.parameters / 1e9:.1f}e9",
        "weights GB": f"{model.weight_bytes / 1e9:.0f}",
        "KV KiB/token": f"{model.kv_bytes_per_token / 1024:.0f}",
        "max context": f"{model.max_context_tokens}",
    }


def _show_link(link: Link) -> dict[str, str]:
    return {
        "name": link.name,
        "": link.title,
        "GB/s": f"{link.bandwidth / 1e9:.1f}" if link.bandwidth else "the GPU's",
        "latency": f"{link.latency_seconds * 1e6:.0f} µs",
    }
