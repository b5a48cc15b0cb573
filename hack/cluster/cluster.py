#!/usr/bin/env python3
"""Start, inspect and remove the embedded Kubernetes cluster: `cluster.py --help` has examples."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 (this file runs before anything checks what the project requires)
    sys.exit(
        f"cluster.py needs Python 3.11 or newer, and this is {sys.version.split()[0]}: name another, python3.12, say"
    )

sys.path.insert(0, str(Path(__file__).resolve().parent))

from embedded.cli import main

if __name__ == "__main__":
    sys.exit(main())
