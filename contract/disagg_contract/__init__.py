"""What two halves of the system say to each other, as code.

Router, workers, planner and operator are separate programs, often of separate releases. Everything one of them
writes and another reads has its one definition here: labels, ports, flags, metric names, documents, transfer
parameters, event and frame codecs, block hashes and the default tokenizer. The package is pure: no I/O, no clock, no
randomness. Golden files under ``tests/contract/golden`` hold the bytes, and both sides are tested against them.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("disagg")
except PackageNotFoundError:  # a source tree on PYTHONPATH that was never installed
    __version__ = "0.0.0"
