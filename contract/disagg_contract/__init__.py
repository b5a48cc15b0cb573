"""What two halves of the system say to each other, as code.

Router, workers, planner and operator are separate programs, often of separate releases. Everything one of them
writes and another reads has its one definition here: labels, ports, flags, metric names, documents, transfer
parameters, event and frame codecs, block hashes and the default tokenizer. The package is pure: no I/O, no clock, no
randomness. Golden files under ``tests/contract/golden`` hold the bytes, and both sides are tested against them.
"""

from typing import Any

__version__: str


def __getattr__(name: str) -> Any:
    """`__version__`, looked up when somebody asks, because reading the metadata of packages takes 30 ms."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("disagg")
    except PackageNotFoundError:  # a source tree on PYTHONPATH that was never installed
        found = "0.0.0"
    globals()[name] = found
    return found
