"""Control groups for the nodes: below `disagg-<tag>/node-<i>` in every hierarchy, each kubelet keeps its pods.

Works on cgroup v1 (one hierarchy a controller, the cpuset to be filled by hand), on v2, and on the mix of both. The
kubelet does not make its own root, so it is made here; at the end everything below the cluster's group is removed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from embedded.errors import NotReadyError


@dataclass(frozen=True)
class Hierarchy:
    """One mounted hierarchy."""

    mount: Path
    version: int
    controllers: frozenset[str]


def hierarchies(mounts: str | None = None) -> list[Hierarchy]:
    """List the mounted hierarchies; `mounts` is the text of /proc/self/mounts."""
    found = []
    for line in (mounts if mounts is not None else Path("/proc/self/mounts").read_text()).splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup":
            found.append(Hierarchy(Path(where), 1, frozenset(options.split(","))))
        elif kind == "cgroup2":
            found.append(Hierarchy(Path(where), 2, frozenset()))
    return found


def ensure(group: str, node: str) -> None:
    """Make the group of one node in every hierarchy."""
    for hierarchy in hierarchies():
        parent, child = hierarchy.mount / group, hierarchy.mount / group / node
        child.mkdir(parents=True, exist_ok=True)
        if hierarchy.version == 2:
            for folder in (hierarchy.mount, parent, child):
                _delegate(folder)
        elif "cpuset" in hierarchy.controllers:
            for folder in (parent, child):
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (folder / name).write_text((folder.parent / name).read_text())


def remove(group: str, *, timeout_seconds: float = 10) -> None:
    """Remove the cluster's group and all below it; its processes must have ended."""
    deadline = time.monotonic() + timeout_seconds
    for hierarchy in hierarchies():
        top = hierarchy.mount / group
        while top.is_dir():
            try:
                for folder, _, _ in os.walk(top, topdown=False):
                    os.rmdir(folder)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise NotReadyError(
                        f"{error.filename} can't be removed: {error.strerror}; run `down` again"
                    ) from error
                time.sleep(0.1)


def leftovers(group: str) -> list[Path]:
    """List the cluster's groups that exist."""
    return [hierarchy.mount / group for hierarchy in hierarchies() if (hierarchy.mount / group).is_dir()]


def _delegate(folder: Path) -> None:
    """Let the children of a v2 group use every controller that it has itself."""
    wanted = " ".join(f"+{name}" for name in (folder / "cgroup.controllers").read_text().split())
    if not wanted:
        return
    try:
        (folder / "cgroup.subtree_control").write_text(wanted)
    except OSError as error:
        raise NotReadyError(
            f"{folder} can't pass its controllers on ({error.strerror}): in a container, start that container with"
            " --privileged --cgroupns=host"
        ) from error
