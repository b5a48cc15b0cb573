"""`disagg compare`: two reports side by side."""

from __future__ import annotations

import argparse
from typing import Any

from disagg_cli.parsing import Parser

DESCRIPTION = """\
Shows two reports side by side: of disagg replay --json, of disagg replay --simulate --json, or of disagg simulate
--json, in any combination. The difference is the second against the first: in percent, and in percentage points for
shares.
"""

EXAMPLES = (
    "disagg compare measured.json simulated.json",
    "disagg compare before.json after.json --json",
)


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("first", metavar="A.json", help="a report")
    parser.add_argument("second", metavar="B.json", help="another one, compared with the first")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write the comparison as JSON, or print it"
    )


def run(arguments: argparse.Namespace, name: str) -> int:
    """Compare and print."""
    from rich.console import Console

    from disagg_cli.simulation.comparison import Comparison, compare, print_comparison
    from disagg_cli.simulation.documents import read_document, write_document

    documents: list[dict[str, Any]] = [read_document(path) for path in (arguments.first, arguments.second)]
    found: Comparison = compare(documents[0], documents[1], names=(arguments.first, arguments.second))
    if arguments.json:
        write_document(found.to_json(), arguments.json)
    if arguments.json != "-":
        print_comparison(found, Console())
    return 0
