"""Where results go: checked before the work, so that minutes of it are not lost to a mistyped folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from disagg_cli.errors import CommandError


def check_place(path: str | None) -> None:
    """Whether a file can probably be written there; nothing and `-` can. Raises `CommandError`."""
    if not path or path == "-":
        return
    place = Path(path)
    if place.is_dir():
        reason = errno.EISDIR
    elif not place.parent.is_dir():
        reason = errno.ENOTDIR if place.parent.exists() else errno.ENOENT
    elif not os.access(place if place.exists() else place.parent, os.W_OK):
        reason = errno.EACCES
    else:
        return
    raise CommandError(f"{path} can't be written: {os.strerror(reason).lower()}")
