"""`disagg goodput`: the highest rate at which a deployment keeps its promises."""

from __future__ import annotations

import argparse
from typing import Any

from disagg_cli.parsing import Parser, positive
from disagg_cli.simulation.options import add_all, add_json_option, share
from disagg_simulator.goodput import DEFAULT_TARGET, DEFAULT_TOLERANCE

DESCRIPTION = """\
Searches the highest rate at which enough requests (90 % unless --target says otherwise) meet both promises: goodput.
The same requests are simulated at one rate after another, stretched in time; near the answer with more of them, so that
chance does not decide. A rate beyond capacity never counts, however loose the promises are.

Exit status: 0 when there is such a rate, 1 when not even single requests meet the promises (infeasible).
"""

EXAMPLES = (
    "disagg goodput --model opt-13b --gpu a100-80gb --input 512 --output 64 --ttft 400ms --tpot 40ms",
    "disagg goodput --model opt-13b --gpu a100-80gb --prefill 2 --decode 1 --input 512 --output 64 \\\n"
    "      --ttft 400ms --tpot 40ms --json",
    "disagg goodput --model opt-13b --gpu a100-80gb --workload chat --burstiness 2 --ttft 1s --target 0.99",
    "disagg goodput --mode prefill-only --model opt-13b --gpu a100-80gb --input 512 --output 64 --ttft 400ms",
)

SCHEMA = "disagg.dev/goodput/v1"


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    add_all(parser, rate=False)
    parser.add_argument("--rate", type=_no_rate, help=argparse.SUPPRESS)
    search = parser.add_argument_group("search")
    search.add_argument(
        "--target", type=share, default=DEFAULT_TARGET, metavar="SHARE", help="requests that meet both (0.9)"
    )
    search.add_argument(
        "--tolerance",
        type=share,
        default=DEFAULT_TOLERANCE,
        metavar="SHARE",
        help="of the rate that is found, relative (0.005)",
    )
    search.add_argument(
        "--start", type=positive, default=1.0, metavar="R", help="first rate to try, requests/s (1); any will do"
    )
    add_json_option(parser, "the answer")
    parser.add_argument("--plot", metavar="FILE", help="draw attainment against rate into a PNG, SVG or PDF file")


def _no_rate(text: str) -> float:
    raise argparse.ArgumentTypeError("the rate is what is searched; leave it out, or say where to begin with --start")


def run(arguments: argparse.Namespace, name: str) -> int:
    """Search and print; 1 where no rate will do."""
    from rich.console import Console

    from disagg_cli.places import check_place
    from disagg_cli.simulation.deployments import build_deployment
    from disagg_cli.simulation.documents import write_document
    from disagg_cli.simulation.pictures import check_plots, draw_search
    from disagg_cli.simulation.searches import search_goodput, to_json
    from disagg_cli.simulation.tables import print_goodput

    check_place(arguments.json)
    check_plots([arguments.plot] if arguments.plot else [])
    deployment = build_deployment(arguments)
    found, workload = search_goodput(arguments, deployment)
    if arguments.json:
        document: dict[str, Any] = {"schema": SCHEMA, **to_json(found, deployment, arguments, workload)}
        write_document(document, arguments.json)
    if arguments.plot:
        draw_search(found, deployment, arguments, workload)
    console = Console(stderr=True) if arguments.json == "-" else Console()
    if arguments.json != "-" or found.infeasible:
        print_goodput(found, deployment, workload, console)
    return 1 if found.infeasible else 0
