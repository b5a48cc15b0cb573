"""Building with buildah, and one folder that holds what was built.

In: a Dockerfile and its context. Out: an image in an OCI layout in the cache. The layout keeps every layer once, as
a file named by its hash, so an image whose last layer changed costs a node only that layer (`load`).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedded.errors import BuildError
from embedded.lock import locked
from embedded.shell import run, say, succeeds

_REF_NAME = "org.opencontainers.image.ref.name"
_DAY_SECONDS = 24 * 3600
_MAX_LAYERS_KEPT = 300
_PRIVATE_MOUNTS = ("unshare", "--mount", "--propagation", "private")
_CERTIFICATES = Path("/etc/ssl/certs")


@dataclass(frozen=True)
class Blob:
    """One file of an image: its hash (`sha256:…`) and where it lies."""

    digest: str
    path: Path


@dataclass(frozen=True)
class Image:
    """One built image: its full name, its manifest as the layout lists it, and every file it consists of."""

    name: str
    descriptor: dict[str, Any]
    blobs: tuple[Blob, ...]

    @property
    def digest(self) -> str:
        """Hash of the manifest: two images with the same one are the same."""
        return str(self.descriptor["digest"])


@dataclass(frozen=True)
class Store:
    """Images in the cache folder: buildah's own storage, and the layout that nodes are loaded from."""

    folder: Path

    @property
    def layout(self) -> Path:
        """The OCI layout."""
        return self.folder / "layout"

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the store's lock."""
        with locked(self.folder / ".lock", purpose="another build of images"):
            yield

    def buildah(self, *arguments: str) -> list[str]:
        """Compose a buildah command on this store; layers are stacked by overlayfs where that works here.

        It runs in a mount namespace of its own, because it leaves its storage mounted, and all of it when it is killed.
        """
        driver = "overlay" if supports_overlay(self.folder) else "vfs"
        where = ["--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run")]
        return [*_PRIVATE_MOUNTS, "buildah", *where, "--storage-driver", driver, *arguments]

    def has(self, image: str) -> bool:
        """Tell whether buildah has an image of this name."""
        return succeeds(self.buildah("inspect", "--type", "image", image))

    def build(self, image: str, *, dockerfile: Path, context: Path, arguments: dict[str, str]) -> None:
        """Build an image by its Dockerfile, showing its steps; raises BuildError with the last lines."""
        options = ["--layers", "--network", "host", "--isolation", "chroot", "--file", str(dockerfile)]
        if _CERTIFICATES.is_dir():
            # An authority that only this machine trusts must be trusted by the build's steps too.
            options += ["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
        for name, value in arguments.items():
            options += ["--build-arg", f"{name}={value}"]
        _stream(self.buildah("build", *options, "--tag", image, str(context)), what=f"building {image}")
        if len(run(self.buildah("images", "--all", "--quiet")).split()) > _MAX_LAYERS_KEPT:
            # A build that was killed left its container, which holds images. Old layers that stay cost disk, no more.
            succeeds(self.buildah("rm", "--all"))
            succeeds(self.buildah("rmi", "--prune", "--force"))

    def publish(self, image: str, *, name: str) -> Image:
        """Write a built image to the layout under its full name."""
        self.layout.mkdir(parents=True, exist_ok=True)
        quick = ["--compression-format", "zstd", "--compression-level", "1"]
        run(self.buildah("push", "--quiet", *quick, image, f"oci:{self.layout}:{name}"), timeout_seconds=900)
        self._forget_unused()
        found = self.find(name)
        if found is None:
            raise BuildError(f"buildah wrote no {name} to {self.layout}: remove that folder and try again")
        return found

    def find(self, name: str) -> Image | None:
        """Look up an image of the layout by its full name; None where it, or a file of it, is missing."""
        for descriptor in self._index():
            if descriptor.get("annotations", {}).get(_REF_NAME) == name:
                blobs = self._blobs_of(descriptor)
                return Image(name, descriptor, blobs) if all(blob.path.is_file() for blob in blobs) else None
        return None

    def _index(self) -> list[dict[str, Any]]:
        try:
            manifests: list[dict[str, Any]] = json.loads((self.layout / "index.json").read_text())["manifests"]
        except FileNotFoundError:
            return []
        return manifests

    def _blob(self, digest: str) -> Blob:
        kind, _, value = digest.partition(":")
        return Blob(digest, self.layout / "blobs" / kind / value)

    def _blobs_of(self, descriptor: dict[str, Any]) -> tuple[Blob, ...]:
        top = self._blob(descriptor["digest"])
        if not top.path.is_file():
            return (top,)
        manifest = json.loads(top.path.read_text())
        return (top, *(self._blob(part["digest"]) for part in [manifest["config"], *manifest["layers"]]))

    def _forget_unused(self) -> None:
        """Remove files of images that were replaced (a day ago at least: another tree may be loading them)."""
        used = {blob.path for descriptor in self._index() for blob in self._blobs_of(descriptor)}
        for path in (self.layout / "blobs").glob("*/*"):
            if path not in used and time.time() - path.stat().st_mtime > _DAY_SECONDS:
                path.unlink()


def supports_overlay(folder: Path) -> bool:
    """Try whether overlayfs can be mounted with its upper layer in this folder (not where that is one itself)."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".overlay-") as scratch:
        for name in ("lower", "upper", "work", "merged"):
            (Path(scratch) / name).mkdir()
        options = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work"
        mount = ["mount", "--no-mtab", "-t", "overlay", "overlay", "-o", options, f"{scratch}/merged"]
        return succeeds([*_PRIVATE_MOUNTS, *mount])


def _stream(argv: list[str], *, what: str) -> None:
    said: list[str] = []
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if " STEP " in line or line.startswith("STEP "):
                say(f"  {line.strip()[:150]}")
    if process.returncode != 0:
        raise BuildError(f"{what} failed with exit status {process.returncode}:\n{''.join(said[-30:])}")
