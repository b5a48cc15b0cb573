"""Running other programs, waiting, and telling the person at the terminal what happens.

Progress goes to standard error, so that what a command prints on standard output can be used by scripts.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from embedded.errors import CommandError, NotReadyError

STARTED = time.monotonic()


def say(message: str) -> None:
    """Print one line of progress with the seconds since the program began."""
    print(f"[{time.monotonic() - STARTED:6.1f}s] {message}", file=sys.stderr, flush=True)


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout_seconds: float = 300,
    hint: str = "",
) -> str:
    """Run a program to its end and return what it wrote to standard output.

    Raises CommandError with the end of its standard error when it fails; `hint` says what a person can do then.
    """
    words = [os.fspath(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            env=None if env is None else {**os.environ, **env},
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandError(f"{words[0]} is not installed, or not on the PATH. {hint}".strip()) from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(
            f"{shlex.join(words)[:300]} did not end within {timeout_seconds:g} s. {hint}".strip()
        ) from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise CommandError(
            f"{shlex.join(words)[:300]} failed with exit status {done.returncode}: {said} {hint}".strip()
        )
    return done.stdout


def succeeds(argv: Sequence[str | os.PathLike[str]], *, timeout_seconds: float = 60) -> bool:
    """Tell whether a program runs and exits 0; its output is not shown."""
    try:
        run(argv, timeout_seconds=timeout_seconds)
    except CommandError:
        return False
    return True


def wait_until(
    ready: Callable[[], bool],
    *,
    what: str,
    timeout_seconds: float,
    every_seconds: float = 0.2,
    alive: Callable[[], str | None] = lambda: None,
) -> None:
    """Ask `ready` again and again until it says yes.

    `alive` returns a reason as soon as waiting has become pointless (the program died). Raises NotReadyError.
    """
    deadline = time.monotonic() + timeout_seconds
    while not ready():
        if reason := alive():
            raise NotReadyError(f"{what}: {reason}")
        if time.monotonic() > deadline:
            raise NotReadyError(f"{what} did not happen within {timeout_seconds:g} s")
        time.sleep(every_seconds)
