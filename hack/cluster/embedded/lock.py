"""One writer at a time: an advisory lock on a file, released by the kernel even when its holder is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from embedded.shell import say


@contextlib.contextmanager
def locked(path: Path, *, purpose: str) -> Iterator[None]:
    """Hold the lock at `path`, waiting for `purpose` (said aloud once) where someone else holds it.

    The file may be removed by its holder (a cluster's last act is to remove its folder), so after each wait the
    path must still lead to the file that was locked.
    """
    told = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    holder = path.read_text().strip() or "?"
                    say(f"waiting for {purpose} (process {holder} holds {path})")
                    told = True
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _same_file(descriptor, path):
                continue
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
            return
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def locked_host() -> Iterator[None]:
    """Hold the one lock of this machine, for what clusters must not do at the same time; it leaves no file behind."""
    descriptor = os.open("/run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    mine = os.fstat(descriptor)
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
