"""`disagg validate`: how far the time models and the batching loop are from real engines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from disagg_cli.calibrations import load_calibration
from disagg_cli.catalogues import read_catalogue
from disagg_cli.errors import UsageError
from disagg_cli.instances import KERNELS
from disagg_cli.measurements import Measurements, read_measurements
from disagg_cli.parsing import Parser
from disagg_engine.catalogue import Catalogue
from disagg_engine.errors import EngineError
from disagg_engine.instance import Instance
from disagg_engine.timemodel import TimeModel, TimeModelKind, time_model
from disagg_engine.timemodel.calibration import Calibration, EngineKey
from disagg_simulator.errors import MeasurementError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from disagg_simulator.validation.deviation import Errors
    from disagg_simulator.validation.report import Builder, SiliconReport, Slices
    from disagg_simulator.validation.run_report import RunReport

DESCRIPTION = """\
Reports the error of every time model against measurements of real engines: TPOT and TTFT of tables of closed-loop rows
(by engine, by concurrency, by tensor size), and TTFT, TPOT and end to end time, request by request, of recorded runs
that are sent through the batching loop with the engine's own settings. The calibrated model's constants are fitted on
the spot, or read from --profile; what no fit has seen is reported apart, and so is every (model, GPU, program) group by
constants fitted to the other groups alone.

Exit status: 0 when there is a report, 2 when the data can't be read.
"""

EXAMPLES = (
    "disagg validate measurements/",
    "disagg validate measurements/ --profile calibration.yaml",
    "disagg validate silicon.csv --loop-every 0 --json",
)

WIDTH = 140
"""Narrower terminals wrap the tables' lines instead of losing figures."""


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument(
        "data", nargs="+", metavar="DATA", help="files or folders of measurements (disagg calibrate --help)"
    )
    parser.add_argument(
        "--profile",
        metavar="FILE",
        help="constants that disagg calibrate wrote (default: fit them now)",
    )
    parser.add_argument(
        "--loop-every",
        type=_whole,
        default=1,
        metavar="K",
        help="run the batching loop itself on every K-th row of a table, which TTFT needs (1: all, 0: none)",
    )
    parser.add_argument(
        "--kernels", action="store_true", help="also try the kernel measurements of the extra disagg[kernels]"
    )
    parser.add_argument("--catalogue", metavar="FILE", help="YAML file with further GPUs and models")
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON; errors are shares")


def run(arguments: argparse.Namespace, name: str) -> int:
    """Compare and print."""
    from rich.console import Console

    from disagg_simulator.validation.report import silicon_report
    from disagg_simulator.validation.run_report import run_report

    catalogue = read_catalogue(arguments.catalogue)
    found = read_measurements(arguments.data, catalogue)
    builders = _builders(kernels=arguments.kernels)
    with Console(stderr=True).status("running every row and run through the batching loop"):
        calibration = _calibration(arguments.profile, found, catalogue)
        tables = [
            silicon_report(
                table,
                calibration=calibration,
                builders=builders,
                catalogue=catalogue,
                loop_every=arguments.loop_every,
            )
            for table in found.silicon
        ]
        runs = [
            run_report(recorded, calibration=calibration, builders=builders, catalogue=catalogue)
            for recorded in found.runs
        ]
    if arguments.json:
        document = {
            "profile": arguments.profile,
            "rule": calibration.rule,
            "silicon": [report.to_json() for report in tables],
            "runs": [report.to_json() for report in runs],
        }
        print(json.dumps(document, indent=1, allow_nan=False))
        return 0
    console = Console()
    console.width = max(console.width, WIDTH)
    for table in tables:
        print_silicon(table, console)
    for report in runs:
        print_run(report, console)
    return 0


def _calibration(profile: str | None, found: Measurements, catalogue: Catalogue) -> Calibration:
    from disagg_simulator.validation.whole import calibrate_all

    if profile:
        return load_calibration(profile)
    try:
        return calibrate_all(found.silicon, found.runs, catalogue)
    except MeasurementError as error:
        raise UsageError(str(error)) from None


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number, 0 or more")
    return int(text)


def _builders(*, kernels: bool) -> dict[str, Builder]:
    """The models that need no file of ours."""

    def build(kind: TimeModelKind) -> Builder:
        def builder(instance: Instance, engine: EngineKey) -> TimeModel:
            return time_model(kind.value, instance)

        return builder

    found = {kind.value: build(kind) for kind in (TimeModelKind.ROOFLINE, TimeModelKind.FITTED)}
    return {**found, KERNELS: _from_kernels} if kernels else found


def _from_kernels(instance: Instance, engine: EngineKey) -> TimeModel:
    from disagg_cli.kernels import MISSING, kernel_time_model

    try:
        return kernel_time_model(instance, backend=engine.backend)
    except UsageError as error:
        if str(error) == MISSING:
            raise
        raise EngineError(str(error)) from None


def print_silicon(report: SiliconReport, console: Console) -> None:
    """The tables of one file of rows."""
    from rich.table import Table

    _say(console, f"[bold]{report.source}[/bold]: {report.rows} rows, {report.held_out} of them held out of every fit")
    for reason, count in report.left_out.items():
        _say(console, f"left out: {count} rows with {reason}", style="dim")
    table = Table(box=None, pad_edge=False, header_style="bold")
    _headings(table, "time model", "what", "rows", "MAPE", "median", "p90", "bias")
    for model in report.models:
        if model.tpot is None:
            continue
        _row(table, model.name, "TPOT, closed form", model.tpot.everything)
        if model.name == "calibrated":
            _row(table, "", "  rows of the fit", _all(model.tpot_trained))
            _row(table, "", "  rows held out", _all(model.tpot_held_out))
        _row(table, "", "TPOT, batching loop", _all(model.loop_tpot))
        _row(table, "", "TTFT, batching loop", _all(model.loop_ttft))
    if report.groups_held_out is not None:
        _row(table, "pooled", "TPOT, whole groups held out", report.groups_held_out.everything)
    console.print(table)
    for model in report.models:
        if model.refused:
            _say(console, f"{model.name}: no figure for {model.refused} rows, the first because {model.reason}")
    for model in report.models:
        if model.name == "calibrated":
            _print_slices(report, model.tpot_held_out, model.loop_ttft, console)
    for engine, share in report.peak_shares.items():
        _say(
            console,
            f"{engine}: doubtful, its throughput would take up to {_percent(share)} of the peak arithmetic if every "
            "prompt was computed",
            style="yellow",
        )
    for row in report.split:
        ttft, tpot = row["ttft_seconds"], row["tpot_seconds"]
        _say(
            console,
            f"split {row['engine']} {row['layout']}, decode batch {row['decode_batch']}: TTFT {_ms(ttft['measured'])} "
            f"measured, {_ms(ttft['modelled'])} modelled (no queue); TPOT {_ms(tpot['measured'])}, "
            f"{_ms(tpot['modelled'])}",
        )


def _print_slices(report: SiliconReport, held_out: Slices | None, ttft: Slices | None, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    _headings(table, "calibrated", "TPOT held out", "bias", "rows", "group held out", "bias", "TTFT, loop", "bias")
    groups = report.groups_held_out.by_group if report.groups_held_out is not None else {}
    for attribute, title in (("by_engine", "engine"), ("by_concurrency", "concurrency"), ("by_tensor", "tensor")):
        ours: Mapping[str, Errors] = getattr(held_out, attribute) if held_out is not None else {}
        theirs: Mapping[str, Errors] = getattr(ttft, attribute) if ttft is not None else {}
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            group = groups.get(key.rpartition(" ")[0]) if attribute == "by_engine" else None
            errors = ours.get(key)
            table.add_row(
                key if attribute == "by_engine" else f"{title} {key}",
                *_pair(errors),
                str(errors.count) if errors is not None else "-",
                *_pair(group),
                *_pair(theirs.get(key)),
            )
    console.print(table)


def print_run(report: RunReport, console: Console) -> None:
    """The table of one recorded run."""
    from rich.table import Table

    settings = report.run.settings
    _say(
        console,
        f"[bold]{report.run.source}[/bold]: {len(report.run.requests)} requests through {settings.engine} "
        f"{settings.version}, {settings.kv_tokens} tokens of KV",
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    _headings(table, "time model", "what", "mean", "p50", "p90", "p99", "MAPE", "median", "held out: MAPE", "bias")
    titles = {"ttft_seconds": "TTFT", "tpot_seconds": "TPOT", "end_to_end_seconds": "end to end"}
    for number, model in enumerate(report.models):
        if model.refused:
            continue
        for key, title in titles.items():
            comparison, unseen = model.everything.get(key), model.held_out.get(key)
            if comparison is None:
                continue
            names = ("mean", "p50", "p90", "p99")
            if number == 0:
                table.add_row("measured", title, *(_ms(getattr(comparison.measured, name)) for name in names))
            table.add_row(
                model.name,
                title,
                *(_ms(getattr(comparison.modelled, name)) for name in names),
                _percent(comparison.requests.mape),
                _percent(comparison.requests.median),
                *_pair(None if unseen is None else unseen.requests),
            )
    console.print(table)
    for model in report.models:
        if model.refused:
            _say(console, f"{model.name}: no figure, because {model.refused}")
        elif model.ttft_at_once is not None:
            _say(
                console,
                f"{model.name}: TTFT of the {model.ttft_at_once.count} requests that found room at once: MAPE "
                f"{_percent(model.ttft_at_once.mape)}, bias {_percent(model.ttft_at_once.bias, sign=True)}; "
                f"{model.preemptions} preemptions",
            )


def _headings(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(
            name, justify="left" if name in ("time model", "what", "calibrated") else "right", no_wrap=True
        )


def _row(table: Table, name: str, what: str, errors: Errors | None) -> None:
    cells: Sequence[str] = ["-"] * 5
    if errors is not None:
        cells = [
            str(errors.count),
            *(_percent(value) for value in (errors.mape, errors.median, errors.p90)),
            _percent(errors.bias, sign=True),
        ]
    table.add_row(name, what, *cells)


def _all(slices: Slices | None) -> Errors | None:
    return None if slices is None else slices.everything


def _pair(errors: Errors | None) -> tuple[str, str]:
    return ("-", "-") if errors is None else (_percent(errors.mape), _percent(errors.bias, sign=True))


def _percent(value: float, *, sign: bool = False) -> str:
    return f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _say(console: Console, text: str, *, style: str = "") -> None:
    console.print(text, style=style, highlight=False, soft_wrap=True)
