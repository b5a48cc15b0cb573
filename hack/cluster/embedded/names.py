"""What a cluster is called, and which addresses it has: all derived from the path of its state folder.

In: the state folder, and which 10.x.0.0/16 networks the host already routes. Out: names and subnets. Two folders
have different names; the network is the first free one from a start that the folder's path gives, so the same
folder gets the same addresses again unless someone took them meanwhile.

    10.x.0.0/24    host (.1) and control plane (.2)
    10.x.1.0/24    one address for each real node
    10.x.32.0/19   addresses that KWOK hands to fake pods (never routed to anything)
    10.x.64.0/18   services; .10 is the DNS service
    10.x.128.0/17  pods; node i has 10.x.(127+i).0/24
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from embedded.errors import SpecError

MAX_NODES = 64
_FIRST_OCTET, _LAST_OCTET = 70, 239
# A unix socket's path is at most 107 bytes; the longest one below a state folder is node-64/kubelet/pod-resources/….
_MAX_STATE_LENGTH = 50
# A node sees an empty folder of its own in these places, so a state folder in one of them would vanish from its sight.
HIDDEN_IN_NODES = ("/var/lib", "/var/log", "/run")


@dataclass(frozen=True)
class Names:
    """The names of everything outside the state folder that belongs to one cluster."""

    state: Path
    tag: str

    @property
    def netns(self) -> Path:
        """File that keeps the network namespace and by which it is entered (`nsenter --net=FILE`)."""
        return self.state / "netns"

    @property
    def veth(self) -> str:
        """Name of the host's end of the veth pair (an interface's name has at most 15 characters)."""
        return f"dg{self.tag}"

    @property
    def cgroup(self) -> str:
        """Cgroup, relative to the root of each hierarchy, below which every pod runs."""
        return f"disagg-{self.tag}"


@dataclass(frozen=True)
class Subnets:
    """The addresses of one cluster: 10.`octet`.0.0/16."""

    octet: int

    @property
    def all(self) -> IPv4Network:
        """The whole network; the host has one route to it."""
        return IPv4Network(f"10.{self.octet}.0.0/16")

    @property
    def host(self) -> str:
        """Address of the host's end of the veth pair."""
        return f"10.{self.octet}.0.1"

    @property
    def control_plane(self) -> str:
        """Address of the API server, of CoreDNS and of everything else that is no node."""
        return f"10.{self.octet}.0.2"

    @property
    def services(self) -> str:
        """Network of the ClusterIPs."""
        return f"10.{self.octet}.64.0/18"

    @property
    def kubernetes_service(self) -> str:
        """ClusterIP of default/kubernetes: the first one of the network, by Kubernetes' rule."""
        return f"10.{self.octet}.64.1"

    @property
    def dns_service(self) -> str:
        """ClusterIP of kube-system/kube-dns."""
        return f"10.{self.octet}.64.10"

    @property
    def pods(self) -> str:
        """Network of the pods of all real nodes."""
        return f"10.{self.octet}.128.0/17"

    @property
    def fake_pods(self) -> str:
        """Network from which KWOK gives addresses to pods that do not run."""
        return f"10.{self.octet}.32.0/19"

    def node(self, index: int) -> str:
        """Address of real node `index` (from 1)."""
        return f"10.{self.octet}.1.{index}"

    def node_pods(self, index: int) -> str:
        """Network of the pods of real node `index` (from 1)."""
        return f"10.{self.octet}.{127 + index}.0/24"


def names_for(state: Path) -> Names:
    """Derive the names; raises SpecError when the folder can't hold a cluster."""
    if not state.is_absolute():
        raise SpecError(f"the state folder must be an absolute path, not {state}")
    if len(str(state)) > _MAX_STATE_LENGTH:
        raise SpecError(
            f"the state folder {state} has {len(str(state))} characters; the sockets below it allow"
            f" {_MAX_STATE_LENGTH}: choose a shorter path, such as /var/tmp/disagg-cluster"
        )
    for hidden in HIDDEN_IN_NODES:
        if state.is_relative_to(hidden) or state.is_relative_to("/var/run"):
            raise SpecError(
                f"the state folder can't be below {hidden}: choose another, such as /var/tmp/disagg-cluster"
            )
    return Names(state=state, tag=hashlib.sha256(str(state).encode()).hexdigest()[:8])


def choose_subnets(state: Path, taken: Collection[IPv4Network]) -> Subnets:
    """Choose the first free 10.x.0.0/16, starting at a place that depends on the folder.

    `taken` are the networks that the host routes now. Raises SpecError when none is free.
    """
    count = _LAST_OCTET - _FIRST_OCTET + 1
    start = int.from_bytes(hashlib.sha256(b"subnet:" + str(state).encode()).digest()[:4], "big") % count
    for step in range(count):
        subnets = Subnets(octet=_FIRST_OCTET + (start + step) % count)
        if not any(network.overlaps(subnets.all) for network in taken):
            return subnets
    raise SpecError(f"every network from 10.{_FIRST_OCTET}.0.0/16 to 10.{_LAST_OCTET}.0.0/16 is in use on this host")
