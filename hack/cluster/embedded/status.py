"""What a cluster looks like now, as one value that prints as text or as JSON."""

from __future__ import annotations

from typing import Any

from embedded import processes
from embedded.errors import CommandError
from embedded.kubectl import get
from embedded.layout import Cluster
from embedded.processes import POD_ROLE, SHIM_ROLE
from embedded.settings import Settings
from embedded.topology import DOMAIN_LABEL, GPU_RESOURCE, KWOK_LABEL


def expected_roles(settings: Settings) -> list[str]:
    """List the roles that a healthy cluster of this shape runs."""
    roles = ["etcd", "apiserver", "controller-manager", "scheduler", "proxy", "coredns"]
    roles += ["kwok"] if settings.kwok else []
    for node in settings.real_nodes():
        roles += [node.name, f"containerd-{node.index}", f"kubelet-{node.index}"]
    return roles


def collect(cluster: Cluster, settings: Settings) -> dict[str, Any]:
    """Gather the state of one cluster; `healthy` is true when every role runs and every node is Ready."""
    running = cluster.processes()
    first = processes.by_role(running)
    components = []
    for role in expected_roles(settings):
        process = first.get(role)
        facts = (
            {"pid": process.pid, "age_seconds": round(process.age_seconds), "resident_mib": process.resident_kib >> 10}
            if process
            else None
        )
        components.append({"role": role, "running": process is not None, **(facts or {})})
    nodes, trouble = _nodes(cluster)
    pods = [process for process in running if process.role.startswith((f"{POD_ROLE}-", f"{SHIM_ROLE}-"))]
    return {
        "healthy": all(c["running"] for c in components) and bool(nodes) and all(n["ready"] for n in nodes),
        "state": str(cluster.state),
        "kubeconfig": str(cluster.kubeconfig),
        "bin": str(cluster.state / "bin"),
        "logs": str(cluster.logs),
        "netns": str(cluster.names.netns),
        "veth": cluster.names.veth,
        "cgroup": cluster.names.cgroup,
        "network": str(cluster.subnets.all),
        "services": cluster.subnets.services,
        "pods": cluster.subnets.pods,
        "dns": cluster.subnets.dns_service,
        "api_server": f"https://{cluster.subnets.control_plane}:6443",
        "resident_mib": sum(process.resident_kib for process in running) >> 10,
        "pod_processes": len(pods),
        "components": components,
        "nodes": nodes,
        "trouble": trouble,
    }


def _nodes(cluster: Cluster) -> tuple[list[dict[str, Any]], str | None]:
    try:
        items = get(cluster, "nodes", "--request-timeout=5s")["items"]
    except CommandError as error:
        return [], str(error)
    return [_node(item) for item in items], None


def _node(item: dict[str, Any]) -> dict[str, Any]:
    conditions = {entry["type"]: entry["status"] for entry in item["status"].get("conditions", [])}
    labels = item["metadata"].get("labels", {})
    return {
        "name": item["metadata"]["name"],
        "ready": conditions.get("Ready") == "True",
        "fake": labels.get(KWOK_LABEL) == "kwok",
        "domain": labels.get(DOMAIN_LABEL),
        "gpus": int(item["status"].get("allocatable", {}).get(GPU_RESOURCE, 0)),
        "images": sorted(n for i in item["status"].get("images", []) for n in i["names"] or () if "@" not in n),
    }


def render(report: dict[str, Any]) -> str:
    """Format a report for a person."""
    lines = [f"cluster     {report['state']}  ({'healthy' if report['healthy'] else 'NOT healthy'})"]
    lines += [
        f"{name:<11} {report[name]}"
        for name in ("kubeconfig", "bin", "logs", "netns", "network", "services", "pods", "dns")
    ]
    lines += [
        f"API server  {report['api_server']}",
        f"memory      {report['resident_mib']} MiB resident, pods included",
        "",
    ]
    lines.append(f"{'component':<20} {'pid':>8} {'age':>8} {'memory':>10}")
    for component in report["components"]:
        if component["running"]:
            age, memory = f"{component['age_seconds']} s", f"{component['resident_mib']} MiB"
            lines.append(f"{component['role']:<20} {component['pid']:>8} {age:>8} {memory:>10}")
        else:
            lines.append(f"{component['role']:<20}  not running; see {report['logs']}/{component['role']}.log")
    lines += ["", f"{'node':<20} {'ready':<6} {'GPUs':>5}  NVLink domain"]
    fake = [node for node in report["nodes"] if node["fake"]]
    for node in report["nodes"]:
        if not node["fake"]:
            ready = "yes" if node["ready"] else "NO"
            lines.append(f"{node['name']:<20} {ready:<6} {node['gpus']:>5}  {node['domain'] or '-'}")
    held = {image for node in report["nodes"] for image in node["images"]}
    lines += ["", "images", *(f"  {image}" for image in sorted(held))] if held else []
    if fake:
        ready_count, gpus = sum(node["ready"] for node in fake), sum(node["gpus"] for node in fake)
        lines.append(
            f"KWOK: {ready_count} of {len(fake)} nodes ready, {gpus} GPUs in {len({n['domain'] for n in fake})} domains"
        )
    if report["trouble"]:
        lines.append(f"\n{report['trouble']}")
    return "\n".join(lines)
