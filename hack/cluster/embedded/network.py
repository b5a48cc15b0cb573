"""The network of a cluster: one namespace, one veth pair, one route on the host.

In: names and subnets. Out: a namespace in which the control plane has an address on the veth pair and every node has
one on a bridge; the host reaches all of 10.x.0.0/16 through the pair. Nothing is written to the host's firewall and
the host forwards nothing, so pods can't reach beyond the host. Removing the namespace and the pair removes all of it.
"""

from __future__ import annotations

import json
import socket
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from embedded.names import Names, Subnets
from embedded.shell import run, say, succeeds

_BRIDGE = "nodes"
_INSIDE = "eth0"


def inside(names: Names, *argv: str) -> list[str]:
    """Make a command run in the cluster's network (`ip netns exec` would also replace /sys, and hide the cgroups)."""
    return ["nsenter", f"--net={names.netns}", "--", *argv]


def host_networks(names: Names) -> list[IPv4Network]:
    """List the networks that the host routes by anything but this cluster's own pair."""
    networks = []
    for route in _ip("route", "show", "table", "all"):
        if route["dst"] != "default" and route.get("dev") != names.veth and ":" not in route["dst"]:
            networks.append(IPv4Network(route["dst"], strict=False))
    return networks


def exists(names: Names) -> bool:
    """Tell whether the namespace is there: then its file is a mount (after a reboot only the file is left)."""
    return names.netns.exists() and names.netns.stat().st_dev != names.state.stat().st_dev


def link_exists(names: Names) -> bool:
    """Tell whether the host's end of the pair is there."""
    return succeeds(["ip", "link", "show", names.veth])


def ensure(names: Names, subnets: Subnets, *, nodes: int) -> None:
    """Make namespace, pair, bridge, addresses and route where they are missing."""
    if not exists(names):
        remove(names)
        say(f"network: namespace {names.netns}, addresses {subnets.all}")
        names.netns.touch()
        run(["unshare", f"--net={names.netns}", "true"])
    if not link_exists(names):
        run(["ip", "link", "add", names.veth, "type", "veth", "peer", "name", _INSIDE, "netns", str(names.netns)])
    run(["ip", "address", "replace", f"{subnets.host}/24", "dev", names.veth])
    run(["ip", "link", "set", names.veth, "up"])
    run(["ip", "route", "replace", str(subnets.all), "via", subnets.control_plane, "dev", names.veth])
    commands = [
        "link set lo up",
        f"address replace {subnets.control_plane}/24 dev {_INSIDE}",
        f"link set {_INSIDE} up",
        f"route replace default via {subnets.host}",
    ]
    if not succeeds(inside(names, "ip", "link", "show", _BRIDGE)):
        commands += [f"link add {_BRIDGE} type bridge"]
    commands += [f"link set {_BRIDGE} up"]
    commands += [f"address replace {subnets.node(index)}/32 dev {_BRIDGE}" for index in range(1, nodes + 1)]
    run(inside(names, "ip", "-batch", "-"), stdin="\n".join(commands) + "\n")
    for setting in ("net.ipv4.ip_forward", "net.ipv4.conf.all.route_localnet", *_bridge_settings()):
        run(inside(names, "sysctl", "-qw", f"{setting}=1"))


def answers(address: str, port: int) -> bool:
    """Tell whether something accepts TCP connections there, seen from the host."""
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False


def remove(names: Names) -> None:
    """Remove everything that `ensure` made; what is already gone is no error."""
    if link_exists(names):
        run(["ip", "link", "delete", names.veth])
    while exists(names):
        run(["umount", "--no-mtab", "--lazy", names.netns])
    names.netns.unlink(missing_ok=True)


def _bridge_settings() -> list[str]:
    """Let a service's answer from a pod on the same bridge pass the rules, on kernels that can switch that off."""
    key = "net.bridge.bridge-nf-call-iptables"
    return [key] if Path("/proc/sys", key.replace(".", "/", 2)).exists() else []


def _ip(*arguments: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(run(["ip", "-4", "-json", *arguments]) or "[]")
    return listed
