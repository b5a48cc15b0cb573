"""`disagg up FILE`: the process runtime, where a DisaggDeployment becomes processes on this machine."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from disagg_cli.catalogues import read_catalogue
from disagg_cli.errors import CommandError, UsageError
from disagg_cli.parsing import Parser, choice, duration
from disagg_contract.listening import ListenError
from disagg_contract.settings import LOG_LEVELS

DESCRIPTION = """\
Runs the DisaggDeployment of a file as processes on this machine: workers, a router, and a planner where a role is
autoscaled. All of them listen on loopback only; each has a log in the state folder. The same file works on Kubernetes
(kubectl apply -f FILE). Ctrl-C stops everything.
"""

EXAMPLES = (
    "disagg demo --print-deployment > demo.yaml && disagg up demo.yaml",
    "disagg up demo.yaml --port 8080",
    "disagg status                                                      in another terminal",
    "disagg replay --url http://127.0.0.1:8000 --trace builtin:chat     some load for it",
    "curl http://127.0.0.1:8000/v1/models",
)


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument("file", metavar="FILE", help="YAML file with one DisaggDeployment")
    parser.add_argument(
        "--port", type=_port, default=8000, help="port of the router (default 8000; 0 takes a free one)"
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help="folder of state and logs (default: ~/.local/state/disagg/NAME, or below XDG_STATE_HOME)",
    )
    parser.add_argument("--catalogue", metavar="FILE", default="", help="YAML file with further GPUs and models")
    parser.add_argument(
        "--log-level",
        type=partial(choice, "log level", LOG_LEVELS),
        default="info",
        metavar="LEVEL",
        help="of all programs: debug, info, warning or error",
    )
    parser.add_argument(
        "--ready-within",
        type=duration,
        default=300.0,
        metavar="TIME",
        help="give up when not ready by then (default 5m)",
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port (0 to 65535)")
    return int(text)


def run(arguments: argparse.Namespace, name: str) -> int:
    """Run it until Ctrl-C; 0 after a clean stop."""
    from disagg_engine.errors import EngineError
    from disagg_operator.core.fit import check_fit
    from disagg_operator.errors import OperatorError
    from disagg_operator.shell.processes import read_file, up

    path = Path(arguments.file)
    try:
        fit = check_fit(read_file(path).spec, read_catalogue(arguments.catalogue))
    except OperatorError as error:
        raise UsageError(str(error)) from None
    if not fit.fits:
        raise UsageError(f"{path}: {fit.message}")
    try:
        return up(
            path,
            state_dir=Path(arguments.state_dir) if arguments.state_dir else None,
            router_port=arguments.port,
            catalogue=arguments.catalogue,
            log_level=arguments.log_level,
            ready_seconds=arguments.ready_within,
            say=_say,
        )
    except (EngineError, ListenError) as error:
        raise UsageError(str(error)) from None
    except OperatorError as error:
        raise CommandError(str(error)) from None


def _say(line: str) -> None:
    print(line, flush=True)
