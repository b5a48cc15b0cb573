"""`disagg status`: what runs under `disagg up`, why, and where its logs are."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape

from disagg_cli.loops import read_loops
from disagg_cli.parsing import Parser, count
from disagg_cli.runtimes import find_runtime, read_status
from disagg_contract.control import Condition, Event, RuntimeStatus
from disagg_load.lag import LoopLag, is_void, show_lag
from disagg_planner.core.decision import Reason

DESCRIPTION = """\
Shows the deployment that `disagg up` runs: roles with ready and wanted instances, where the router is, what the planner
decided last and why, how far the workers' loops lag behind on this machine, and where the logs are. (On Kubernetes:
kubectl get dd,dg and kubectl describe dd NAME.)
"""

EXAMPLES = (
    "disagg status",
    "disagg status demo --json",
    "watch disagg status --events 3",
)

READY = "Ready"
PLANNER_CONDITIONS = ("MetricsAvailable", "ScalingActive")


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("deployment", nargs="?", help="name of the deployment (default: the only one that runs)")
    parser.add_argument("--state-dir", metavar="DIR", help="its state folder, where disagg up was given one")
    parser.add_argument("--events", type=count, default=8, metavar="N", help="newest events to show (default 8)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace, name: str) -> int:
    """Print it; 0 when the deployment is ready, 1 when it is not."""
    status = read_status(find_runtime(name=arguments.deployment, state_dir=arguments.state_dir))
    if arguments.json:
        print(status.to_json().decode())
    else:
        loops = read_loops(status.instances)
        print_status(status, Console(), events=arguments.events, clock=time.time, loops=loops)
    return 0 if is_ready(status) else 1


def is_ready(status: RuntimeStatus) -> bool:
    """Whether the deployment serves with all the instances it wants."""
    return any(condition.type == READY and condition.status == "True" for condition in status.conditions)


def print_status(
    status: RuntimeStatus,
    console: Console,
    *,
    events: int,
    clock: Callable[[], float],
    loops: Mapping[str, LoopLag],
) -> None:
    """Print the status for a person. ``loops`` is the lag of the workers that answer, by instance."""

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, highlight=False, soft_wrap=True)

    say(f"[bold]{escape(status.deployment)}[/bold] serves {escape(status.model)} at {escape(status.router_url)}")
    say(
        columns(
            ("role", "ready", "wanted", "exist"),
            [(group.role.value, group.ready, group.replicas, group.current) for group in status.groups],
        )
    )
    say(
        columns(
            ("instance", "state", "pid", "url", "log"),
            [(found.name, found.state, found.pid, found.url, found.log) for found in status.instances],
        )
    )
    for condition in status.conditions:
        owner = "planner: " if condition.type in PLANNER_CONDITIONS else ""
        say(f"{owner}{show_condition(condition)}", style="" if condition.status == "True" else "yellow")
    decision = last_decision(status)
    if decision is not None:
        moment, event = decision
        say(f"planner: last change {show_age(clock() - moment)} ago, {show_event(event)}")
    elif status.planner_url:
        say("planner: no change so far")
    if loops:
        say(f"worker loops: {show_lag(loops)}", style="yellow" if is_void(loops) else "")
    newest = status.events[-events:]
    if newest:
        say("events:")
    for moment, event in newest:
        say(f"  {show_age(clock() - moment):>5} ago  {show_event(event)}")
    say(f"logs and state: {escape(status.state_dir)}; control API: {escape(status.control_url)}")


def last_decision(status: RuntimeStatus) -> tuple[float, Event] | None:
    """The newest event by which the planner explained a change of replicas, with its time."""
    reasons = {reason.value for reason in Reason}
    return next((found for found in reversed(status.events) if found[1].reason in reasons), None)


def columns(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Aligned columns, each as wide as its widest cell: names and paths are whole, however narrow the terminal."""
    cells = [list(headings), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(headings))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([f"[bold]{lines[0]}[/bold]", *map(escape, lines[1:])])


def show_condition(condition: Condition) -> str:
    """One line: type, status, reason and message."""
    return escape(f"{condition.type} {condition.status} ({condition.reason}) {condition.message}".rstrip())


def show_event(event: Event) -> str:
    """One line: reason and message."""
    return escape(f"{event.reason}: {event.message}")


def show_age(seconds: float) -> str:
    """An age in one unit: 12s, 3m, 2h."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole}s"
    return f"{whole // 60}m" if whole < 7200 else f"{whole // 3600}h"
