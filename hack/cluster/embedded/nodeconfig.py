"""The configuration files of one node, as values: containerd's, the kubelet's, the pod network's. Pure.

Why the less usual lines are there is said beside them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embedded.dns import DOMAIN
from embedded.images.archive import PAUSE_IMAGE
from embedded.layout import Cluster
from embedded.names import Subnets
from embedded.topology import Node

# What a kubelet sets on its machine at start (it writes only where the value differs).
KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}


def containerd_config(home: Path, *, socket: Path) -> str:
    """Configuration of the node's containerd: images in the state folder, running state in the node's own /run."""
    return f"""\
version = 2
root = "{home}/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE no process may be protected from the out-of-memory killer; asking for it kills the pod.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{home}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


def cni_config(subnets: Subnets, *, index: int) -> dict[str, Any]:
    """Pod network: a bridge for each node, all in the cluster's one network namespace."""
    bridge = {
        "type": "bridge",
        "bridge": f"cni{index}",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": "/run/cni-addresses",
            "ranges": [[{"subnet": subnets.node_pods(index)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": f"pods-{index}", "plugins": [bridge, ports]}


def kubelet_config(cluster: Cluster, *, node: Node, socket: Path) -> dict[str, Any]:
    """KubeletConfiguration of one node."""
    pki, home = cluster.pki, cluster.state / node.name
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": cluster.subnets.node(node.index),
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": pki.path("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": pki.path(f"{node.name}.crt"),
        "tlsPrivateKeyFile": pki.path(f"{node.name}.key"),
        "containerRuntimeEndpoint": f"unix://{socket}",
        "podLogsDir": str(cluster.logs / "pods" / node.name),
        "volumePluginDir": str(home / "kubelet/volume-plugins"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cluster.names.cgroup}/{node.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "clusterDNS": [cluster.subnets.dns_service],
        "clusterDomain": DOMAIN,
        "resolvConf": "",
        "maxPods": 200,
        "serializeImagePulls": False,
        # The disk is the host's: nothing is evicted and no image is thrown away because others fill it.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        # A node's heartbeat comes often enough that the 20 s grace period survives a busy machine.
        "nodeLeaseDurationSeconds": 16,
        "nodeStatusUpdateFrequency": "5s",
    }
