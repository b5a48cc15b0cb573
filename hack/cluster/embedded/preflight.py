"""What this machine must have, checked before anything is started, and told in one message.

In: facts about the machine (`Machine`). Out: the list of what is missing, each with what to do. Missing Debian
packages are installed when we may (root, apt-get present, not forbidden); installing them starts no daemon.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embedded.binaries import min_go_version
from embedded.cgroups import hierarchies
from embedded.errors import CommandError, PreflightError
from embedded.lock import locked_host
from embedded.names import HIDDEN_IN_NODES
from embedded.shell import run, say

FORBID_INSTALL = "DISAGG_CLUSTER_NO_INSTALL"
_CNI_PLUGIN = "/usr/lib/cni/bridge"
# Program or file → Debian package, for each purpose.
_CLUSTER_NEEDS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    _CNI_PLUGIN: "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "sysctl": "procps",
    "openssl": "openssl",
}
_IMAGE_NEEDS = {"buildah": "buildah", "debootstrap": "debootstrap"}
NEEDS = {"cluster": _CLUSTER_NEEDS, "images": _IMAGE_NEEDS, "build": {}}


@dataclass(frozen=True)
class Machine:
    """Facts about a machine that decide whether it can run a cluster."""

    system: str
    is_root: bool
    go_version: tuple[int, int] | None
    absent: frozenset[str]
    cgroups_writable: bool
    has_apt: bool


def inspect(purposes: tuple[str, ...]) -> Machine:
    """Look at this machine."""
    needed = {need for purpose in purposes for need in NEEDS[purpose]}
    return Machine(
        system=platform.system(),
        is_root=os.geteuid() == 0,
        go_version=_go_version(),
        absent=frozenset(need for need in needed if not shutil.which(need)),
        cgroups_writable=all(os.access(hierarchy.mount, os.W_OK) for hierarchy in hierarchies()),
        has_apt=shutil.which("apt-get") is not None,
    )


def missing_packages(machine: Machine, purposes: tuple[str, ...]) -> list[str]:
    """Name the Debian packages that bring what is absent."""
    table = {need: package for purpose in purposes for need, package in NEEDS[purpose].items()}
    return sorted({table[need] for need in machine.absent})


def problems(machine: Machine, purposes: tuple[str, ...], *, cache: Path) -> list[str]:
    """List everything that is missing, each as one sentence that says what to do."""
    found = []
    runs_things = "cluster" in purposes or "images" in purposes
    if machine.system != "Linux":
        found.append(
            f"This is {machine.system}; the embedded cluster needs Linux. Elsewhere, use kind (hack/kind.yaml)."
        )
    if runs_things and not machine.is_root:
        found.append("You are not root, and namespaces, mounts and cgroups need it: run the same command with sudo -E.")
    minimum = min_go_version()
    if machine.go_version is None:
        found.append(f"Go is not installed: install Go {minimum[0]}.{minimum[1]} or newer (https://go.dev/dl).")
    elif machine.go_version < minimum and os.environ.get("GOTOOLCHAIN", "auto") == "local":
        have = ".".join(map(str, machine.go_version))
        found.append(
            f"Go {have} is too old and GOTOOLCHAIN=local forbids it to fetch a newer one:"
            f" install Go {minimum[0]}.{minimum[1]} or unset GOTOOLCHAIN."
        )
    if packages := missing_packages(machine, purposes):
        listed = ", ".join(sorted(machine.absent))
        found.append(
            f"These are missing: {listed}. On Debian: apt-get install --no-install-recommends {' '.join(packages)}"
        )
    if "cluster" in purposes and machine.is_root and not machine.cgroups_writable:
        found.append("/sys/fs/cgroup is read-only here: in a container, start that container with --privileged.")
    for hidden in HIDDEN_IN_NODES:
        if cache.is_relative_to(hidden):
            found.append(
                f"The cache {cache} is below {hidden}, which nodes can't see: set DISAGG_CACHE to another folder."
            )
    return found


def require(*purposes: str, cache: Path, may_install: bool) -> None:
    """Check this machine, and install missing Debian packages where allowed; raises PreflightError with the rest."""
    machine = inspect(purposes)
    packages = missing_packages(machine, purposes)
    if packages and may_install and machine.is_root and machine.has_apt:
        with locked_host():
            if packages := missing_packages(inspect(purposes), purposes):
                listed = " ".join(packages)
                say(f"installing Debian packages: {listed} (forbid with --no-install or {FORBID_INSTALL}=1)")
                _install(packages)
        machine = inspect(purposes)
    if left := problems(machine, purposes, cache=cache):
        raise PreflightError("\n".join(["this machine can't do that yet:", *(f"  - {problem}" for problem in left)]))


def _install(packages: list[str]) -> None:
    # Another apt-get may be at work: wait for it.
    install = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "--yes", "--no-install-recommends", *packages]
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    with _no_daemons():
        try:
            run(install, env=env, timeout_seconds=1200)
        except CommandError:
            run(["apt-get", "update"], env=env, timeout_seconds=600)
            run(install, env=env, timeout_seconds=1200, hint="Install these packages by hand, then try again.")


@contextlib.contextmanager
def _no_daemons(policy: Path = Path("/usr/sbin/policy-rc.d")) -> Iterator[None]:
    """Let packages install without starting their services: Debian asks this file; one that is there stays as it is."""
    try:
        descriptor = os.open(policy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
    except FileExistsError:
        yield
        return
    with os.fdopen(descriptor, "w") as file:
        file.write("#!/bin/sh\nexit 101\n")
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


def _go_version() -> tuple[int, int] | None:
    try:
        found = re.search(r"go(\d+)\.(\d+)", run(["go", "version"]))
    except CommandError:
        return None
    return (int(found[1]), int(found[2])) if found else None
