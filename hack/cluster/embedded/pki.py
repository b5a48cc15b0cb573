"""Certificates and kubeconfigs, made with the openssl program.

In: a state folder. Out: two authorities (the cluster's and the one of the aggregation layer), a signing key for
service accounts, and for each program a certificate, a key and a kubeconfig. Existing files are kept, so that a
second `up` changes nothing; a certificate is made again when the names or addresses it must carry have changed.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from embedded.names import Subnets
from embedded.shell import run

_DAYS = "365"
_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


@dataclass(frozen=True)
class Pki:
    """The folder that holds all keys of one cluster."""

    folder: Path

    def path(self, name: str) -> str:
        """Path of one file, e.g. `path("ca.crt")`."""
        return str(self.folder / name)


def ensure_authorities(pki: Pki) -> None:
    """Make the authorities and the service accounts' key where they are missing."""
    pki.folder.mkdir(parents=True, exist_ok=True)
    pki.folder.chmod(0o700)
    for name, subject in (("ca", "/CN=kubernetes-ca"), ("front-proxy-ca", "/CN=front-proxy-ca")):
        if not (pki.folder / f"{name}.crt").exists():
            target = ["-keyout", pki.path(f"{name}.key"), "-out", pki.path(f"{name}.crt.partial")]
            run(["openssl", "req", "-x509", *_NEW_KEY, *target, "-subj", subject, "-days", _DAYS])
            (pki.folder / f"{name}.crt.partial").rename(pki.folder / f"{name}.crt")
    if not (pki.folder / "sa.key").exists():
        run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", pki.path("sa.key.partial")])
        (pki.folder / "sa.key.partial").rename(pki.folder / "sa.key")


def ensure_certificate(pki: Pki, name: str, *, subject: str, hosts: tuple[str, ...] = (), ca: str = "ca") -> None:
    """Make `name`.crt and `name`.key for `subject` (`/O=group/CN=user`), valid for the hosts (`DNS:x`, `IP:y`)."""
    extensions = "extendedKeyUsage=serverAuth,clientAuth\nkeyUsage=digitalSignature,keyEncipherment\n"
    extensions += f"subjectAltName={','.join(hosts)}\n" if hosts else ""
    wanted = f"# {subject}\n{extensions}"
    extension_file, certificate = pki.folder / f"{name}.ext", pki.folder / f"{name}.crt"
    if certificate.exists() and extension_file.exists() and extension_file.read_text() == wanted:
        return
    extension_file.write_text(wanted)
    request = run(["openssl", "req", "-new", *_NEW_KEY, "-keyout", pki.path(f"{name}.key"), "-subj", subject])
    sign = ["-CA", pki.path(f"{ca}.crt"), "-CAkey", pki.path(f"{ca}.key"), "-CAcreateserial", "-days", _DAYS]
    run(
        ["openssl", "x509", "-req", *sign, "-extfile", str(extension_file), "-out", f"{certificate}.partial"],
        stdin=request,
    )
    Path(f"{certificate}.partial").rename(certificate)


def ensure_kubeconfig(pki: Pki, name: str, *, subnets: Subnets, path: Path) -> None:
    """Write a kubeconfig that carries the certificate `name` itself, so that the file can be copied anywhere."""
    ca, certificate, key = (
        base64.b64encode((pki.folder / file).read_bytes()).decode() for file in ("ca.crt", f"{name}.crt", f"{name}.key")
    )
    text = f"""\
apiVersion: v1
kind: Config
clusters:
- name: disagg
  cluster:
    server: https://{subnets.control_plane}:6443
    certificate-authority-data: {ca}
users:
- name: {name}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: disagg
  context:
    cluster: disagg
    user: {name}
current-context: disagg
"""
    if path.exists() and path.read_text() == text:
        return
    partial = path.with_name(path.name + ".partial")
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.rename(path)


def ensure_all(pki: Pki, *, subnets: Subnets, nodes: dict[str, str]) -> None:
    """Make every key, certificate and kubeconfig of a cluster; `nodes` maps each real node to its address."""
    ensure_authorities(pki)
    server_hosts = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    ensure_certificate(
        pki,
        "apiserver",
        subject="/CN=kube-apiserver",
        hosts=(
            *(f"DNS:{host}" for host in [*server_hosts, "localhost"]),
            *(f"IP:{address}" for address in ("127.0.0.1", subnets.kubernetes_service, subnets.control_plane)),
        ),
    )
    ensure_certificate(pki, "front-proxy", subject="/CN=front-proxy-client", ca="front-proxy-ca")
    ensure_certificate(pki, "kubelet-client", subject="/O=system:masters/CN=kube-apiserver-kubelet-client")
    users = {
        "admin": "/O=system:masters/CN=kubernetes-admin",
        "controller-manager": "/CN=system:kube-controller-manager",
        "scheduler": "/CN=system:kube-scheduler",
        "proxy": "/CN=system:kube-proxy",
        "coredns": "/CN=system:coredns",
    }
    for name, subject in users.items():
        ensure_certificate(pki, name, subject=subject)
    for name, address in nodes.items():
        subject = f"/O=system:nodes/CN=system:node:{name}"
        ensure_certificate(pki, name, subject=subject, hosts=(f"DNS:{name}", f"IP:{address}"))
    for name in [*users, *nodes]:
        target = pki.folder.parent / "kubeconfig" if name == "admin" else pki.folder / f"{name}.conf"
        ensure_kubeconfig(pki, name, subnets=subnets, path=target)
