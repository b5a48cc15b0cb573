"""How long something takes, on the CPU clock of this process, so that other programs count less."""

import time
from collections.abc import Callable
from statistics import median


def cpu_seconds(work: Callable[[], object], rounds: int) -> float:
    """The median of some rounds."""
    spent = []
    for _ in range(rounds):
        before = time.process_time()
        work()
        spent.append(time.process_time() - before)
    return median(spent)
