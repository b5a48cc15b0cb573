"""A timer finer than an event loop's own.

Event loops keep time in whole milliseconds and go off up to two of them late, which is a tenth of a short iteration.
Timers of the kernel that can be watched like a socket (Linux timerfd) are right to some ten microseconds and cost
nothing while they run. Where the system has none, the loop's own timer has to do.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable

_MONOTONIC = 1
_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: interval, then value, each seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "after_s", "after_ns"))


class Alarm:
    """Calls ``ring`` on the running event loop once the time set has passed. Close it before its loop."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._went_off)

    def set(self, seconds: float) -> None:
        """Ring after that many seconds, above 0; a time set before is forgotten."""
        if self._fd < 0:
            self.unset()
            self._handle = self._loop.call_later(seconds, self._ring)
            return
        whole = int(seconds)
        self._arm(whole, max(1, int((seconds - whole) * 1e9)))

    def unset(self) -> None:
        """Do not ring."""
        if self._fd >= 0:
            self._arm(0, 0)
        elif self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        """Never ring again."""
        self.unset()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _arm(self, seconds: int, nanoseconds: int) -> None:
        spec = _TimerSpec(0, 0, seconds, nanoseconds)
        self._libc.timerfd_settime(self._fd, 0, ctypes.byref(spec), None)

    def _went_off(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it was set anew meanwhile
            os.read(self._fd, 8)
            self._ring()
