"""The processes of a cluster: started with marks in their environment, and found again by those marks.

In: a role (`apiserver`, `kubelet-1`, …) and a command. Out: a process in a session of its own that carries three
variables: the state folder, the role, and a hash of the command and of the files it was configured with. Whoever
wants to know what runs reads /proc: there is no list of process ids that a crash could leave wrong, and nothing is
ever chosen by the name of its program. Two kinds of process carry no role of their own: containerd's shims inherit
containerd's marks and are told apart by their command, and what runs in pods is found by the cgroup of the cluster.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedded.errors import NotReadyError

STATE_MARK = "DISAGG_EMBEDDED_CLUSTER"
ROLE_MARK = "DISAGG_EMBEDDED_ROLE"
SPEC_MARK = "DISAGG_EMBEDDED_SPEC"
SHIM_ROLE = "shim"
POD_ROLE = "pod"
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """One running process of a cluster."""

    pid: int
    role: str
    spec: str
    started_ticks: int
    resident_kib: int

    @property
    def age_seconds(self) -> float:
        """How long it has been running."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.started_ticks / _TICKS


def find(state: Path, *, cgroup: str, proc: Path = Path("/proc")) -> list[Process]:
    """List the cluster's processes, oldest first. Zombies are not listed: they have ended."""
    found = []
    for folder in proc.iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                process = _read(folder, state=state, cgroup=cgroup)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if process:
                found.append(process)
    return sorted(found, key=lambda process: (process.started_ticks, process.pid))


def by_role(processes: Iterable[Process]) -> dict[str, Process]:
    """Map each role to its oldest process (a child that it forked may carry the same marks)."""
    chosen: dict[str, Process] = {}
    for process in processes:
        chosen.setdefault(process.role, process)
    return chosen


def fingerprint(argv: Sequence[str], files: Iterable[Path] = (), *, extra: str = "") -> str:
    """Hash a command with the contents of the files that configure it: a change means a restart."""
    digest = hashlib.sha256("\0".join([*argv, extra]).encode())
    for path in files:
        digest.update(b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def spawn(argv: Sequence[str], *, state: Path, role: str, spec: str, log: Path) -> int:
    """Start a program that outlives us and appends to `log`; returns its process id."""
    marks = {STATE_MARK: str(state), ROLE_MARK: role, SPEC_MARK: spec}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} start: {' '.join(argv)}\n".encode())
        output.flush()
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**_clean_environment(), **marks},
            cwd=state,
            start_new_session=True,
        )
    process.returncode = 0  # It is meant to outlive this program: nobody here waits for it.
    return process.pid


def stop(matching: Callable[[], list[Process]], *, grace_seconds: float) -> None:
    """End every process that `matching` lists: ask first, then kill whatever is left after `grace_seconds`.

    Asked again each round, because a dying process may start another. Raises NotReadyError when one can't be ended.
    """
    asked: set[int] = set()
    began = time.monotonic()
    while processes := matching():
        waited = time.monotonic() - began
        if waited > grace_seconds + 20:
            listed = ", ".join(f"{process.pid} ({process.role})" for process in processes)
            raise NotReadyError(
                f"these processes did not end even when killed: {listed}; look at them with `ps` and try again"
            )
        for process in processes:
            if waited >= grace_seconds:
                _signal(process.pid, signal.SIGKILL)
            elif process.pid not in asked:
                asked.add(process.pid)
                _signal(process.pid, signal.SIGTERM)
        _reap(processes)
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Tell whether a process runs (a zombie does not)."""
    try:
        return _stat(Path("/proc") / str(pid))[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def name(pid: int) -> str:
    """Name of a process's program; empty when it has gone."""
    try:
        return (Path("/proc") / str(pid) / "comm").read_text().rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _read(folder: Path, *, state: Path, cgroup: str) -> Process | None:
    environment = dict(_pairs((folder / "environ").read_bytes()))
    marked = environment.get(STATE_MARK) == str(state)
    in_pod = re.search(rf":/{re.escape(cgroup)}/node-(\d+)/", (folder / "cgroup").read_text())
    if not (marked or in_pod):
        return None
    condition, started_ticks, resident_pages = _stat(folder)
    if condition in "ZX":
        return None
    role, spec = environment.get(ROLE_MARK, ""), environment.get(SPEC_MARK, "")
    command = (folder / "cmdline").read_bytes().split(b"\0")
    if in_pod:
        role, spec = f"{POD_ROLE}-{in_pod[1]}", ""
    elif b"-namespace" in command and b"-address" in command:
        role, spec = f"{SHIM_ROLE}-{role.rpartition('-')[2]}", ""
    return Process(int(folder.name), role, spec, started_ticks, resident_pages * _PAGE_KIB)


def _pairs(environ: bytes) -> Iterable[tuple[str, str]]:
    for entry in environ.decode(errors="replace").split("\0"):
        name, equals, value = entry.partition("=")
        if equals:
            yield name, value


def _stat(folder: Path) -> tuple[str, int, int]:
    """Condition, start time in clock ticks after boot, resident pages (fields 3, 22 and 24 of proc(5))."""
    after_name = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return after_name[0], int(after_name[19]), int(after_name[21])


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _reap(processes: Iterable[Process]) -> None:
    """Collect children of ours that have ended, so that they don't stay as zombies while we run."""
    for process in processes:
        try:
            os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:
            continue


def _clean_environment() -> dict[str, str]:
    """Environment for a program of the cluster: only what it needs, none of the caller's proxies or kubeconfigs."""
    path = os.environ.get("PATH", "")
    return {"PATH": f"{path}:/usr/sbin:/sbin", "HOME": "/", "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
