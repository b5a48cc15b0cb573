"""One run of `go build` with a line of progress.

`go build -v` names each package as it is compiled, and `go list -deps` says how many there are at most; packages that
Go has compiled before are not named, so the last number may stay below the total.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from embedded.errors import BuildError
from embedded.shell import run, say

_QUIET_LOG_EVERY_SECONDS = 20.0
# -mod=readonly: a build never changes go.mod or go.sum; no cgo: the programs run on any Linux.
ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"}


def compile_program(folder: Path, *, package: str, output: Path, link_flags: str) -> None:
    """Compile `package` of the module in `folder` to the file `output`; raises BuildError with Go's last lines."""
    hint = "A first build needs the Go module proxy (GOPROXY); run the same command again to go on where it stopped."
    total = len(
        run(["go", "list", "-deps", package], cwd=folder, env=ENVIRONMENT, timeout_seconds=1800, hint=hint).split()
    )
    argv = ["go", "build", "-v", "-trimpath", "-ldflags", link_flags, "-o", str(output), package]
    with subprocess.Popen(
        argv, cwd=folder, env={**os.environ, **ENVIRONMENT}, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        said = _follow(process, name=output.name, total=total)
    if process.returncode != 0:
        raise BuildError(f"go build in {folder} failed:\n{''.join(said[-25:])}{hint}")


def _follow(process: subprocess.Popen[str], *, name: str, total: int) -> list[str]:
    """Show progress until the compiler ends; return everything it wrote."""
    said: list[str] = []
    live = sys.stderr.isatty()
    began = shown = time.monotonic()
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        now = time.monotonic()
        if live and now - shown > 0.2:
            print(
                f"\r\033[K  {name}: {len(said)}/{total} packages, {now - began:.0f} s",
                end="",
                file=sys.stderr,
                flush=True,
            )
            shown = now
        elif not live and now - shown > _QUIET_LOG_EVERY_SECONDS:
            say(f"  {name}: {len(said)}/{total} packages")
            shown = now
    if live:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    process.wait()
    if process.returncode == 0:
        say(f"  {name}: built in {time.monotonic() - began:.0f} s")
    return said
