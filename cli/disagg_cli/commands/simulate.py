"""`disagg simulate`: what a deployment does at a rate."""

from __future__ import annotations

import argparse
import sys

from disagg_cli.parsing import Parser, window
from disagg_cli.simulation.options import add_all, add_json_option

DESCRIPTION = """\
Simulates a deployment under a load, with the batching loop, time model and routing of the workers in the pods but on a
virtual clock, and reports what a client would see: time to first token (TTFT) and where it goes, time per output token
(TPOT), the share of requests that met the promises, throughput and good requests a second.

A rate beyond capacity is reported as unstable: its delays would say how long the run was and nothing else.
"""

EXAMPLES = (
    "disagg simulate --model opt-13b --gpu a100-80gb --workload chat --rate 3",
    "disagg simulate --model opt-13b --gpu a100-80gb --prefill 2 --decode 1 --input 512 --output 64 --rate 20 \\\n"
    "      --ttft 400ms --tpot 40ms",
    "disagg simulate --model opt-66b --gpu a100-80gb --tensor 4 --scheduler chunked --token-budget 512 \\\n"
    "      --workload summarisation --lengths fixed --rate 0.5 --ttft 15s --tpot 150ms",
    "disagg simulate --model llama-3.1-70b --gpu h100 --prefill 4 --prefill-tensor 4 --decode 2 --decode-tensor 8 \\\n"
    "      --link ib-400 --trace AzureLLMInferenceTrace_conv.csv --json result.json --plot cdf.png",
    "disagg simulate --mode decode-only --model opt-13b --gpu a100-80gb --input 512 --output 64 --rate 25 --json",
)


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    add_all(parser, rate=True)
    out = parser.add_argument_group("output")
    add_json_option(out, "all figures")
    out.add_argument(
        "--plot",
        action="append",
        default=[],
        metavar="FILE",
        help="draw a PNG, SVG or PDF file: the distribution of TTFT and TPOT, or with timeline=FILE what an instance "
        "did when; can be given again",
    )
    out.add_argument("--timeline-instance", metavar="NAME", help="whose timeline, like decode-0 (the first one's)")
    out.add_argument(
        "--timeline-window",
        type=window,
        metavar="FROM:TO",
        help="what the timeline shows, like 10:14 (around the longest queue)",
    )


def run(arguments: argparse.Namespace, name: str) -> int:
    """Simulate and print."""
    from rich.console import Console

    from disagg_cli.places import check_place
    from disagg_cli.simulation.documents import write_document
    from disagg_cli.simulation.pictures import TIMELINE, check_plots, draw_plots
    from disagg_cli.simulation.runs import simulate_once
    from disagg_cli.simulation.tables import print_result, unstable

    check_place(arguments.json)
    check_plots(arguments.plot)
    run = simulate_once(arguments, series=any(plot.startswith(TIMELINE) for plot in arguments.plot))
    if arguments.json:
        write_document(run.result.to_json(), arguments.json)
    draw_plots(run, arguments)
    if arguments.json == "-":
        if run.result.stability.unstable:
            print(f"disagg {name}: {unstable(run.result)}", file=sys.stderr)
    else:
        print_result(run.result, Console())
    return 0
