"""The Go programs a cluster runs: built once from pinned modules, kept outside the tree.

In: the folders of `hack/cluster/build/`, each a Go module with a lock file (go.sum) of its own. Out: a folder in the
cache for each, named by a hash of everything that decides what comes out, so a changed pin is a new folder and an
unchanged one is never built again. Invariant: a folder that exists is complete; a build happens in a folder beside it
that is renamed at the end. A build that was broken off goes on where it was, because Go keeps what it has compiled.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from embedded.errors import BuildError
from embedded.gobuild import compile_program
from embedded.lock import locked
from embedded.shell import run, say

SOURCES = Path(__file__).resolve().parent.parent / "build"


@dataclass(frozen=True)
class Module:
    """One Go module of `hack/cluster/build/` and the programs that come out of it."""

    name: str
    package: str
    pinned: str
    programs: tuple[str, ...]
    version_flags: tuple[str, ...] = ()
    extra_files: str = ""

    @property
    def folder(self) -> Path:
        """Where go.mod and go.sum are."""
        return SOURCES / self.name


_BASE = "k8s.io/component-base/version"
KUBERNETES = Module(
    name="kubernetes",
    package=".",
    pinned="k8s.io/kubernetes",
    programs=("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"),
    version_flags=(
        f"-X {_BASE}.gitVersion={{version}}",
        f"-X {_BASE}.gitMajor={{major}}",
        f"-X {_BASE}.gitMinor={{minor}}",
        f"-X {_BASE}.gitTreeState=clean",
    ),
)
ETCD = Module(name="etcd", package="go.etcd.io/etcd/server/v3", pinned="go.etcd.io/etcd/server/v3", programs=("etcd",))
COREDNS = Module(
    name="coredns", package="github.com/coredns/coredns", pinned="github.com/coredns/coredns", programs=("coredns",)
)
HELM = Module(
    name="helm",
    package="helm.sh/helm/v3/cmd/helm",
    pinned="helm.sh/helm/v3",
    programs=("helm",),
    version_flags=(
        "-X helm.sh/helm/v3/internal/version.version={version}",
        "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor={kube_major}",
        "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor={kube_minor}",
    ),
)
KWOK = Module(
    name="kwok",
    package="sigs.k8s.io/kwok/cmd/kwok",
    pinned="sigs.k8s.io/kwok",
    programs=("kwok",),
    extra_files="kustomize/stage",
)
PAUSE = Module(name="pause", package=".", pinned="", programs=("pause",))
MODULES = {module.name: module for module in (KUBERNETES, ETCD, COREDNS, HELM, KWOK, PAUSE)}


def pinned_version(module: Module) -> str:
    """Read the version of the module's main dependency from its go.mod (v0.0.0 where there is none)."""
    text = (module.folder / "go.mod").read_text()
    found = (
        re.search(rf"^\s*(?:require\s+)?{re.escape(module.pinned)} (v\S+)", text, re.MULTILINE)
        if module.pinned
        else None
    )
    return found.group(1) if found else "v0.0.0"


def link_flags(module: Module) -> str:
    """Compose what `go build -ldflags` gets: no debug tables, and the versions that the programs report."""
    version, kubernetes = pinned_version(module), pinned_version(KUBERNETES)
    (major, minor), (kube_major, kube_minor) = (v.removeprefix("v").split(".")[:2] for v in (version, kubernetes))
    values = {"version": version, "major": major, "minor": minor, "kube_major": kube_major, "kube_minor": kube_minor}
    return " ".join(["-s", "-w", *(flag.format(**values) for flag in module.version_flags)])


def cache_key(module: Module, *, go_version: str) -> str:
    """Hash everything that decides what the build gives: module files, sources, flags, the compiler."""
    digest = hashlib.sha256(f"{go_version}\n{module.package}\n{link_flags(module)}\n{module.extra_files}\n".encode())
    for path in sorted([*module.folder.glob("go.*"), *module.folder.glob("*.go")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def go_version() -> str:
    """Ask the Go toolchain for its version, e.g. `go1.26.1 linux/amd64`."""
    return run(["go", "version"]).strip().removeprefix("go version ")


def folder_of(module: Module, *, cache: Path) -> Path:
    """Where the programs of the module are, or will be, in the cache."""
    return cache / "cluster" / "bin" / f"{module.name}-{cache_key(module, go_version=go_version())}"


def built(module: Module, *, cache: Path) -> Path:
    """Return the folder with the module's programs, building them first where the cache has none."""
    target = folder_of(module, cache=cache)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.parent / f".{module.name}.lock", purpose=f"another build of {module.name}"):
        if target.is_dir():
            return target
        for leftover in target.parent.glob(f".partial-{module.name}-*"):
            shutil.rmtree(leftover)
        partial = Path(tempfile.mkdtemp(prefix=f".partial-{module.name}-", dir=target.parent))
        say(f"building {module.name} {pinned_version(module)} (once; kept in {target.parent})")
        compile_program(
            module.folder, package=module.package, output=partial / module.name, link_flags=link_flags(module)
        )
        for program in module.programs:
            if program != module.name:
                (partial / program).symlink_to(module.name)
        if module.extra_files:
            _copy_from_module(module, into=partial)
        partial.chmod(0o755)
        partial.rename(target)
    _forget_older(module, keep=target)
    return target


def program(name: str, *, cache: Path) -> Path:
    """Return the path of one program, building its module where needed."""
    for module in MODULES.values():
        if name in module.programs:
            return built(module, cache=cache) / name
    raise BuildError(f"no module of {SOURCES} builds {name!r}; the modules are {', '.join(MODULES)}")


def _copy_from_module(module: Module, *, into: Path) -> None:
    """Copy data files that the pinned module ships beside its code from Go's module cache."""
    source = run(["go", "list", "-m", "-f", "{{.Dir}}", module.pinned], cwd=module.folder).strip()
    if not (Path(source) / module.extra_files).is_dir():
        raise BuildError(
            f"{module.pinned} has no folder {module.extra_files} any more: the pin in go.mod moved too far"
        )
    shutil.copytree(Path(source) / module.extra_files, into / "files", copy_function=shutil.copyfile)
    for path in [into / "files", *(into / "files").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def _forget_older(module: Module, *, keep: Path) -> None:
    """Remove builds of earlier pins that nothing has used for a month."""
    month_seconds = 30 * 24 * 3600
    newest = keep.stat().st_mtime
    for other in keep.parent.glob(f"{module.name}-*"):
        if other != keep and newest - max(other.stat().st_mtime, (other / module.name).stat().st_atime) > month_seconds:
            shutil.rmtree(other, ignore_errors=True)


def min_go_version() -> tuple[int, int]:
    """Read the newest `go` line of all modules: the compiler must be at least that."""
    found = [re.search(r"^go (\d+)\.(\d+)", path.read_text(), re.MULTILINE) for path in SOURCES.glob("*/go.mod")]
    return max((int(match.group(1)), int(match.group(2))) for match in found if match)
