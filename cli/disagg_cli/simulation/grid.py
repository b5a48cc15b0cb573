"""A grid of cells, simulated in processes; rows come out in the order of the grid.

A cell is one simulation (or search). Scales of the promises cost nothing extra: one recording is judged by each.
"""

from __future__ import annotations

import argparse
import csv
import io
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import active_children, get_context
from multiprocessing.resource_tracker import ensure_running
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from disagg_cli.errors import UsageError
from disagg_cli.parsing import Parser
from disagg_cli.simulation.deployments import build_deployment
from disagg_cli.simulation.loads import build_load
from disagg_cli.simulation.options import add_all
from disagg_cli.simulation.ranges import Ratio
from disagg_cli.simulation.runs import options_of, slo_of
from disagg_cli.simulation.searches import search_goodput
from disagg_engine.errors import EngineError
from disagg_load.report import Distribution, Slo
from disagg_load.shell.tables import show_seconds
from disagg_simulator.errors import SimulatorError
from disagg_simulator.goodput import DEFAULT_TARGET, DEFAULT_TOLERANCE
from disagg_simulator.report import Result, build_result
from disagg_simulator.simulate import simulate

Row = dict[str, Any]

_FIGURES = (
    "requests",
    "completed",
    "requests_over_context",
    "stable",
    "attainment_ttft",
    "attainment_tpot",
    "attainment_both",
    "attainment_low",
    "attainment_high",
    "good_requests_per_second",
    "good_requests_per_second_per_gpu",
    "throughput_requests_per_second",
    "throughput_tokens_per_second",
    *(f"{name}_{point}_seconds" for name in ("ttft", "tpot", "tbt", "e2e") for point in ("mean", "p50", "p90", "p99")),
)
_SEARCHED = (
    "goodput_requests_per_second",
    "goodput_per_gpu",
    "goodput_low",
    "goodput_high",
    "attainment_ttft",
    "attainment_tpot",
    "attainment_both",
    "evaluations",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the grid but for the scales: `named` are the flags that vary, as text."""

    named: dict[str, str]
    arguments: argparse.Namespace
    scales: tuple[float, ...]
    per_gpu: bool
    searched: bool


def cells_of(arguments: argparse.Namespace) -> list[Cell]:
    """The cells of a command line, rates last. Raises `UsageError`."""
    axes: list[list[dict[str, Any]]] = []
    if arguments.ratios:
        axes.append([_ratio(ratio) for ratio in arguments.ratios])
    axes += [_flag(given) for given in arguments.grid]
    if arguments.rates:
        axes.append([{"rate": (rate, f"{rate:g}")} for rate in arguments.rates])
    cells = []
    for point in product(*axes):
        own = argparse.Namespace(**vars(arguments))
        named: dict[str, str] = {}
        for changes in point:
            for dest, (value, text) in changes.items():
                if dest != "ratio":
                    setattr(own, dest, value)
                if dest not in ("prefill", "decode", "replicas", "mode"):
                    named[dest] = text
        cells.append(
            Cell(
                named=named,
                arguments=own,
                scales=tuple(arguments.slo_scales),
                per_gpu=arguments.per_gpu,
                searched=arguments.goodput,
            )
        )
    return cells


def _ratio(ratio: Ratio) -> dict[str, Any]:
    pair = ratio.workers == 0
    values = {
        "mode": "disaggregated" if pair else "colocated",
        "prefill": ratio.prefill or None,
        "decode": ratio.decode or None,
        "replicas": ratio.workers or None,
    }
    return {"ratio": (None, str(ratio)), **{dest: (value, str(value)) for dest, value in values.items()}}


def _flag(given: str) -> list[dict[str, Any]]:
    """The values of FLAG=V,V, read as the flag itself reads them."""
    flag, equals, listed = given.partition("=")
    parser = Parser(prog="disagg simulate")
    add_all(parser, rate=True)
    actions = {name.removeprefix("--"): action for action in parser._actions for name in action.option_strings}
    actions = {name: action for name, action in actions.items() if callable(action.type) or action.metavar}
    action = actions.get(flag.removeprefix("--"))
    if not equals or action is None:
        raise UsageError(f"--grid is {given!r}; it is FLAG=V,V with one of the flags {', '.join(sorted(actions))}")
    values = []
    for text in listed.split(","):
        try:
            value = action.type(text) if callable(action.type) else text
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--grid {flag}: {error}") from None
        values.append({action.dest: (value, text)})
    return values


def simulate_cell(cell: Cell) -> list[Row]:
    """The rows of a cell, one a scale. What can't be is said in the column error."""
    try:
        deployment = build_deployment(cell.arguments)
        common = {**cell.named, "gpus": deployment.gpus}
        if cell.searched:
            return [{**common, **_search(cell, scale)} for scale in cell.scales]
        own = cell.arguments
        if cell.per_gpu:
            if own.rate is None:
                raise UsageError("--per-gpu needs --rates or --rate")
            own = argparse.Namespace(**{**vars(own), "rate": own.rate * deployment.gpus})
        recording = simulate(
            deployment, build_load(own, deployment.mode), seed=own.seed, options=options_of(own, deployment, gaps=True)
        )
        rows = []
        for scale in cell.scales:
            slo = scaled(slo_of(own), scale)
            result = build_result(recording, slo)
            row = {**common, "requests_per_second": own.rate, **_promised(scale, slo), **_figures(result)}
            rows.append({**row, "error": ""})
        return rows
    except (UsageError, EngineError, SimulatorError) as error:
        return [{**cell.named, "slo_scale": scale, "error": str(error)} for scale in cell.scales]


def scaled(slo: Slo, scale: float) -> Slo:
    """Both promises, that much looser."""
    return replace(slo, ttft_seconds=slo.ttft_seconds * scale, tpot_seconds=slo.tpot_seconds * scale)


def _promised(scale: float, slo: Slo) -> Row:
    return {
        "slo_scale": scale,
        "slo_ttft_seconds": round(slo.ttft_seconds, 12),
        "slo_tpot_seconds": round(slo.tpot_seconds, 12),
    }


def _search(cell: Cell, scale: float) -> Row:
    own = argparse.Namespace(
        **{"target": DEFAULT_TARGET, "tolerance": DEFAULT_TOLERANCE, "start": 1.0, **vars(cell.arguments)}
    )
    slo = scaled(slo_of(own), scale)
    own.ttft, own.tpot = slo.ttft_seconds, slo.tpot_seconds
    deployment = build_deployment(own)
    found, _ = search_goodput(own, deployment)
    attainment = (found.best or found.nearest).attainment
    values = (
        found.requests_per_second,
        found.requests_per_second / deployment.gpus,
        found.low,
        found.high,
        attainment.ttft,
        attainment.tpot,
        attainment.both,
        found.evaluations,
    )
    return {**_promised(scale, slo), **dict(zip(_SEARCHED, values, strict=True)), "error": ""}


def _figures(result: Result) -> Row:
    def points(values: Distribution | None) -> list[float | None]:
        return [None] * 4 if values is None else [values.mean, values.p50, values.p90, values.p99]

    attainment, interval = result.attainment, result.attainment_interval or (None, None)
    good = result.good_requests_per_second
    values = (
        result.requests,
        result.completed,
        result.requests_over_context,
        result.stability.stable,
        None if attainment is None else attainment.ttft,
        None if attainment is None else attainment.tpot,
        None if attainment is None else attainment.both,
        *interval,
        good,
        None if good is None else good / result.mean_gpus,
        result.throughput_requests_per_second,
        result.throughput_tokens_per_second,
        *points(result.ttft_seconds),
        *points(result.tpot_seconds),
        *points(result.tbt_seconds),
        *points(result.e2e_seconds),
    )
    return dict(zip(_FIGURES, values, strict=True))


def sweep_cells(cells: Sequence[Cell], *, processes: int, console: Console) -> list[Row]:
    """The rows of all cells, in their order."""
    with _bar(len(cells), console) as (progress, task):
        if processes == 1 or len(cells) == 1:
            rows: list[list[Row]] = []
            for cell in cells:
                rows.append(simulate_cell(cell))
                progress.advance(task)
        else:
            rows = _in_processes(cells, min(processes, len(cells)), progress, task)
    return [row for of_cell in rows for row in of_cell]


def _in_processes(cells: Sequence[Cell], processes: int, progress: Progress, task: TaskID) -> list[list[Row]]:
    # Not forked: the progress bar has a thread, and a fork in the middle of its work could hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            with _interrupts_held_back():
                futures: list[Future[list[Row]]] = [pool.submit(simulate_cell, cell) for cell in cells]
            for future in as_completed(futures):
                future.result()
                progress.advance(task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise
        return [future.result() for future in futures]


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C reaches the whole process group; the process that waits for the others is the one to deal with it.

    What is started here never sees one, from its very first moment: a new process inherits what is blocked. One that
    comes meanwhile (the progress bar's thread may still take it) is dealt with afterwards.
    """
    ensure_running()  # multiprocessing's own helper, whose start would let interrupts through again
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


@contextmanager
def _bar(total: int, console: Console) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Where nobody watches (a file, a pipe), a bar would leave nothing but an empty line.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress, progress.add_task("simulating", total=total)


def caption_of(arguments: argparse.Namespace) -> str:
    """What all cells of a command line have in common, in one line."""
    load = arguments.trace or arguments.workload or f"{arguments.input}/{arguments.output} tokens"
    slo = slo_of(arguments)
    promised = f"TTFT {show_seconds(slo.ttft_seconds)}, TPOT {show_seconds(slo.tpot_seconds)}"
    lengths = f", {arguments.lengths}" if arguments.lengths else ""
    return f"{arguments.model} on {arguments.gpu}; {load}{lengths}; {promised}"


def csv_of(rows: Sequence[Row]) -> str:
    """The rows as CSV with one header; what is not known is empty."""
    columns = list(dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", restval="")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None or value == float("inf"):
        return ""
    return str(value).lower() if isinstance(value, bool) else value
