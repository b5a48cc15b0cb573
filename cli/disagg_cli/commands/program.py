"""`disagg worker|router|planner|operator|fake-gpus`: the programs, whose flags and environment are their settings."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from importlib import import_module
from typing import Any

from disagg_cli.errors import CommandError, UsageError
from disagg_cli.parsing import Parser
from disagg_contract.config import OperatorConfig, PlannerConfig, RouterConfig, WorkerConfig
from disagg_contract.errors import ConfigError
from disagg_contract.listening import cannot_listen
from disagg_contract.settings import Config, add_arguments, flag, from_namespace

DESCRIPTION = """\
Runs in the foreground until SIGTERM or Ctrl-C. Each flag is also an environment variable, named at the end of its
help; flags win.
"""

EXAMPLES: Sequence[str] = ()

_EXAMPLES = {
    "worker": (
        "disagg worker --model opt-13b --gpu a100-80gb --port 8001      one colocated instance",
        "disagg worker --role decode --model opt-13b --gpu a100-80gb --port 8002 --kv-port 5602 --time-scale 10",
    ),
    "router": (
        "disagg router --discovery-file workers.json --port 8000        a front over a list of workers",
        "disagg router --deployment chat-13b --namespace default        over the pods of a deployment",
    ),
    "planner": (
        "disagg planner --deployment chat-13b --prometheus-url http://prometheus:9090 --prefill-max 4 --decode-max 4",
        "disagg planner --deployment chat-13b --mode advisory           decide and export, never act",
    ),
    "operator": ("disagg operator --namespace default                            watch one namespace",),
    "fake-gpus": (
        "disagg fake-gpus --gpus-per-node 8                             8 fake GPUs on each node that has none",
        "disagg fake-gpus --remove true                                 take them all away again",
    ),
}


def configure(parser: Parser, name: str) -> None:
    """Add the program's flags."""
    kind = _kind(name)
    purpose = (kind.__doc__ or "").strip().replace("``", "")
    parser.description = f"{purpose}\n\n{DESCRIPTION}"
    parser.add_examples(_EXAMPLES[name])
    add_arguments(parser, kind)


def run(arguments: argparse.Namespace, name: str) -> int:
    """Run the program called `name`. Raises `CommandError` where it can't start."""
    try:
        config = from_namespace(_kind(name), arguments, os.environ)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    extra: list[Any] = []
    if isinstance(config, PlannerConfig):
        from disagg_cli.profiles import profile_for

        extra.append(profile_for(config))
    usage_errors, errors = _expected_errors(name)
    try:
        status = import_module(_MODULES[name]).run(config, *extra)
    except usage_errors as error:
        raise UsageError(str(error)) from None
    except errors as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise explain(error, config) from None
    return int(status or 0)


_MODULES = {
    "worker": "disagg_workers.main",
    "router": "disagg_router.main",
    "planner": "disagg_planner.main",
    "operator": "disagg_operator.main",
    "fake-gpus": "disagg_operator.shell.fakegpus",
}


def _kind(name: str) -> type[Config]:
    if name == "fake-gpus":
        from disagg_operator.shell.fakegpus import FakeGpusConfig

        return FakeGpusConfig
    kinds: dict[str, type[Config]] = {
        "worker": WorkerConfig,
        "router": RouterConfig,
        "planner": PlannerConfig,
        "operator": OperatorConfig,
    }
    return kinds[name]


def _expected_errors(name: str) -> tuple[tuple[type[Exception], ...], tuple[type[Exception], ...]]:
    """What a program raises about its settings (exit status 2), and about everything else it can't do (1)."""
    from disagg_engine.errors import EngineError

    match name:
        case "worker":
            from disagg_workers.errors import WorkerError

            return (EngineError, ConfigError), (WorkerError,)
        case "router":
            from disagg_router.errors import RouterError, StartError

            return (StartError, ConfigError), (RouterError,)
        case "planner":
            from disagg_planner.errors import PlannerError, SettingsError

            return (SettingsError, ConfigError), (PlannerError,)
        case _:
            from disagg_operator.errors import OperatorError

            return (EngineError, ConfigError), (OperatorError,)


def explain(error: OSError, config: Config) -> CommandError:
    """The sentence about an operating system error: a port in use, an address that is none of ours, a file."""
    reason = error.strerror or str(error)
    if error.errno in (EADDRINUSE, EACCES, EADDRNOTAVAIL) and error.filename is None:
        bound = re.search(r"\('([^']*)', (\d+)", reason)
        host, port = (bound[1], int(bound[2])) if bound else (getattr(config, "host", ""), getattr(config, "port", 0))
        return UsageError(str(cannot_listen(error, host=host, port=port, flag=_flag(config, port))))
    if error.filename is not None:
        return UsageError(f"{error.filename}: {reason.lower()}")
    return CommandError(reason)


def _flag(config: Config, port: int) -> str:
    """The flag that set `port`."""
    names = [item.name for item in fields(config) if item.name.endswith("port") and getattr(config, item.name) == port]
    return flag(names[0]) if names else "--port"
