"""`disagg sweep`: the same question for many deployments, rates or promises."""

from __future__ import annotations

import argparse
import os
import sys

from disagg_cli.errors import CommandError, UsageError
from disagg_cli.parsing import Parser, count
from disagg_cli.simulation.options import add_all, share
from disagg_cli.simulation.ranges import numbers, ratios
from disagg_simulator.goodput import DEFAULT_TARGET

DESCRIPTION = """\
Simulates every cell of a grid, in processes: rates, scales of the promises, numbers of instances, and any other flag of
disagg simulate. With --goodput it searches the goodput of every cell instead of taking a rate. The rows come in the
order of the grid and are the same to the byte however many processes did the work.

A cell that can't be (a model that does not fit, say) gets a row with the reason in the column error.

Exit status: 0, or 1 when no cell could be simulated.
"""

EXAMPLES = (
    "disagg sweep --model opt-13b --gpu a100-80gb --workload chat --rates 1:5:0.5 --csv rates.csv --plot rates.png",
    "disagg sweep --model opt-13b --gpu a100-80gb --input 512 --output 64 --ttft 400ms --tpot 40ms \\\n"
    "      --ratios 1P1D,2P1D,4P2D,3P3D --goodput --plot ratios.png",
    "disagg sweep --model opt-13b --gpu a100-80gb --workload chat --lengths fixed --ratios 1W,2P1D,1P1D \\\n"
    "      --rates 1 --per-gpu --slo-scales 0.2:1.2:0.05 --csv scales.csv --plot scales.svg",
    "disagg sweep --model opt-66b --gpu a100-80gb --workload summarisation --rates 0.3,0.5 --tensor 4 \\\n"
    "      --scheduler chunked --grid token-budget=256,512,1024,2048",
)


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    grid = parser.add_argument_group("grid (values are lists like 1,2,4 or ranges like FROM:TO:STEP)")
    grid.add_argument("--rates", type=numbers, metavar="R,R", help="requests/s")
    grid.add_argument("--per-gpu", action="store_true", help="rates are requests/s for each GPU of the deployment")
    grid.add_argument(
        "--slo-scales", type=numbers, default=(1.0,), metavar="S,S", help="factors on both --ttft and --tpot (1)"
    )
    grid.add_argument(
        "--ratios", type=ratios, metavar="xPyD,xW", help="2P1D: 2 prefill and 1 decode instances; 3W: 3 colocated ones"
    )
    grid.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="FLAG=V,V",
        help="values of another flag, like token-budget=256,512; can be given again",
    )
    add_all(parser, rate=True)
    out = parser.add_argument_group("output")
    out.add_argument("--goodput", action="store_true", help="search the goodput of each cell; takes no rates")
    out.add_argument(
        "--target",
        type=share,
        default=DEFAULT_TARGET,
        metavar="SHARE",
        help="requests that meet both, for --goodput (0.9)",
    )
    out.add_argument("--processes", type=count, metavar="N", help="processes at a time (one for each CPU)")
    out.add_argument("--csv", metavar="FILE", help="write the rows there (default: print them)")
    out.add_argument("--plot", metavar="FILE", help="draw a PNG, SVG or PDF file")


def run(arguments: argparse.Namespace, name: str) -> int:
    """Sweep, with a progress bar on the error stream."""
    from rich.console import Console

    from disagg_cli.places import check_place
    from disagg_cli.plots.canvas import check_plot
    from disagg_cli.plots.sweep import draw_sweep
    from disagg_cli.simulation.documents import write_text
    from disagg_cli.simulation.grid import caption_of, cells_of, csv_of, sweep_cells

    if arguments.goodput and (arguments.rates or arguments.rate):
        raise UsageError("--goodput finds the rate; leave out --rate and --rates")
    if arguments.plot:
        check_plot(arguments.plot)
    check_place(arguments.csv)
    cells = cells_of(arguments)
    rows = sweep_cells(cells, processes=arguments.processes or os.cpu_count() or 1, console=Console(stderr=True))
    text = csv_of(rows)
    done = [row for row in rows if not row["error"]]
    if arguments.csv:
        write_text(text, arguments.csv)
        failed = f", {len(rows) - len(done)} of them with a reason why not" if len(done) < len(rows) else ""
        print(f"disagg {name}: {arguments.csv} has {len(rows)} rows{failed}", file=sys.stderr)
    else:
        print(text, end="")
    if arguments.plot:
        draw_sweep(rows, caption=caption_of(arguments), path=arguments.plot)
    if not done:
        raise CommandError(f"no cell could be simulated; the first: {rows[0]['error']}")
    return 0
