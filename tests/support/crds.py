"""The CRDs of this tree on a cluster, for tests that need them without the chart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from disagg_crds.crd import KINDS
from tests.support.kube import Kube

FOLDER = Path(__file__).resolve().parents[2] / "crds"
MARK = "disagg.dev/test"
NAMES = tuple(kind.crd_name for kind in KINDS)


@contextmanager
def installed_crds(kubeconfig: Path) -> Iterator[Kube]:
    """Apply them; take them away again unless they were there before, because the chart wants to own its CRDs.

    Those of an earlier run that was killed carry a mark, and count as ours.
    """
    kube = Kube(kubeconfig)
    found = kube("get", "crd", *NAMES, "--ignore-not-found", "-o", "name").split()
    marked = kube("get", "crd", "--selector", MARK, "-o", "name").split()
    kube("apply", "--server-side", "--force-conflicts", *(f"--filename={FOLDER / kind.file_name}" for kind in KINDS))
    foreign = set(found) - set(marked)
    if not foreign:
        kube("label", "crd", *NAMES, f"{MARK}=true", "--overwrite")
    for name in NAMES:
        kube("wait", f"crd/{name}", "--for=condition=Established", "--timeout=60s")
    try:
        yield kube
    finally:
        if not foreign:
            kube("delete", "crd", *NAMES, "--wait=true", "--timeout=60s", "--ignore-not-found")
