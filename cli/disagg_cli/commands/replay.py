"""`disagg replay`: an open-loop load from a trace or a built-in generator, and its report."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from disagg_cli.errors import CommandError, UsageError
from disagg_cli.instances import add_instance_options
from disagg_cli.parsing import Parser, count, duration, integer, positive, window
from disagg_cli.simulation.options import add_deployment_options, add_planner_options, add_run_options
from disagg_load.errors import ClientError, LoadError, UrlError
from disagg_load.shell.replay import PromptKind
from disagg_load.traces.reader import TimeUnit, TraceFormat
from disagg_load.workloads.builtin import OPTIONS, RECIPES

DEFAULT_TTFT_SECONDS = 0.25
DEFAULT_TPOT_SECONDS = 0.1

DESCRIPTION = f"""\
Sends the requests of a trace to an OpenAI-compatible server, each when its time has come, whatever became of the
ones before (open loop), and reports what a client saw: time to first token (TTFT), time per output token (TPOT), time
between tokens, the share of requests that met the SLOs, and good requests a second. Errors, truncated answers and
requests that this client sent late count as misses. Ctrl-C ends it early and still prints the table.

With --simulate the same requests go through the simulator instead, at the same times, and the same report comes out, so
that disagg compare can show both side by side. The deployment is described by the flags of disagg simulate (below);
their defaults are here those of the pods: first token by decode, KV by need (preempt), prefixes cached, routing by kv.

Exit status: 0 when at least one request was completed, 1 when none was (all failed or were cut short) or the server
can't be reached, 2 when what was asked makes no sense, 130 after Ctrl-C.

Traces are files (Azure CSV, Mooncake JSON lines, or JSON lines with arrival_seconds, input_tokens, output_tokens), or
builtin:NAME, whose requests are drawn from --seed:
{chr(10).join(f"  builtin:{name:<15} {recipe.summary}" for name, recipe in RECIPES.items())}
with options, as in builtin:chat?rate=3&seconds=60&lengths=fixed (quote it: & and ? mean things to a shell):
{chr(10).join(f"  {name:<23} {meaning}" for name, meaning in OPTIONS.items())}
"""

EXAMPLES = (
    "disagg replay --url http://127.0.0.1:8000 --trace builtin:chat",
    "disagg replay --url http://127.0.0.1:8000 --trace 'builtin:chat?rate=3' --slo-ttft 400ms --slo-tpot 40ms",
    "disagg replay --url http://127.0.0.1:8000 --trace AzureLLMInferenceTrace_conv.csv --limit 200 --json report.json",
    "disagg replay --url http://127.0.0.1:8000 --trace own.jsonl --rate-scale 2      twice as many requests a second",
    "disagg replay --simulate --model llama-3-8b --gpu h100 --prefill 2 --decode 2 --trace builtin:chat \\\n"
    "      --json simulated.json",
)

_OF_SERVERS = ("time_scale", "timeout", "late_after", "max_connections", "prompts")
"""Flags that only a replay against a server takes."""


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="base URL of the router, or of any OpenAI-compatible server")
    where.add_argument("--simulate", action="store_true", help="simulate a deployment instead (see below)")
    parser.add_argument("--trace", required=True, metavar="FILE|builtin:NAME", help="what to send (see above)")
    parser.add_argument("--limit", type=count, metavar="N", help="send only the first N requests (of the window)")
    parser.add_argument(
        "--window",
        type=window,
        metavar="START:END",
        help="send only what arrives from START to END of the trace, like 10m:20m; the first of it goes out at once",
    )
    parser.add_argument("--seed", type=integer, default=0, help="seed of built-in traces and of prompts (default 0)")
    parser.add_argument(
        "--rate-scale", type=positive, default=1.0, metavar="X", help="send X times as many requests a second"
    )
    parser.add_argument(
        "--time-scale",
        type=positive,
        default=1.0,
        metavar="S",
        help="the workers' --time-scale: the schedule runs S times faster, and times are reported in modelled seconds",
    )
    parser.add_argument(
        "--slo-ttft",
        type=duration,
        default=DEFAULT_TTFT_SECONDS,
        metavar="TIME",
        help="promised time to first token, like 250ms or 0.25 (default 250ms)",
    )
    parser.add_argument(
        "--slo-tpot",
        type=duration,
        default=DEFAULT_TPOT_SECONDS,
        metavar="TIME",
        help="promised time per output token after the first (default 100ms)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the whole report there; - prints it as one line")
    parser.add_argument(
        "--prompts",
        choices=[kind.value for kind in PromptKind],
        default=PromptKind.TOKENS.value,
        help="how prompts travel: tokens has exactly the trace's lengths; text suits servers without token ids",
    )
    parser.add_argument(
        "--format",
        choices=[form.value for form in TraceFormat],
        help="format of the trace (default: by its first line)",
    )
    parser.add_argument(
        "--time-unit",
        choices=[unit.value for unit in TimeUnit],
        help="unit of the trace's arrival times (default: the format's own)",
    )
    parser.add_argument(
        "--timeout", type=duration, default=600.0, metavar="TIME", help="limit for one request (default 10m)"
    )
    parser.add_argument(
        "--late-after",
        type=duration,
        default=0.1,
        metavar="TIME",
        help="a request sent this much behind its schedule counts as late, and so as a miss (default 100ms)",
    )
    parser.add_argument(
        "--max-connections", type=count, default=1024, metavar="N", help="connections at a time (default 1024)"
    )

    shared = {action.dest for action in parser._actions} | {"model"}
    add_instance_options(parser, required=False)
    add_deployment_options(parser)
    add_run_options(parser)
    add_planner_options(parser)
    # The pods' own settings, so that what is compared with them is the same deployment.
    pods = {
        "admission": "preempt",
        "first_token": "decode",
        "prefix_caching": True,
        "routing": "kv",
        "prefill_burst": 8,
    }
    parser.set_defaults(**pods, defaults=pods)
    simulated = [action.dest for action in parser._actions if action.dest not in shared]
    parser.set_defaults(
        of_simulations={dest: parser.get_default(dest) for dest in simulated},
        of_servers={dest: parser.get_default(dest) for dest in _OF_SERVERS},
    )


def run(arguments: argparse.Namespace, name: str) -> int:
    """Replay and print; 0 if any request was completed, else 1; 130 after an interrupt."""
    from disagg_load.shell.files import load_workload, write_report
    from disagg_load.shell.replay import ReplayOptions

    others, place = (arguments.of_servers, "--url") if arguments.simulate else (arguments.of_simulations, "--simulate")
    for dest, default in others.items():
        if getattr(arguments, dest) != default:
            raise UsageError(f"--{dest.replace('_', '-')} is for {place}, and would do nothing here")
    if arguments.simulate:
        for flag in ("model", "gpu"):
            if getattr(arguments, flag) is None:
                raise UsageError(f"--simulate needs --{flag}")
    options = ReplayOptions(
        url=arguments.url or "simulated",
        model=arguments.model,
        seed=arguments.seed,
        rate_scale=arguments.rate_scale,
        time_scale=arguments.time_scale,
        prompts=PromptKind(arguments.prompts),
        timeout_seconds=arguments.timeout,
        late_after_seconds=arguments.late_after,
        max_connections=arguments.max_connections,
    )
    try:
        workload = load_workload(
            arguments.trace,
            seed=arguments.seed,
            limit=arguments.limit,
            form=TraceFormat(arguments.format) if arguments.format else None,
            unit=TimeUnit(arguments.time_unit) if arguments.time_unit else None,
            window=arguments.window,
        )
    except LoadError as error:
        raise UsageError(str(error)) from None

    from rich.console import Console

    from disagg_load.report import Slo
    from disagg_load.shell.run import replay_and_report
    from disagg_load.shell.tables import print_report

    slo = Slo(ttft_seconds=arguments.slo_ttft, tpot_seconds=arguments.slo_tpot)
    progress = Console(stderr=True)
    try:
        if arguments.simulate:
            from disagg_cli.simulation.replays import replay_simulated

            report = replay_simulated(arguments, workload, slo=slo)
        else:
            report = asyncio.run(replay_and_report(workload, options, slo=slo, console=progress))
        if arguments.json and arguments.json != "-":
            write_report(report, arguments.json)
    except UrlError as error:
        raise UsageError(str(error)) from None
    except ClientError as error:
        raise CommandError(str(error)) from None
    except LoadError as error:
        raise UsageError(str(error)) from None
    if arguments.json == "-":
        print_report(report, progress)
        json.dump(report.to_json(), sys.stdout, allow_nan=False)
        print()
    else:
        out = Console()
        print_report(report, out)
        places = where_to_look(arguments.url, arguments.json)
        if places:
            out.print(f"[bold]where to look[/bold]: {places}", highlight=False, soft_wrap=True)
    if report.facts.interrupted:
        return 130
    return 0 if report.completed else 1


def where_to_look(url: str | None, json_file: str | None) -> str:
    """What to read next, after the table."""
    places = [f"{url.rstrip('/')}/metrics has the server's own counts of the same requests"] if url else []
    if json_file:
        places.append(f"{json_file} has every request")
    return "; ".join(places)
