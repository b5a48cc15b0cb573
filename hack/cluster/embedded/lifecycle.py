"""Up and down: the order in which a cluster is made, repaired and removed.

`up` is one path for a first start, a second start, a repair and a change of shape: every step makes what it is
responsible for be so, and does nothing where it is so already. `down` needs nothing but the path of the state folder,
because all names follow from it. Both hold the state folder's lock from beginning to end.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from embedded import binaries, cgroups, controlplane, fakegpu, kwok, network, nodes, pki, processes
from embedded.errors import NotReadyError, SpecError
from embedded.images.load import load_pause
from embedded.kubectl import kubectl
from embedded.layout import Cluster
from embedded.lock import locked, locked_host
from embedded.names import Names, Subnets, choose_subnets, names_for
from embedded.processes import POD_ROLE, SHIM_ROLE
from embedded.settings import Record, Settings, boot_id, merge, read_record, write_record
from embedded.shell import run, say, wait_until
from embedded.status import expected_roles
from embedded.topology import Node

_LOCK_NAME = "lock"
_BENIGN = {_LOCK_NAME, ".cluster.json.partial", "logs"}


def up(state: Path, *, cache: Path, options: dict[str, int | str | None]) -> Cluster:
    """Make the cluster be there, in the shape that the options and the saved settings give."""
    names = names_for(state)
    _refuse_foreign_folder(names)
    with locked(state / _LOCK_NAME, purpose="another command on this cluster"):
        record = read_record(state)
        settings = merge(record.settings if record else Settings(), options)
        real, fake = settings.real_nodes(), settings.kwok_nodes()
        _build(cache, with_kwok=bool(fake))
        subnets = _claim_network(names, record, settings, nodes=len(real))
        cluster = open_cluster(names, subnets, cache=cache)
        pki.ensure_all(cluster.pki, subnets=subnets, nodes={node.name: subnets.node(node.index) for node in real})
        _link_programs(cluster)
        _start_all(cluster, real)
        _remove_surplus_nodes(cluster, keep=len(real))
        nodes.wait_ready(cluster, real)
        fakegpu.ensure(cluster, real)
        kwok.ensure(cluster, fake)
        _check(cluster, settings)
        return cluster


def down(state: Path, *, keep_logs: bool = False) -> bool:
    """Remove every trace of the cluster; False when there was none."""
    names = names_for(state)
    if not state.exists() and not _traces(names):
        return False
    _refuse_foreign_folder(names)
    with locked(state / _LOCK_NAME, purpose="another command on this cluster"):
        _tear_down(names)
        say("removing the state folder")
        for path in state.iterdir():
            if path.name != _LOCK_NAME and not (keep_logs and path.name == "logs"):
                _delete(path)
        (state / _LOCK_NAME).unlink()
        if not any(state.iterdir()):
            state.rmdir()
    return True


def open_cluster(names: Names, subnets: Subnets, *, cache: Path) -> Cluster:
    """Put the parts of one cluster together."""
    return Cluster(names, subnets, cache, lambda name: binaries.program(name, cache=cache))


def existing_cluster(state: Path, *, cache: Path) -> tuple[Cluster, Settings]:
    """Open the cluster of a state folder; raises SpecError when there is none."""
    record = read_record(state)
    if record is None:
        raise SpecError(f"there is no cluster in {state}: start one with `up`, or name another folder with --state")
    return open_cluster(names_for(state), record.subnets, cache=cache), record.settings


def _build(cache: Path, *, with_kwok: bool) -> None:
    needed = [binaries.KUBERNETES, binaries.ETCD, binaries.COREDNS, binaries.PAUSE, binaries.HELM]
    for module in [*needed, binaries.KWOK] if with_kwok else needed:
        binaries.built(module, cache=cache)


def _claim_network(names: Names, record: Record | None, settings: Settings, *, nodes: int) -> Subnets:
    """Choose the addresses, or keep those of the record, and make the network; starts over where that can't go on."""
    with locked_host():
        taken = network.host_networks(names)
        present = network.exists(names)
        if record and record.boot_id != boot_id():
            say("the machine was restarted since: starting with an empty cluster")
            _start_over(names)
            record = None
        elif record and not present:
            _stop_everything(names)
            if any(other.overlaps(record.subnets.all) for other in taken):
                say(f"{record.subnets.all} is in use by now: starting with an empty cluster")
                _start_over(names)
                record = None
        elif not record and (present or _traces(names)):
            say("removing what an earlier run left")
            _start_over(names)
        subnets = record.subnets if record else choose_subnets(names.state, taken)
        write_record(names.state, Record(settings, subnets, boot_id()))
        network.ensure(names, subnets, nodes=nodes)
    return subnets


def _start_all(cluster: Cluster, real: list[Node]) -> None:
    """Start the control plane and, at the same time, the nodes' container runtimes; then the kubelets."""

    def runtime(node: Node) -> None:
        nodes.start_runtime(cluster, node)
        load_pause(cluster, node)

    with ThreadPoolExecutor() as pool:
        pending = [pool.submit(runtime, node) for node in real]
        controlplane.start(cluster)
        for future in pending:
            future.result()
    for node in real:
        nodes.start_kubelet(cluster, node)


def _remove_surplus_nodes(cluster: Cluster, *, keep: int) -> None:
    for index in nodes.known_indices(cluster):
        if index > keep:
            say(f"node-{index}: removing it")
            nodes.stop(cluster, index)
            kubectl(cluster, "delete", "node", f"node-{index}", "--ignore-not-found")
            shutil.rmtree(cluster.state / f"node-{index}")


def _check(cluster: Cluster, settings: Settings) -> None:
    """Make sure that everything still runs, and that the host reaches a service (kube-proxy and DNS in one)."""

    def dead() -> str | None:
        reasons = (cluster.why_dead(role) for role in expected_roles(settings))
        return next((reason for reason in reasons if reason), None)

    address = cluster.subnets.dns_service
    wait_until(
        lambda: network.answers(address, 53),
        what=f"an answer of cluster DNS at {address}",
        timeout_seconds=60,
        alive=dead,
    )
    if reason := dead():
        raise NotReadyError(reason)


def _link_programs(cluster: Cluster) -> None:
    """Keep `bin/` in the state folder: kubectl and whatever else is built, for a person's PATH."""
    folder = cluster.state / "bin"
    folder.mkdir(exist_ok=True)
    for module in binaries.MODULES.values():
        built = binaries.folder_of(module, cache=cluster.cache)
        for name in module.programs if built.is_dir() else ():
            link, partial = folder / name, folder / f".{name}.partial"
            partial.unlink(missing_ok=True)
            partial.symlink_to(built / name)
            partial.replace(link)


def _stop_everything(names: Names) -> None:
    """End all processes in the order that lets each end at once."""

    def stop(*prefixes: str, grace_seconds: float) -> None:
        processes.stop(
            lambda: [p for p in processes.find(names.state, cgroup=names.cgroup) if p.role.startswith(prefixes)],
            grace_seconds=grace_seconds,
        )

    say("stopping kubelets, pods and container runtimes")
    stop("kubelet-", grace_seconds=5)
    stop(f"{POD_ROLE}-", grace_seconds=0)
    stop(f"{SHIM_ROLE}-", grace_seconds=0)
    stop("containerd-", grace_seconds=5)
    stop("node-", grace_seconds=0)
    say("stopping the control plane")
    stop(*controlplane.CONTROLLERS, grace_seconds=3)
    stop("apiserver", grace_seconds=5)
    stop("etcd", grace_seconds=5)
    stop("", grace_seconds=0)


def _tear_down(names: Names) -> None:
    _stop_everything(names)
    say("removing network and control groups")
    network.remove(names)
    cgroups.remove(names.cgroup)


def _start_over(names: Names) -> None:
    _tear_down(names)
    for path in names.state.iterdir():
        if path.name not in (_LOCK_NAME, "logs"):
            _delete(path)


def _traces(names: Names) -> bool:
    """Tell whether anything of the cluster exists outside its folder."""
    running = processes.find(names.state, cgroup=names.cgroup)
    return bool(running or cgroups.leftovers(names.cgroup) or network.link_exists(names) or network.exists(names))


def _refuse_foreign_folder(names: Names) -> None:
    """Refuse a folder that holds something else. One from which things were deleted by hand has left traces outside."""
    present = {path.name for path in names.state.iterdir()} if names.state.exists() else set()
    if "cluster.json" not in present and present - _BENIGN and not _traces(names):
        raise SpecError(
            f"{names.state} is not empty and holds no cluster: nothing was touched; name another folder with --state"
        )


def _delete(path: Path) -> None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        where = line.split()[1]
        if Path(where).is_relative_to(path):
            run(["umount", "--no-mtab", "--lazy", where])
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
