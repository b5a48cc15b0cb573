"""The commands: their names, what each is for, and the module that does it.

Nothing here imports a command, so that `disagg --help` stays fast; `load` imports the one that is asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from .errors import UsageError
from .parsing import Parser, choice


class CommandModule(Protocol):
    """What a module under `commands` offers."""

    DESCRIPTION: str
    EXAMPLES: Sequence[str]

    def configure(self, parser: Parser, name: str) -> None:
        """Add the arguments of the command called `name`."""

    def run(self, arguments: argparse.Namespace, name: str) -> int:
        """Do it; the exit status. Raises `CommandError`."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command: the heading it is listed under, its one line, its module."""

    group: str
    summary: str
    module: str

    def load(self) -> CommandModule:
        """Import the module."""
        return cast(CommandModule, import_module(f"disagg_cli.commands.{self.module}"))


_TRY = "try it, without Kubernetes"
_PLAN = "plan, without GPUs"
_SEE = "look things up"
_RUN = "programs (the operator and `disagg up` start these)"

COMMANDS: dict[str, Command] = {
    "demo": Command(_TRY, "serve a minute of traffic on a local 2-prefill, 2-decode deployment", "demo"),
    "up": Command(_TRY, "run a DisaggDeployment as local processes", "up"),
    "status": Command(_TRY, "show what runs under `disagg up`", "status"),
    "replay": Command(_TRY, "send a trace to a server and report latencies and SLO attainment", "replay"),
    "simulate": Command(_PLAN, "what a deployment does at a rate: latencies, attainment, utilisation", "simulate"),
    "goodput": Command(_PLAN, "the highest rate at which a deployment keeps its promises", "goodput"),
    "sweep": Command(_PLAN, "simulate a grid of rates, promises and deployments, in processes", "sweep"),
    "compare": Command(_PLAN, "show two reports side by side", "compare"),
    "place": Command(_PLAN, "where a deployment's GPU pods would go on a cluster, or what is missing", "place"),
    "step": Command(_PLAN, "time one iteration of a model on GPUs, and say what limits it", "step"),
    "validate": Command(_PLAN, "compare time models and batching loop with measurements of real engines", "validate"),
    "calibrate": Command(_PLAN, "fit the time model's constants to measurements of real engines", "calibrate"),
    "gpus": Command(_SEE, "list the GPUs that can be simulated", "catalogue"),
    "models": Command(_SEE, "list the models that can be simulated", "catalogue"),
    "links": Command(_SEE, "list the links that KV can travel over", "catalogue"),
    "crds": Command(_SEE, "print the custom resource definitions", "crds"),
    "worker": Command(_RUN, "one simulated GPU instance behind vLLM's HTTP interface", "program"),
    "router": Command(_RUN, "the OpenAI-compatible front of prefill and decode workers", "program"),
    "planner": Command(_RUN, "forecasts load and scales prefill and decode", "program"),
    "operator": Command(_RUN, "the Kubernetes operator", "program"),
    "fake-gpus": Command(_RUN, "gives nodes without GPUs fake ones", "program"),
}


def find(name: str) -> Command:
    """The command called `name`. Raises `UsageError` that lists the known ones."""
    try:
        return COMMANDS[choice("command", list(COMMANDS), name)]
    except argparse.ArgumentTypeError as error:
        raise UsageError(str(error)) from None


def overview() -> str:
    """The list of commands for `disagg --help`."""
    lines: list[str] = []
    group = ""
    for name, command in COMMANDS.items():
        if command.group != group:
            group = command.group
            lines += ["", f"{group}:"]
        lines.append(f"  {name:<10} {command.summary}")
    return "\n".join(lines)
