"""How a result is stored: the figures with the commit, the seed and the kind of machine they come from.

A figure without these cannot be compared with anything. ``DISAGG_COMMIT`` names the commit where the code is not in a
git work tree. The kind of machine is what the kernel says of it; nothing that names this very machine is stored.
"""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]


def commit() -> str:
    """The commit measured; it ends in ``-dirty`` where tracked files differed from it, ``unknown`` without git."""
    if named := os.environ.get("DISAGG_COMMIT"):
        return named
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    """CPU, cores that this process may use, their load, memory, system and Python."""
    cpu = next((line.partition(":")[2].strip() for line in read("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = next((int(line.split()[1]) for line in read("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "cpu": cpu or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "memory_bytes": memory * 1024,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def read(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def store(path: Path, *, seed: int, figures: object) -> None:
    """Write ``figures`` with where they come from."""
    document = {
        "commit": commit(),
        "seed": seed,
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "figures": figures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"stored in {path}")
