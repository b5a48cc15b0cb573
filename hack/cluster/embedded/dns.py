"""Cluster DNS: one CoreDNS process, behind the Service `kube-system/kube-dns`.

Pods ask the Service's address; kube-proxy sends them to the control plane's address, where CoreDNS listens. Names
outside the cluster get an answer at once (there are none), because pods reach nothing outside.
"""

from __future__ import annotations

from typing import Any

from embedded.kubectl import apply
from embedded.layout import Cluster

DOMAIN = "cluster.local"


def start(cluster: Cluster) -> None:
    """Register the Service and its permissions, and start CoreDNS."""
    apply(cluster, *_objects(cluster))
    corefile = cluster.state / "Corefile"
    corefile.write_text(_corefile(cluster))
    argv = [str(cluster.program("coredns")), "-conf", str(corefile)]
    cluster.ensure_running("coredns", argv, files=(corefile,))


def _corefile(cluster: Cluster) -> str:
    address = cluster.subnets.control_plane
    return f"""\
{DOMAIN}:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {address}
    errors
    health {address}:8080
    ready {address}:8181
    kubernetes {{
        kubeconfig {cluster.pki.path("coredns.conf")} disagg
        pods insecure
        ttl 5
    }}
}}
.:53 {{
    bind {address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def _objects(cluster: Cluster) -> list[dict[str, Any]]:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"}
    ports = [("dns", "UDP"), ("dns-tcp", "TCP")]
    labels = {"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "system:coredns"},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "system:coredns"},
            "roleRef": role,
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}],
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
            "spec": {
                "clusterIP": cluster.subnets.dns_service,
                "ports": [{"name": n, "protocol": p, "port": 53, "targetPort": 53} for n, p in ports],
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns-host",
                "namespace": "kube-system",
                "labels": {
                    "kubernetes.io/service-name": "kube-dns",
                    "endpointslice.kubernetes.io/managed-by": "disagg-cluster",
                },
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [cluster.subnets.control_plane], "conditions": {"ready": True}}],
            "ports": [{"name": n, "protocol": p, "port": 53} for n, p in ports],
        },
    ]
