#!/usr/bin/env python3
"""Start, inspect and remove the embedded Kubernetes cluster: `cluster.py --help` has examples."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from embedded.cli import main

if __name__ == "__main__":
    sys.exit(main())
