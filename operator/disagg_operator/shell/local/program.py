"""How to start ``disagg`` from within ``disagg``."""

import sys


def default_program() -> tuple[str, ...]:
    """The interpreter that runs now, on the command-line package that is installed beside this one."""
    return (sys.executable, "-m", "disagg_cli.main")
