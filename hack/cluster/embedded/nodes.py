"""The real nodes: for each, a mount and host-name namespace with a containerd and a kubelet in it.

In: a cluster and its node list. Out: nodes that are Ready. A node sees empty folders of its own over /var/lib,
/var/log and /run, and files of its own over the kernel settings that a kubelet insists on. So kubelets, container
runtimes and CNI plugins may use the paths that are built into them without meeting those of another node, and the
host keeps its settings. All mounts of a node live in its namespace and vanish with its last process.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

from embedded import cgroups, network, processes
from embedded.kubectl import ready_nodes
from embedded.layout import Cluster
from embedded.names import HIDDEN_IN_NODES
from embedded.nodeconfig import KERNEL_SETTINGS, cni_config, containerd_config, kubelet_config
from embedded.processes import POD_ROLE, SHIM_ROLE
from embedded.shell import say, succeeds, wait_until
from embedded.topology import Node

_HOLDER_SCRIPT = """
echo "$1" > /proc/sys/kernel/hostname
for hidden in {hidden}; do mount --no-mtab -t tmpfs -o mode=0755 "$1" "$hidden"; done
for setting in {settings}; do mount --no-mtab --bind "$2/sysctl/$setting" "/proc/sys/$setting"; done
mount --no-mtab --make-rshared /
exec sleep infinity
"""


def folder(cluster: Cluster, node: Node) -> Path:
    """Folder of one node in the state folder."""
    return cluster.state / node.name


def socket(cluster: Cluster, node: Node) -> Path:
    """containerd's socket of one node."""
    return folder(cluster, node) / "containerd.sock"


def roles(index: int) -> tuple[tuple[str, ...], ...]:
    """Roles of one node in the order in which they are stopped."""
    return (
        (f"kubelet-{index}",),
        (f"{POD_ROLE}-{index}",),
        (f"{SHIM_ROLE}-{index}",),
        (f"containerd-{index}",),
        (f"node-{index}",),
    )


def start_runtime(cluster: Cluster, node: Node) -> None:
    """Start the node's namespaces and its containerd, and wait for its socket."""
    running = processes.by_role(cluster.processes())
    holder = running.get(node.name)
    fits = holder is not None and holder.spec == processes.fingerprint(_holder_command(cluster, node))
    if not fits and any(role in running for group in roles(node.index) for role in group):
        say(f"{node.name}: its namespaces are gone or out of date, restarting it")
        stop(cluster, node.index)
    _write_files(cluster, node)
    _start_holder(cluster, node)
    argv = ["containerd", "--config", str(folder(cluster, node) / "containerd.toml"), "--log-level", "warn"]
    _start_inside(cluster, node, f"containerd-{node.index}", argv, "containerd.toml", "cni/10-pods.conflist")
    wait_until(
        lambda: succeeds(["ctr", "--address", socket(cluster, node), "version"]),
        what=f"an answer of {node.name}'s containerd",
        timeout_seconds=60,
        alive=lambda: cluster.why_dead(f"containerd-{node.index}"),
    )


def start_kubelet(cluster: Cluster, node: Node) -> bool:
    """Start the node's kubelet; True when it was not running, and so may have forgotten the fake GPUs."""
    argv = [
        str(cluster.program("kubelet")),
        f"--kubeconfig={cluster.pki.path(node.name + '.conf')}",
        f"--config={folder(cluster, node) / 'kubelet.json'}",
        f"--hostname-override={node.name}",
        f"--root-dir={folder(cluster, node) / 'kubelet'}",
        f"--node-ip={cluster.subnets.node(node.index)}",
    ]
    return _start_inside(cluster, node, f"kubelet-{node.index}", argv, "kubelet.json")


def wait_ready(cluster: Cluster, nodes: list[Node], *, timeout_seconds: float = 180) -> None:
    """Wait until every one of the nodes is Ready by the word of the kubelet that runs now, not of an earlier one."""

    def all_ready() -> bool:
        ready, running = ready_nodes(cluster), processes.by_role(cluster.processes())
        started = {name: time.time() - process.age_seconds for name, process in running.items()}
        return all(ready.get(node.name, 0) >= started.get(f"kubelet-{node.index}", math.inf) for node in nodes)

    def dead() -> str | None:
        reasons = (cluster.why_dead(f"kubelet-{node.index}") for node in nodes)
        return next((reason for reason in reasons if reason), None)

    names = ", ".join(node.name for node in nodes)
    wait_until(all_ready, what=f"readiness of {names}", timeout_seconds=timeout_seconds, every_seconds=0.5, alive=dead)


def stop(cluster: Cluster, index: int) -> None:
    """Stop one node: the kubelet first, so that it starts nothing again, then pods, shims, containerd, namespaces."""
    for group in roles(index):
        abrupt = group[0].startswith((POD_ROLE, SHIM_ROLE, "node-"))
        cluster.stop_roles(group, grace_seconds=0 if abrupt else 10)


def known_indices(cluster: Cluster) -> list[int]:
    """List the nodes that have a folder in the state folder."""
    found = (path.name.removeprefix("node-") for path in cluster.state.glob("node-*"))
    return sorted(int(number) for number in found if number.isdigit())


def _write_files(cluster: Cluster, node: Node) -> None:
    home = folder(cluster, node)
    for name in ("cni", "kubelet", "sysctl"):
        (home / name).mkdir(parents=True, exist_ok=True)
    for setting, value in KERNEL_SETTINGS.items():
        path = home / "sysctl" / setting
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    (home / "containerd.toml").write_text(containerd_config(home, socket=socket(cluster, node)))
    (home / "cni/10-pods.conflist").write_text(json.dumps(cni_config(cluster.subnets, index=node.index), indent=2))
    config = kubelet_config(cluster, node=node, socket=socket(cluster, node))
    (home / "kubelet.json").write_text(json.dumps(config, indent=2))
    cgroups.ensure(cluster.names.cgroup, node.name)


def _start_holder(cluster: Cluster, node: Node) -> None:
    """Start the process that holds the node's namespaces, and wait until its mounts are made."""
    if not cluster.ensure_running(node.name, _holder_command(cluster, node)):
        return

    def asleep() -> bool:
        holder = processes.by_role(cluster.processes()).get(node.name)
        return holder is not None and processes.name(holder.pid) == "sleep"

    wait_until(asleep, what=f"namespaces of {node.name}", timeout_seconds=20, alive=lambda: cluster.why_dead(node.name))


def _holder_command(cluster: Cluster, node: Node) -> list[str]:
    script = _HOLDER_SCRIPT.format(hidden=" ".join(HIDDEN_IN_NODES), settings=" ".join(KERNEL_SETTINGS))
    namespaces = ["unshare", "--mount", "--uts", "--propagation", "private", "--"]
    return [*namespaces, "sh", "-euc", script, "sh", node.name, str(folder(cluster, node))]


def _start_inside(cluster: Cluster, node: Node, role: str, argv: list[str], *files: str) -> bool:
    """Start a program in the node's namespaces."""
    holder = processes.by_role(cluster.processes())[node.name]
    own = [f"--mount=/proc/{holder.pid}/ns/mnt", f"--uts=/proc/{holder.pid}/ns/uts"]
    return cluster.ensure_running(
        role,
        argv,
        files=tuple(folder(cluster, node) / name for name in files),
        wrap=lambda words: ["nsenter", *own, *network.inside(cluster.names)[1:], *words],
        also_when_changed=f"{holder.pid} {holder.started_ticks}",
    )
