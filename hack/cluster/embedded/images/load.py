"""Putting images into the nodes, whole or only what a node lacks.

An archive of someone else's making is imported as it is; a label on the image remembers its hash, so that giving it
again costs one question. An image from the store goes in as an archive that leaves out every layer the node's
containerd has already: a change of the project's own code is a few hundred kilobytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from embedded import nodes
from embedded.errors import CommandError, SpecError
from embedded.images.archive import PAUSE_IMAGE, write_program_image
from embedded.images.store import Image
from embedded.layout import Cluster
from embedded.shell import run, say
from embedded.topology import Node

_LABEL = "disagg.dev/archive"


def full_name(image: str) -> str:
    """Write an image's name as the kubelet asks for it.

    >>> full_name("disagg:dev")
    'docker.io/library/disagg:dev'
    """
    if not image or any(character.isspace() for character in image):
        raise SpecError(f"{image!r} is no image name; write one like disagg:dev")
    first, slash, _ = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif not ("." in first or ":" in first or first == "localhost"):
        image = f"docker.io/{image}"
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"


def load_archive(cluster: Cluster, node_list: Iterable[Node], archive: Path, *, image: str) -> bool:
    """Import an archive (docker or OCI) that holds `image` into every node; False when all had it already."""
    if not archive.is_file():
        raise SpecError(f"there is no image archive {archive}")
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    name = full_name(image)
    with ThreadPoolExecutor() as pool:
        return any(list(pool.map(lambda node: _load_archive(cluster, node, archive, name, digest), node_list)))


def load_image(cluster: Cluster, node_list: Iterable[Node], image: Image) -> bool:
    """Put an image of the store into every node; False when all had it already."""
    with ThreadPoolExecutor() as pool:
        return any(list(pool.map(lambda node: _load_image(cluster, node, image), node_list)))


def load_pause(cluster: Cluster, node: Node) -> None:
    """Give a node the image of which every pod has one container."""
    program = cluster.program("pause")
    archive = program.parent / "image.tar"
    if not archive.exists():
        write_program_image(program, image=PAUSE_IMAGE, target=archive)
    load_archive(cluster, [node], archive, image=PAUSE_IMAGE)


def write_thin_archive(image: Image, *, present: set[str], to: IO[bytes]) -> int:
    """Write an OCI archive of the image without the files whose hash is `present`; returns how many bytes of files."""
    total = 0
    with tarfile.open(fileobj=to, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        index = {"schemaVersion": 2, "manifests": [image.descriptor]}
        for name, value in (("oci-layout", {"imageLayoutVersion": "1.0.0"}), ("index.json", index)):
            content = json.dumps(value).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for blob in image.blobs:
            if blob.digest not in present:
                archive.add(blob.path, arcname=f"blobs/{blob.digest.replace(':', '/')}")
                total += blob.path.stat().st_size
    return total


def _load_archive(cluster: Cluster, node: Node, archive: Path, name: str, digest: str) -> bool:
    if f"{_LABEL}={digest}" in run(_ctr(cluster, node, "images", "ls", f"name=={name}"), hint=_hint(cluster, node)):
        return False
    say(f"{node.name}: importing {name}")
    run(_ctr(cluster, node, "images", "import", str(archive)), timeout_seconds=900, hint=_hint(cluster, node))
    try:
        run(_ctr(cluster, node, "images", "label", name, f"{_LABEL}={digest}"))
    except CommandError as error:
        raise SpecError(f"{archive} holds no image named {name}: {error}") from error
    return True


def _load_image(cluster: Cluster, node: Node, image: Image) -> bool:
    before = _listed(cluster, node).get(image.name)
    if before == image.digest:
        return False
    present = set(run(_ctr(cluster, node, "content", "ls", "--quiet")).split())
    argv = _ctr(cluster, node, "images", "import", "-")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            size_bytes = write_thin_archive(image, present=present, to=process.stdin)
            process.stdin.close()
        except BrokenPipeError:
            size_bytes = 0
        said = process.stdout.read().decode(errors="replace")
    if process.returncode != 0:
        raise CommandError(f"{node.name} did not take {image.name}: {said[-1000:].strip()}. {_hint(cluster, node)}")
    say(f"{node.name}: imported {image.name} ({size_bytes / 1e6:.1f} MB)")
    _forget(cluster, node, before)
    return True


def _listed(cluster: Cluster, node: Node) -> dict[str, str]:
    """Map each image name that a node knows to the hash of its manifest."""
    lines = run(_ctr(cluster, node, "images", "ls"), hint=_hint(cluster, node)).splitlines()[1:]
    return {words[0]: words[2] for words in map(str.split, lines)}


def _forget(cluster: Cluster, node: Node, digest: str | None) -> None:
    """Let go of an image that has lost its name to a newer one; what still runs from it keeps its files."""
    holders = [name for name, theirs in _listed(cluster, node).items() if theirs == digest]
    if holders and all(name.startswith("sha256:") for name in holders):
        run(_ctr(cluster, node, "images", "rm", *holders))


def _ctr(cluster: Cluster, node: Node, *arguments: str) -> list[str]:
    return ["ctr", "--address", str(nodes.socket(cluster, node)), "--namespace", "k8s.io", *arguments]


def _hint(cluster: Cluster, node: Node) -> str:
    return f"See {cluster.log(f'containerd-{node.index}')}; is the cluster up?"
