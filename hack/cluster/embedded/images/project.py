"""The images that a cluster is given: a base to run anything in, the project's own, and Prometheus.

In: the working tree. Out: images in the store, built again only when something that goes into them has changed.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

from embedded.errors import SpecError
from embedded.images.base import SUITE, base_key, ensure_base
from embedded.images.load import full_name
from embedded.images.store import Image, Store
from embedded.shell import say

ROOT = Path(__file__).resolve().parents[4]
DEFAULT_TAG = "disagg:dev"
BASE_TAG = f"disagg-base:{SUITE}"
PROMETHEUS_TAG = "disagg-prometheus:dev"
_PROMETHEUS = ROOT / "hack/cluster/images/prometheus"
KINDS = ("base", "disagg", "prometheus")


def project_inputs(root: Path) -> list[Path]:
    """List every file that goes into the project's image: the recipe, the lock file, the packages of the wheel."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    files = [
        root / name for name in ("Dockerfile", ".dockerignore", "pyproject.toml", "uv.lock", "README.md", "LICENSE")
    ]
    for package in packages:
        files += [path for path in (root / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(path for path in files if path.is_file())


def content_key(root: Path, files: Iterable[Path], *, extra: str = "") -> str:
    """Hash the names and contents of files."""
    digest = hashlib.sha256(extra.encode())
    for path in files:
        digest.update(f"\0{path.relative_to(root)}\0{path.stat().st_mode & 0o111}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def build_all(kinds: Iterable[str], *, cache: Path, tag: str = DEFAULT_TAG) -> list[Image]:
    """Build the images of these kinds and return them."""
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise SpecError(f"there is no image called {', '.join(unknown)}; there are {', '.join(KINDS)}")
    store = Store(cache / "images")
    builders = {"base": _base, "disagg": lambda store: _disagg(store, tag), "prometheus": _prometheus}
    with store.writing():
        return [builders[kind](store) for kind in kinds]


def _base(store: Store) -> Image:
    return _when_changed(store, BASE_TAG, key=base_key(), build=lambda base: base)


def _disagg(store: Store, tag: str) -> Image:
    def build(base: str) -> str:
        store.build(f"localhost/{tag}", dockerfile=ROOT / "Dockerfile", context=ROOT, arguments={"BASE_IMAGE": base})
        return f"localhost/{tag}"

    key = content_key(ROOT, project_inputs(ROOT), extra=base_key())
    return _when_changed(store, tag, key=key, build=build)


def _prometheus(store: Store) -> Image:
    def build(base: str) -> str:
        image = f"localhost/{PROMETHEUS_TAG}"
        store.build(image, dockerfile=_PROMETHEUS / "Dockerfile", context=_PROMETHEUS, arguments={"BASE_IMAGE": base})
        return image

    key = content_key(ROOT, [_PROMETHEUS / "Dockerfile"], extra=base_key())
    return _when_changed(store, PROMETHEUS_TAG, key=key, build=build)


def _when_changed(store: Store, tag: str, *, key: str, build: Callable[[str], str]) -> Image:
    """Return the image of this tag, building it first unless the one in the store was made from the same inputs.

    The note beside the store says from which inputs each image was made.
    """
    name, notes = full_name(tag), store.folder / "made-from.json"
    made_from: dict[str, list[str]] = json.loads(notes.read_text()) if notes.exists() else {}
    found = store.find(name)
    if found and made_from.get(name) == [key, found.digest]:
        say(f"{tag}: unchanged")
        return found
    say(f"{tag}: building")
    image = store.publish(build(ensure_base(store)), name=name)
    made_from[name] = [key, image.digest]
    partial = notes.with_name(".made-from.partial")
    partial.write_text(json.dumps(made_from, indent=2) + "\n")
    partial.replace(notes)
    return image
