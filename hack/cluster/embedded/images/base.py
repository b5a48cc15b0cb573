"""The base image: a minimal Debian with Python, made by debootstrap.

It stands in for `python:3.11-slim` where no registry can be reached. Made once, kept in buildah's storage under a name
that carries a hash of how it is made.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from pathlib import Path

from embedded.images.store import Store
from embedded.shell import run, say

SUITE = "bookworm"
_INCLUDE = "python3,python3-venv,ca-certificates"
# Nothing of this is needed at run time.
_SURPLUS = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "var/cache/apt",
    "var/lib/apt/lists",
)
_MIRROR_VARIABLE = "DISAGG_DEBIAN_MIRROR"


def base_key() -> str:
    """Hash of everything that decides what the base image holds, but for Debian's own updates."""
    recipe = "\n".join([SUITE, _INCLUDE, *_SURPLUS, platform.machine()])
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def ensure_base(store: Store) -> str:
    """Return the name of the base image in buildah's storage, making it first where needed."""
    image = f"localhost/disagg-base:{base_key()}"
    if store.has(image):
        return image
    mirror = os.environ.get(_MIRROR_VARIABLE)
    say(f"base image: debootstrap of Debian {SUITE} from {mirror or 'its default mirror'} (once, about a minute)")
    with tempfile.TemporaryDirectory(dir=store.folder, prefix=".debootstrap-") as scratch:
        root = Path(scratch) / "root"
        hint = f"Name another mirror with {_MIRROR_VARIABLE}; outside Debian, install debian-archive-keyring."
        options = ["--variant=minbase", f"--include={_INCLUDE}"]
        run(["debootstrap", *options, SUITE, root, *([mirror] if mirror else [])], timeout_seconds=1800, hint=hint)
        for surplus in _SURPLUS:
            shutil.rmtree(root / surplus, ignore_errors=True)
            (root / surplus).mkdir(parents=True)
        run(["tar", "--numeric-owner", "--exclude=./dev/*", "-C", root, "-cf", Path(scratch) / "root.tar", "."])
        dockerfile = Path(scratch) / "Dockerfile"
        dockerfile.write_text('FROM scratch\nADD root.tar /\nCMD ["/bin/bash"]\n')
        store.build(image, dockerfile=dockerfile, context=Path(scratch), arguments={})
    return image
