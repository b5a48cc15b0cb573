"""Random numbers: one independent stream for each thing that is drawn, all from one seed.

A stream is PCG64 seeded with a digest of text, both of which NumPy promises to keep. Only its raw bits are used, never
NumPy's distributions, which may change between versions. Number k of a stream is the same however many are taken at a
time, so a longer load begins like a shorter one, and a change of the rate leaves the lengths as they were.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from numpy.random import PCG64, SeedSequence

from .portable import Floats


class Stream:
    """Uniform numbers, one after another."""

    def __init__(self, name: str) -> None:
        digest = sha256(name.encode()).digest()
        self._bits = PCG64(SeedSequence(int.from_bytes(digest, "big")))

    def uniforms(self, count: int) -> Floats:
        """The next `count` numbers between 0 and 1, neither of which occurs: odd multiples of 2^-53."""
        raw = self._bits.random_raw(count)
        result: Floats = ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return result


class Streams:
    """The streams of one seed, told apart by name; asking again for a name starts that stream again."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def stream(self, name: str) -> Stream:
        """The stream called `name`."""
        return Stream(f"disagg/load/{self._seed}/{name}")
