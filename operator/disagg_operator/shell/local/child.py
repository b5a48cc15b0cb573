"""One child process, restarted with growing pauses when it ends by itself.

``poll`` is called again and again by the owner; nothing here waits, sleeps or starts threads. A start is a new
``incarnation``: discovery keys on it, as it does on the UID of a pod.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from disagg_operator.shell.local.launcher import launch

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 30.0
"""A child that ran this long starts anew without a pause."""


class Child:
    """A supervised program. ``command`` makes the command line for each start, because ports are drawn anew."""

    def __init__(self, *, name: str, command: Callable[[], Sequence[str]], log: Path) -> None:
        self.name = name
        self.log = log
        self.incarnation = 0
        self.crashes = 0
        self.exit_code: int | None = None
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._next_start = 0.0
        self._pause = FIRST_PAUSE_SECONDS
        self._kill_at: float | None = None

    @property
    def pid(self) -> int:
        """Process id; 0 while nothing runs."""
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def stopping(self) -> bool:
        return self._kill_at is not None

    @property
    def gone(self) -> bool:
        """Asked to stop, and stopped."""
        return self.stopping and not self.running

    def poll(self, now: float) -> bool:
        """Start, restart or reap as due. True when something changed."""
        if self._process is None:
            if self.stopping or now < self._next_start:
                return False
            self._start(now)
            return True
        code = self._process.poll()
        if code is None:
            if self._kill_at is not None and now >= self._kill_at:
                self._signal(signal.SIGKILL)
            return False
        self._process = None
        self.exit_code = code
        if not self.stopping:
            self.crashes += 1
            if now - self._started_at >= STEADY_SECONDS:
                self._pause = FIRST_PAUSE_SECONDS
            self._next_start = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return True

    def stop(self, now: float, *, grace_seconds: float) -> None:
        """SIGTERM now, SIGKILL after the grace; a second call can only shorten it."""
        kill_at = now + grace_seconds
        if self._kill_at is None:
            self._kill_at = kill_at
            self._signal(signal.SIGTERM)
        self._kill_at = min(self._kill_at, kill_at)

    def _start(self, now: float) -> None:
        self.incarnation += 1
        self._started_at = now
        self._process = launch(self._command(), log=self.log)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        try:
            # The child leads its group from before it runs, so this reaches all that it started.
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def last_words(self, lines: int = 5) -> str:
        """The end of the log, for an error message."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.strip().splitlines()[-lines:])
