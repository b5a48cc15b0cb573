"""`disagg demo`: a local deployment, a minute of traffic through it, a table, and everything stopped again."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

from disagg_cli.commands.status import is_ready, last_decision, show_event
from disagg_cli.errors import CommandError, UsageError
from disagg_cli.loops import read_loops
from disagg_cli.parsing import Parser, duration, integer, positive
from disagg_cli.runtimes import find_runtime, read_status
from disagg_contract.control import RuntimeStatus
from disagg_crds.loading import load_deployment
from disagg_load.errors import ClientError
from disagg_load.lag import is_void, show_lag
from disagg_load.report import Slo
from disagg_load.shell.files import load_workload, write_report
from disagg_load.shell.replay import ReplayOptions
from disagg_load.shell.run import replay_and_report
from disagg_load.shell.tables import print_report
from disagg_operator.shell.local.launcher import launch

DESCRIPTION = """\
Starts a deployment of two prefill and two decode instances as processes on this machine (simulated H100s that serve
Llama-3-8B), sends a minute of chat traffic through its router, prints what a client saw and where to look, and stops
everything. Needs nothing but Python. `disagg up` does the same and stays.
"""

EXAMPLES = (
    "disagg demo",
    "disagg demo --rate 6 --seconds 20s",
    "disagg demo --print-deployment > demo.yaml && disagg up demo.yaml",
)

READY_WITHIN_SECONDS = 180.0
STOPPED_WITHIN_SECONDS = 60.0
DEFAULT_RATE = 3.0


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("--rate", type=positive, default=DEFAULT_RATE, help="requests a second (default 3)")
    parser.add_argument("--seconds", type=duration, default=60.0, help="length of the load (default 60)")
    parser.add_argument("--seed", type=integer, default=0, help="seed of the load (default 0)")
    parser.add_argument("--state-dir", metavar="DIR", help="folder for state, logs and report (default: a new one)")
    parser.add_argument("--print-deployment", action="store_true", help="print the deployment's file and stop")


def run(arguments: argparse.Namespace, name: str) -> int:
    """Run the demo; 0 when every request was answered."""
    text = resources.files("disagg_cli").joinpath("data", "demo.yaml").read_text(encoding="utf-8")
    if arguments.print_deployment:
        print(text, end="")
        return 0
    (deployment,) = load_deployment(text)
    folder = Path(arguments.state_dir or tempfile.mkdtemp(prefix="disagg-demo-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "demo.yaml").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder}: {(error.strerror or str(error)).lower()}") from None
    console = Console()

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    say(f"starting [bold]{deployment.metadata.name}[/bold]; logs in {escape(str(folder))}")
    began = time.monotonic()
    with terminated_like_interrupted(), running(folder) as process:
        status = wait_until_ready(folder, process)
        counts = " and ".join(f"{group.ready} {group.role.value}" for group in status.groups)
        say(f"ready after {time.monotonic() - began:.0f} s: {counts} instances behind {status.router_url}")
        slo = Slo(ttft_seconds=deployment.spec.slo.ttft_seconds, tpot_seconds=deployment.spec.slo.tpot_seconds)
        trace = f"builtin:chat?rate={arguments.rate:g}&seconds={arguments.seconds:g}"
        options = ReplayOptions(
            url=status.router_url, seed=arguments.seed, time_scale=deployment.spec.engine.simulated.time_scale
        )
        workload = load_workload(trace, seed=arguments.seed)
        say(f"sending {len(workload.requests)} requests of {escape(trace)}")
        try:
            report = asyncio.run(replay_and_report(workload, options, slo=slo, console=Console(stderr=True)))
        except ClientError as error:
            raise CommandError(str(error)) from None
        status = _last_status(folder, status)
        print_report(report, console)
        loops = read_loops(status.instances)
        say(f"worker loops: {show_lag(loops)}")
        if is_void(loops):
            say("[yellow]the workers could not keep up: these figures show this machine, not the deployment[/yellow]")
        write_report(report, str(folder / "report.json"))
    decision = last_decision(status)
    say(f"planner: {show_event(decision[1]) if decision else 'no change of the instances was needed'}")
    say("stopped; nothing is left running")
    say(f"[bold]where to look[/bold]: {escape(str(folder))} has the logs, demo.yaml and report.json (every request)")
    say("next: disagg up FILE keeps such a deployment running; disagg status shows it; disagg replay sends it load")
    if report.facts.interrupted:
        return 130
    return 0 if report.completed == report.requests > 0 else 1


def _last_status(folder: Path, known: RuntimeStatus) -> RuntimeStatus:
    try:
        return read_status(find_runtime(state_dir=str(folder)))
    except CommandError:
        return known


def wait_until_ready(folder: Path, process: subprocess.Popen[bytes]) -> RuntimeStatus:
    """The status once all instances serve. Raises `CommandError` when that takes too long, or `process` ends."""
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CommandError(f"the deployment ended while it started: {_tail(folder / 'up.log')}")
        with contextlib.suppress(CommandError):
            status = read_status(find_runtime(state_dir=str(folder)))
            if is_ready(status) and status.router_url:
                return status
        time.sleep(0.1)
    raise CommandError(f"the deployment was not ready within {READY_WITHIN_SECONDS:g} s; see {folder}")


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), f"see {log}")


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`disagg up` of the demo, which Ctrl-C does not reach and which does not outlive this process."""
    command = [sys.executable, "-m", "disagg_cli.main", "up", str(folder / "demo.yaml"), "--state-dir", str(folder)]
    process = launch([*command, "--port", "0"], log=folder / "up.log")
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, wait, and if that was not enough end it with all that it started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(STOPPED_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that what was started is stopped."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
