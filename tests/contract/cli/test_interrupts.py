"""Ctrl-C in the middle of long commands: exit status 130, no traceback, nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

BASE = ("--model", "opt-13b", "--gpu", "a100-80gb", "--workload", "chat")
SWEEP = ("sweep", *BASE, "--rates", "1:5:0.1", "--requests", "100000", "--processes", "2")
PATIENCE_SECONDS = 60.0


def in_group(group: int) -> list[str]:
    """The command lines of a process group's processes, zombies left out."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                stat = (process / "stat").read_text().rpartition(")")[2].split()
                words = (process / "cmdline").read_bytes().decode().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(stat[2]) == group and stat[0] != "Z":
                found.append(" ".join(words))
    return found


def at_work(pid: int) -> bool:
    """Whether a command that needs no further processes has come to its numbers."""
    return "numpy" in Path(f"/proc/{pid}/maps").read_text()


def sweeping(pid: int) -> bool:
    """Whether the first process of a sweep's pool has just been started."""
    return any("spawn_main" in line for line in in_group(pid))


@pytest.mark.parametrize(
    ("arguments", "begun"),
    [
        (SWEEP, sweeping),
        (("goodput", *BASE, "--requests", "300000"), at_work),
        (("simulate", *BASE, "--rate", "3", "--requests", "3000000"), at_work),
    ],
)
def test_an_interrupt_ends_a_command_and_all_its_processes(
    arguments: tuple[str, ...], begun: Callable[[int], bool]
) -> None:
    # A shell that runs in the background leaves interrupts ignored; what is started here must not inherit that.
    process = subprocess.Popen(
        (str(Path(sys.executable).with_name("disagg")), *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until = time.monotonic() + PATIENCE_SECONDS
    try:
        while not begun(process.pid):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        while in_group(process.pid) and time.monotonic() < until:
            time.sleep(0.01)
        assert in_group(process.pid) == []
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert (process.returncode, said.partition("Traceback")[1:]) == (130, ("", ""))
