"""Results for people: a table, and the few lines that say whether to trust it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from disagg_engine.batching import FirstToken
from disagg_load.report import Distribution
from disagg_load.shell.tables import say_over_context, show_seconds, show_share, show_table
from disagg_simulator.deployment import Deployment, Mode
from disagg_simulator.goodput import Goodput, Trial
from disagg_simulator.report import Result


def show_time(seconds: float) -> str:
    """A duration in at most seven letters, down to microseconds: queues are that short where nobody waits."""
    return f"{seconds * 1e6:.0f} µs" if 5e-7 <= seconds < 9.995e-4 else show_seconds(seconds)


def show_rate(rate: float) -> str:
    """Requests/s with two decimals, slow ones with three figures: 24.15, 0.952, 4.43e-05."""
    return f"{rate:.2f}" if rate >= 1 or rate == 0 else f"{rate:.3g}"


def describe(deployment: Deployment) -> str:
    """A deployment in one line: `OPT-13B, 2 prefill + 1 decode on A100-80GB, nvlink`."""
    parts = []
    for group in deployment.groups:
        instance = group.instance
        spread = "" if instance.gpus == 1 else f" ({instance.layout()})"
        role = "colocated" if group.role.value == "worker" else group.role.value
        parts.append(f"{group.replicas} {role} on {instance.gpu.name}{spread}")
    text = f"{deployment.groups[0].instance.model.title}: {' + '.join(parts)}"
    if deployment.mode is Mode.DISAGGREGATED:
        text += f", {deployment.transfer} over {deployment.link.name}"
    return text


def print_result(result: Result, console: Console) -> None:
    """The table of one simulation."""
    say(console, f"[bold]{escape(describe(result.deployment))}[/bold]")
    say(console, f"{escape(result.workload)}, seed {result.seed}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("time", no_wrap=True)
    for heading in ("mean", "p50", "p90", "p99", "max", "SLO", "met"):
        table.add_column(heading, justify="right", no_wrap=True)
    attainment = result.attainment
    met = ("-", "-") if attainment is None else (show_share(attainment.ttft), show_share(attainment.tpot))
    _row(table, "first token (TTFT)", result.ttft_seconds, show_seconds(result.slo.ttft_seconds), met[0])
    if result.ttft_parts_seconds is not None:
        _row(table, "  queueing", result.ttft_parts_seconds.queueing)
        _row(table, "  prefill", result.ttft_parts_seconds.prefill)
        if result.deployment.mode is Mode.DISAGGREGATED:
            if result.deployment.first_token is FirstToken.PREFILL:
                table.add_row("  transfer", "in TPOT")
            else:
                _row(table, "  transfer", result.ttft_parts_seconds.transfer)
    _row(table, "per token (TPOT)", result.tpot_seconds, show_seconds(result.slo.tpot_seconds), met[1])
    if result.tbt_seconds is not None:
        _row(table, "between tokens", result.tbt_seconds)
    _row(table, "whole request", result.e2e_seconds)
    show_table(table, console)
    if attainment is not None and result.attainment_interval is not None:
        low, high = (show_share(share) for share in result.attainment_interval)
        say(console, f"SLO attainment (both): [bold]{show_share(attainment.both)}[/bold] (95 %: {low} to {high})")
    _print_rates(result, console)
    _print_usage(result, console)
    _print_warnings(result, console)


def _row(table: Table, name: str, values: Distribution | None, slo: str = "", met: str = "") -> None:
    cells = ["-"] * 5
    if values is not None:
        cells = [show_time(value) for value in (values.mean, values.p50, values.p90, values.p99, values.max)]
    table.add_row(name, *cells, slo, met)


def _print_rates(result: Result, console: Console) -> None:
    rates = [
        f"{label} {value:,.{digits}f}/s"
        for label, value, digits in (
            ("good requests", result.good_requests_per_second, 2),
            ("answered", result.throughput_requests_per_second, 2),
            ("offered", result.stability.offered_requests_per_second, 2),
            ("tokens", result.throughput_tokens_per_second, 0),
        )
        if value is not None
    ]
    gpus = f"{result.gpus} GPU{'s' if result.gpus > 1 else ''}"
    if result.changed:
        gpus += f" at the start, {result.mean_gpus:.1f} on the average"
    if result.good_requests_per_second is not None:
        gpus += f", good requests {result.good_requests_per_second / result.mean_gpus:.2f}/s each"
    say(console, f"{', '.join(rates)}; {gpus}")
    counts = f"{result.requests} request{'' if result.requests == 1 else 's'}: {result.completed} completed"
    for label in ("refused", "failed", "unfinished"):
        if count := getattr(result, label):
            counts += f", {count} {label}"
    say(console, f"{counts}, in {show_seconds(result.duration_seconds)}")


def _print_usage(result: Result, console: Console) -> None:
    for group in result.usage:
        facts = []
        if group.utilisation is not None:
            facts.append(f"{show_share(group.utilisation)} busy")
        if group.kv_occupancy is not None:
            occupancy = group.kv_occupancy
            facts.append(f"KV {show_share(occupancy.mean)} full, at most {show_share(occupancy.max)}")
        if group.prefix_hit_rate is not None:
            facts.append(f"{show_share(group.prefix_hit_rate)} of prompt tokens found cached")
        if group.preemptions:
            facts.append(f"{group.preemptions} preemptions")
        if facts:
            say(console, f"{group.role} instances: {', '.join(facts)}")
    if result.changed:
        fixed = result.gpus * result.duration_seconds
        say(console, f"{result.gpu_seconds / 3600:.2f} GPU-hours; the fleet of the start: {fixed / 3600:.2f}")
    per_good = []
    if result.good_requests and result.cost.dollars is not None:
        per_good.append(f"${1000 * result.cost.dollars / result.good_requests:.2f} a thousand")
    if result.good_requests and result.cost.joules is not None:
        per_good.append(f"{result.cost.joules / result.good_requests:,.0f} J each")
    if per_good:
        say(console, f"good requests cost {', '.join(per_good)}")


def _print_warnings(result: Result, console: Console) -> None:
    if result.stability.unstable:
        say(console, unstable(result), style="red")
    if result.stability.stable is None and result.completed and not result.unfinished:
        text = "the run is too short to tell whether this rate can be kept up; simulate more --requests"
        say(console, text, style="yellow")
    if result.refused:
        say(console, f"{result.refused} requests are larger than an instance's KV room", style="yellow")
    if result.requests_over_context:
        say(console, say_over_context(result.requests_over_context, result.requests), style="yellow")


def unstable(result: Result) -> str:
    """What is said of a rate beyond capacity."""
    stability = result.stability
    offered = stability.offered_requests_per_second
    text = f"unstable: {offered:.2f} requests/s are offered"
    if stability.capacity_requests_per_second is not None:
        text += f", {stability.capacity_requests_per_second:.2f} can be served"
    return f"{text}; queues grow for as long as the load lasts, so delays are not told and attainment is this run's"


def print_goodput(found: Goodput, deployment: Deployment, workload: str, console: Console) -> None:
    """The table of a search."""
    say(console, f"[bold]{escape(describe(deployment))}[/bold]")
    say(console, escape(workload))
    if len(found.trials) > 1:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("requests/s", "TTFT met", "TPOT met", "both", "95 %", "requests", ""):
            table.add_column(heading, justify="right", no_wrap=True)
        for trial in found.trials:
            if found.best is None or abs(trial.rate / found.best.rate - 1) < 0.5:
                table.add_row(*_trial(trial, found))
        show_table(table, console)
    if found.best is None:
        near = found.nearest
        say(
            console,
            f"infeasible: not even a request on its own meets both; the nearest miss is "
            f"{show_share(near.attainment.both)} of {show_share(found.search.target)} at {near.rate:g} requests/s",
            style="red",
        )
        return
    rate = found.requests_per_second
    say(
        console,
        f"goodput [bold]{show_rate(rate)} requests/s[/bold], {show_rate(rate / deployment.gpus)} a GPU "
        f"({deployment.gpus} GPU{'s' if deployment.gpus > 1 else ''}); "
        f"{show_share(found.best.attainment.both)} meet both there, {show_share(found.search.target)} are wanted",
    )
    high = show_rate(found.high) if found.high < float("inf") else "any rate"
    say(console, f"between {show_rate(found.low)} and {high} for sure (95 %), {found.evaluations} simulations")
    if found.best.over_context:
        say(console, say_over_context(found.best.over_context, found.best.requests), style="yellow")


def _trial(trial: Trial, found: Goodput) -> tuple[str, ...]:
    attainment = trial.attainment
    remark = "goodput" if found.best is not None and trial.rate == found.best.rate else ""
    return (
        show_rate(trial.rate),
        show_share(attainment.ttft),
        show_share(attainment.tpot),
        show_share(attainment.both),
        f"{show_share(trial.low)} - {show_share(trial.high)}",
        str(trial.requests),
        remark if trial.stable else "unstable",
    )


def say(console: Console, text: str, *, style: str = "") -> None:
    """One line, whatever the width."""
    console.print(text, style=style, highlight=False, soft_wrap=True)
