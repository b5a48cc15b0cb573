"""How a child starts: in a process group of its own, and bound to die with the runtime.

A group of its own keeps Ctrl-C in the terminal from reaching the children, so the runtime can stop them in order. On
Linux the kernel kills the child when the runtime dies in any way, ``kill -9`` included; the small program below asks
for that and then becomes the child. (A callback between fork and exec would do without it, but is unsafe beside
threads.)
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_BIND_AND_BECOME: Final = """
import os, signal, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Many small processes share a laptop; none gains from a pool of threads for linear algebra."""


def launch(command: Sequence[str], *, log: Path) -> subprocess.Popen[bytes]:
    """Start ``command`` with its output appended to ``log``. Raises OSError if it cannot be started."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BIND_AND_BECOME, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**_ONE_THREAD, **os.environ, "PYTHONUNBUFFERED": "1"},
            process_group=0,
        )
