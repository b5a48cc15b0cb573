"""A one-file image, written with nothing but the standard library, so that a cluster starts without buildah.

In: a static program. Out: a `docker save` archive with one layer. The same program gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

PAUSE_IMAGE = "localhost/disagg-pause:1"


def write_program_image(program: Path, *, image: str, target: Path) -> None:
    """Write to `target` an image that holds `program` alone and runs it as an unprivileged user."""
    layer = _tar({program.name: (program.read_bytes(), 0o755)})
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    config_bytes = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(config_bytes).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [image], "Layers": ["layer.tar"]}]
    members = {
        config_name: (config_bytes, 0o644),
        "layer.tar": (layer, 0o644),
        "manifest.json": (json.dumps(manifest).encode(), 0o644),
    }
    partial = target.with_name(target.name + ".partial")
    partial.write_bytes(_tar(members))
    partial.rename(target)


def _tar(members: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (content, mode) in members.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _architecture() -> str:
    """Go's name for this machine's processor."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
