"""`disagg COMMAND ...`: find the command, parse, run, and end with a status.

Exit statuses: 0 done · 1 could not be done · 2 asked for something that can't be · 130 interrupted · 143 terminated. An
expected error is one sentence on the standard error stream, a bug is a traceback.

The kernel drops a SIGTERM to the first process of a container that has no handler for it. A program needs seconds to
load before it has its own; a pod that is deleted meanwhile would hold its GPU for the whole grace period. So there is
one from the first moment.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from .errors import CommandError, UsageError
from .parsing import Parser
from .registry import find, overview

INTERRUPTED = 130
TERMINATED = 143

_HELP = """\
usage: disagg COMMAND [options]
       disagg COMMAND --help
       disagg --version

Disaggregated LLM serving on Kubernetes: prefill and decode on GPUs of their own, scaled apart; and a way to plan,
test and watch such a deployment without a GPU.
{commands}

first steps:
  disagg demo                                     see it work, in two minutes
  disagg up examples/demo.yaml                    keep such a deployment running
  disagg replay --url http://127.0.0.1:8000 --trace builtin:chat
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name; the process's own by default) and return its exit status."""
    if argv is None:
        signal.signal(signal.SIGTERM, _terminated)
    arguments = list(sys.argv[1:] if argv is None else argv)
    where = "disagg"
    try:
        if arguments[:1] == ["help"] and len(arguments) > 1:
            arguments = [arguments[1], "--help"]
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(_HELP.format(commands=overview()), end="", file=sys.stdout if arguments else sys.stderr)
            return 0 if arguments else UsageError.status
        if arguments[0] in ("-V", "--version"):
            from disagg_contract import __version__

            print(f"disagg {__version__}")
            return 0
        name, *rest = arguments
        command = find(name).load()
        where = f"disagg {name}"
        parser = Parser(prog=where, description=command.DESCRIPTION, examples=command.EXAMPLES)
        command.configure(parser, name)
        status = command.run(parser.parse_args(rest), name)
        sys.stdout.flush()
        return status
    except CommandError as error:
        for line in str(error).splitlines():
            print(f"{where}: {line}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`); there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CommandError.status


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(TERMINATED)


if __name__ == "__main__":
    sys.exit(main())
