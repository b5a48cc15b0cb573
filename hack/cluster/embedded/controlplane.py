"""etcd, the API server, its controllers, kube-proxy and cluster DNS, each one process in the cluster's network.

In: a cluster with its keys made. Out: a ready API server, and everything else started. The order is the order of
dependence; a role that runs already is left alone unless what it was started with has changed.
"""

from __future__ import annotations

from pathlib import Path

from embedded import dns
from embedded.kubectl import is_ready
from embedded.layout import Cluster
from embedded.shell import say, wait_until

_ETCD_URL = "http://127.0.0.1:2379"
# In this order they are stopped: an API server whose etcd is gone lingers.
CONTROLLERS = ("controller-manager", "scheduler", "proxy", "coredns", "kwok")


def start(cluster: Cluster) -> None:
    """Bring up etcd and the API server, wait until it answers, then start what depends on it."""
    started = cluster.ensure_running("etcd", _etcd(cluster))
    started |= cluster.ensure_running("apiserver", _apiserver(cluster), files=_key_files(cluster, "apiserver", "ca"))
    if started:
        say("waiting for the API server")
    wait_until(
        lambda: is_ready(cluster),
        what="the API server's becoming ready",
        timeout_seconds=120,
        alive=lambda: cluster.why_dead("etcd") or cluster.why_dead("apiserver"),
    )
    cluster.ensure_running("controller-manager", _controller_manager(cluster))
    cluster.ensure_running("scheduler", _scheduler(cluster))
    cluster.ensure_running("proxy", _proxy(cluster))
    dns.start(cluster)


def _key_files(cluster: Cluster, *names: str) -> tuple[Path, ...]:
    return tuple(cluster.pki.folder / f"{name}.crt" for name in names)


def _etcd(cluster: Cluster) -> list[str]:
    return [
        str(cluster.program("etcd")),
        f"--data-dir={cluster.state / 'etcd'}",
        f"--listen-client-urls={_ETCD_URL}",
        f"--advertise-client-urls={_ETCD_URL}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # Nothing here must outlive a power cut, and disks of build machines are slow.
        "--log-level=warn",
    ]


def _apiserver(cluster: Cluster) -> list[str]:
    pki, subnets = cluster.pki, cluster.subnets
    return [
        str(cluster.program("kube-apiserver")),
        f"--etcd-servers={_ETCD_URL}",
        f"--bind-address={subnets.control_plane}",
        f"--advertise-address={subnets.control_plane}",
        f"--service-cluster-ip-range={subnets.services}",
        f"--cert-dir={pki.folder}",
        f"--tls-cert-file={pki.path('apiserver.crt')}",
        f"--tls-private-key-file={pki.path('apiserver.key')}",
        f"--client-ca-file={pki.path('ca.crt')}",
        f"--kubelet-client-certificate={pki.path('kubelet-client.crt')}",
        f"--kubelet-client-key={pki.path('kubelet-client.key')}",
        f"--kubelet-certificate-authority={pki.path('ca.crt')}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki.path('sa.key')}",
        f"--service-account-signing-key-file={pki.path('sa.key')}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        # The aggregation layer: an APIService (a metrics API, say) can be registered.
        f"--requestheader-client-ca-file={pki.path('front-proxy-ca.crt')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki.path('front-proxy.crt')}",
        f"--proxy-client-key-file={pki.path('front-proxy.key')}",
        "--enable-aggregator-routing=true",
        "--profiling=false",
    ]


def _controller_manager(cluster: Cluster) -> list[str]:
    kubeconfig, pki = cluster.pki.path("controller-manager.conf"), cluster.pki
    return [
        str(cluster.program("kube-controller-manager")),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--service-account-private-key-file={pki.path('sa.key')}",
        f"--root-ca-file={pki.path('ca.crt')}",
        f"--cluster-signing-cert-file={pki.path('ca.crt')}",
        f"--cluster-signing-key-file={pki.path('ca.key')}",
        f"--requestheader-client-ca-file={pki.path('front-proxy-ca.crt')}",
        "--use-service-account-credentials=true",
        f"--flex-volume-plugin-dir={cluster.state / 'volume-plugins'}",  # It is made at start, by default below /usr.
        "--leader-elect=false",
        "--node-monitor-grace-period=20s",  # A lost node is noticed while a test waits for it.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--profiling=false",
    ]


def _scheduler(cluster: Cluster) -> list[str]:
    kubeconfig = cluster.pki.path("scheduler.conf")
    return [
        str(cluster.program("kube-scheduler")),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--profiling=false",
    ]


def _proxy(cluster: Cluster) -> list[str]:
    """One kube-proxy for all nodes: they share the network that it programs."""
    return [
        str(cluster.program("kube-proxy")),
        f"--kubeconfig={cluster.pki.path('proxy.conf')}",
        f"--cluster-cidr={cluster.subnets.pods}",
        "--proxy-mode=iptables",
        "--hostname-override=node-1",
        "--healthz-bind-address=127.0.0.1:10256",
        "--metrics-bind-address=127.0.0.1:10249",
        "--oom-score-adj=0",
        "--iptables-min-sync-period=200ms",
        # Limits on connection tracking belong to the whole machine: leave them as they are.
        "--conntrack-max-per-core=0",
        "--conntrack-min=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
    ]
