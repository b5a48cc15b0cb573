"""A report for people: one table, and the few lines that say whether to trust it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from disagg_load.report import Distribution, Report

TABLE_WIDTH = 120
"""Letters that the widest table may take."""


def show_seconds(value: float) -> str:
    """A duration with a unit that fits it: 23.1 ms, 1.20 s, 312 s."""
    if value < 0.9995:
        return f"{value * 1000:.3g} ms" if value < 0.0999 else f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 99.95 else f"{value:.0f} s"


def show_share(value: float) -> str:
    """A share in percent that only reads 100 % or 0 % when it is."""
    percent = 100 * value
    if 0 < percent < 0.1 or 99.9 < percent < 100:
        return "< 0.1 %" if percent < 50 else "> 99.9 %"
    return f"{percent:.1f} %"


def say_over_context(count: int, requests: int) -> str:
    """What is said where a simulation served requests that pods would not."""
    longer = "1 request is" if count == 1 else f"{count} requests are"
    return (
        f"{longer} longer than the model's context ({show_share(count / requests)}): "
        "simulated like any other here, refused by pods with status 400"
    )


def print_report(report: Report, console: Console) -> None:
    """Print the table, then the counts."""
    facts = report.facts
    _say(console, f"[bold]{escape(facts.trace)}[/bold] on {escape(facts.model)} at {escape(facts.url)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("time", no_wrap=True)
    for heading in ("mean", "p50", "p90", "p99", "max", "SLO", "met"):
        table.add_column(heading, justify="right", no_wrap=True)
    attainment = report.attainment
    met = ("-", "-") if attainment is None else (show_share(attainment.ttft), show_share(attainment.tpot))
    _row(table, "first token (TTFT)", report.ttft_seconds, show_seconds(report.slo.ttft_seconds), met[0])
    _row(table, "per token (TPOT)", report.tpot_seconds, show_seconds(report.slo.tpot_seconds), met[1])
    _row(table, "between tokens", report.tbt_seconds)
    _row(table, "whole request", report.e2e_seconds)
    show_table(table, console)
    if attainment is not None:
        _say(console, f"SLO attainment (both): [bold]{show_share(attainment.both)}[/bold]")
    rates = [
        f"{label} {value:.2f}/s"
        for label, value in (
            ("good requests", report.good_requests_per_second),
            ("answered", report.throughput_requests_per_second),
            ("sent", report.offered_requests_per_second),
            ("tokens", report.throughput_tokens_per_second),
        )
        if value is not None
    ]
    _say(console, ", ".join(rates))
    errors = sum(report.errors.values())
    counts = f"{report.requests} requests: {report.completed} completed, {report.truncated} truncated, {errors} errors"
    if report.unfinished:
        counts += f", {report.unfinished} cut off"
    _say(console, f"{counts}, {report.late} sent late")
    _print_warnings(report, console)


def _row(table: Table, name: str, values: Distribution | None, slo: str = "", met: str = "") -> None:
    cells = ["-"] * 5
    if values is not None:
        cells = [show_seconds(value) for value in (values.mean, values.p50, values.p90, values.p99, values.max)]
    table.add_row(name, *cells, slo, met)


def _print_warnings(report: Report, console: Console) -> None:
    facts = report.facts
    if facts.interrupted:
        text = f"interrupted: {report.requests} of {facts.planned} requests were sent; what was cut off is not counted"
        _say(console, text, style="yellow")
    if report.errors:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.errors.items())
        _say(console, f"errors ({kinds}) are misses; the first: {escape(report.first_error)}", style="red")
    if report.late:
        text = "late requests are misses: this client could not keep up, so give it more CPU or a lower rate"
        _say(console, text, style="yellow")
    if report.requests_over_context:
        _say(console, say_over_context(report.requests_over_context, report.requests), style="yellow")
    if facts.time_scale != 1:
        _say(console, f"times are modelled seconds: the clock's times {facts.time_scale:g}", style="dim")


def show_table(table: Table, console: Console) -> None:
    """A table as wide as its figures, whatever the width: one that is cut or folded can't be read."""
    table.width = Measurement.get(console, console.options.update(max_width=TABLE_WIDTH), table).maximum
    console.print(table, soft_wrap=True)


def _say(console: Console, text: str, *, style: str = "") -> None:
    """One line, whatever the width: what is piped into a file should not be cut into pieces."""
    console.print(text, style=style, highlight=False, soft_wrap=True)
