"""`disagg calibrate`: constants of the time model from measurements of real engines."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

from disagg_cli.catalogues import read_catalogue
from disagg_cli.errors import UsageError
from disagg_cli.measurements import read_measurements
from disagg_cli.parsing import Parser
from disagg_engine.timemodel.calibration import Calibration
from disagg_simulator.errors import MeasurementError

DESCRIPTION = """\
Fits the constants of the roofline (efficiencies, overheads, the price of tensor parallelism) to measurements of real
engines, one set for each model, GPU, serving program and precision, and pooled ones for engines nobody measured. Every
second concurrency of a table, and the second half of a recorded run, are held out: they never enter the fit, so that
`disagg validate` can say how far the constants carry.

DATA are files or folders: CSV tables of measured TTFT and TPOT with AIConfigurator's columns, and recorded vLLM runs
(NAME_requests.jsonl beside NAME_meta.json).
"""

EXAMPLES = (
    "disagg calibrate measurements/ --out calibration.yaml",
    "disagg calibrate silicon.csv --out calibration.json",
    "disagg validate measurements/ --profile calibration.yaml",
)

WIDTH = 120
"""Narrower terminals wrap the table's lines instead of losing figures."""


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("data", nargs="+", metavar="DATA", help="files or folders of measurements")
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="write the constants there (YAML; JSON if it ends so)"
    )
    parser.add_argument("--catalogue", metavar="FILE", help="YAML file with further GPUs and models")


def run(arguments: argparse.Namespace, name: str) -> int:
    """Fit, write, and print what was fitted to how much."""
    from disagg_simulator.validation.whole import calibrate_all

    catalogue = read_catalogue(arguments.catalogue)
    found = read_measurements(arguments.data, catalogue)
    try:
        calibration = calibrate_all(found.silicon, found.runs, catalogue)
    except MeasurementError as error:
        raise UsageError(str(error)) from None
    path = Path(arguments.out)
    try:
        path.write_text(_written(calibration.to_document(), as_json=path.suffix == ".json"), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    _print(calibration)
    print(f"wrote {path}; see how far it carries: disagg validate {' '.join(arguments.data)} --profile {path}")
    return 0


def _written(document: dict[str, Any], *, as_json: bool) -> str:
    if as_json:
        return json.dumps(document, indent=1) + "\n"
    text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)
    return text


def _print(calibration: Calibration) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("engine", "rows", "error", "compute", "memory", "KV", "layer µs", "decode µs", "tensor"):
        table.add_column(heading, justify="left" if heading == "engine" else "right", no_wrap=True)
    entries = [(str(key), fitted) for key, fitted in calibration.engines.items()]
    if calibration.pooled is not None:
        entries.append(("all tables together", calibration.pooled))
    for title, fitted in entries:
        constants = fitted.constants
        table.add_row(
            title,
            str(fitted.fit.rows),
            f"{100 * fitted.fit.mape:.1f} %",
            f"{constants.compute_efficiency:.2f}",
            f"{constants.memory_efficiency:.2f}",
            f"{constants.kv_factor:.2f}",
            f"{1e6 * constants.layer_seconds:.3g}",
            f"{1e6 * constants.sequence_seconds:.3g}",
            f"{constants.tensor_penalty:.2f}",
        )
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(table)
    console.print(
        "error: mean of |modelled − measured| / measured TPOT over the rows of the fit; compute, memory: shares of the "
        f"data sheet's peaks; held out: {calibration.rule}",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )
