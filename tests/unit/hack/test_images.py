"""Images: names as the kubelet asks for them, archives that leave out what a node has, inputs that are all watched."""

import hashlib
import io
import json
import tarfile
import tomllib
from pathlib import Path

import pytest

from embedded.errors import SpecError
from embedded.images.archive import PAUSE_IMAGE, write_program_image
from embedded.images.load import full_name, write_thin_archive
from embedded.images.project import ROOT, content_key, project_inputs
from embedded.images.store import Store

_REF = "org.opencontainers.image.ref.name"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("disagg:dev", "docker.io/library/disagg:dev"),
        ("disagg", "docker.io/library/disagg:latest"),
        ("someone/disagg:1", "docker.io/someone/disagg:1"),
        ("localhost/disagg:1", "localhost/disagg:1"),
        ("registry.example:5000/disagg", "registry.example:5000/disagg:latest"),
    ],
)
def test_a_short_name_is_completed(image: str, expected: str) -> None:
    assert full_name(image) == expected


@pytest.mark.parametrize("image", ["", " disagg", "dis agg:dev"])
def test_what_is_no_name_is_refused(image: str) -> None:
    with pytest.raises(SpecError, match="no image name"):
        full_name(image)


def test_a_program_becomes_an_image_with_the_same_bytes_each_time(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    archives = [tmp_path / "a.tar", tmp_path / "b.tar"]
    for archive in archives:
        write_program_image(program, image=PAUSE_IMAGE, target=archive)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as archive:
        (manifest,) = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
        config = json.loads(archive.extractfile(manifest["Config"]).read())  # type: ignore[union-attr]
        layer = archive.extractfile(manifest["Layers"][0]).read()  # type: ignore[union-attr]
    assert manifest["RepoTags"] == [PAUSE_IMAGE]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]


def _layout(folder: Path, name: str) -> Store:
    """A store that holds one image with two layers."""
    store = Store(folder)
    blobs = store.layout / "blobs/sha256"
    blobs.mkdir(parents=True)

    def add(content: bytes) -> dict[str, object]:
        value = hashlib.sha256(content).hexdigest()
        (blobs / value).write_bytes(content)
        return {"digest": f"sha256:{value}", "size": len(content)}

    manifest = {"config": add(b"{}"), "layers": [add(b"base" * 1000), add(b"top")]}
    top = {**add(json.dumps(manifest).encode()), "annotations": {_REF: name}}
    (store.layout / "index.json").write_text(json.dumps({"manifests": [top]}))
    return store


def test_a_node_is_sent_only_what_it_lacks(tmp_path: Path) -> None:
    image = _layout(tmp_path, "docker.io/library/x:1").find("docker.io/library/x:1")
    assert image is not None
    _, _, base, top = image.blobs
    buffer = io.BytesIO()
    size = write_thin_archive(image, present={base.digest}, to=buffer)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as archive:
        names = archive.getnames()
    assert f"blobs/{top.digest.replace(':', '/')}" in names
    assert f"blobs/{base.digest.replace(':', '/')}" not in names
    assert {"oci-layout", "index.json"} <= set(names)
    assert size < 1000


def test_an_image_with_a_missing_file_counts_as_absent(tmp_path: Path) -> None:
    store = _layout(tmp_path, "docker.io/library/x:1")
    image = store.find("docker.io/library/x:1")
    assert image is not None
    image.blobs[-1].path.unlink()
    assert store.find("docker.io/library/x:1") is None
    assert store.find("docker.io/library/y:1") is None


def test_every_package_of_the_wheel_goes_into_the_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert [package for package in packages if f"!{package}" not in allowed] == []


def test_a_changed_source_file_means_a_new_image(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.hatch.build.targets.wheel]\npackages = ["cli/disagg_cli"]\n')
    package = tmp_path / "cli/disagg_cli"
    (package / "__pycache__").mkdir(parents=True)
    (package / "main.py").write_text("a = 1\n")
    before = content_key(tmp_path, project_inputs(tmp_path))
    (package / "__pycache__/main.pyc").write_text("compiled")
    (tmp_path / "elsewhere.py").write_text("")
    assert content_key(tmp_path, project_inputs(tmp_path)) == before
    (package / "main.py").write_text("a = 2\n")
    assert content_key(tmp_path, project_inputs(tmp_path)) != before
