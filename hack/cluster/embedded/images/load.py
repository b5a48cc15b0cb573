"""Putting image archives into the nodes.

Each node's containerd keeps the digest of the archive it was given for a name as a label on the image, so giving the
same archive again costs one question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from embedded import nodes
from embedded.errors import CommandError, SpecError
from embedded.images.archive import PAUSE_IMAGE, write_program_image
from embedded.layout import Cluster
from embedded.shell import run, say
from embedded.topology import Node

_LABEL = "disagg.dev/archive"


def full_name(image: str) -> str:
    """Write an image's name as the kubelet asks for it: `disagg:dev` is `docker.io/library/disagg:dev`.

    >>> full_name("disagg:dev")
    'docker.io/library/disagg:dev'
    """
    if not image or image != image.strip() or any(character.isspace() for character in image):
        raise SpecError(f"{image!r} is no image name; write one like disagg:dev")
    first, slash, _ = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif not ("." in first or ":" in first or first == "localhost"):
        image = f"docker.io/{image}"
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"


def load_archive(cluster: Cluster, node_list: Iterable[Node], archive: Path, *, image: str) -> bool:
    """Import the archive that holds `image` into every node that does not have it; True when any did not."""
    if not archive.is_file():
        raise SpecError(f"there is no image archive {archive}")
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    name = full_name(image)
    with ThreadPoolExecutor() as pool:
        return any(list(pool.map(lambda node: _load(cluster, node, archive, name, digest), node_list)))


def load_pause(cluster: Cluster, node: Node) -> None:
    """Give a node the image of which every pod has one container."""
    program = cluster.program("pause")
    archive = program.parent / "image.tar"
    if not archive.exists():
        write_program_image(program, image=PAUSE_IMAGE, target=archive)
    load_archive(cluster, [node], archive, image=PAUSE_IMAGE)


def _load(cluster: Cluster, node: Node, archive: Path, name: str, digest: str) -> bool:
    if f"{_LABEL}={digest}" in _ctr(cluster, node, "images", "ls", f"name=={name}"):
        return False
    say(f"{node.name}: importing {name}")
    _ctr(cluster, node, "images", "import", str(archive))
    try:
        _ctr(cluster, node, "images", "label", name, f"{_LABEL}={digest}")
    except CommandError as error:
        raise SpecError(f"{archive} holds no image named {name}: {error}") from error
    return True


def _ctr(cluster: Cluster, node: Node, *arguments: str) -> str:
    hint = f"See {cluster.log(f'containerd-{node.index}')}; is the cluster up?"
    argv = ["ctr", "--address", str(nodes.socket(cluster, node)), "--namespace", "k8s.io", *arguments]
    return run(argv, timeout_seconds=600, hint=hint)
