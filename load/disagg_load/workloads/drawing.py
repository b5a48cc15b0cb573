"""From distributions to requests: `draw` gives the columns of a load.

Arrivals, inputs and outputs have streams of random numbers of their own (`streams`), and each request takes one number
of each stream of lengths. So the same seed gives the same requests to whoever draws them, a longer load begins like a
shorter one, and `draw(…, PoissonArrivals(r), …)` is `draw(…, PoissonArrivals(1), …).at_rate(r)` to the last bit.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import numpy as np

from disagg_load.columns import Columns
from disagg_load.errors import WorkloadError

from .arrivals import Arrivals
from .lengths import Lengths
from .portable import Floats
from .streams import Streams

Chains = Callable[[int], tuple[int, ...]]
"""Makes the hash ids of one prompt after another, from its tokens."""


def draw(
    arrivals: Arrivals,
    inputs: Lengths,
    outputs: Lengths,
    *,
    seed: int,
    requests: int | None = None,
    seconds: float | None = None,
    name: str = "drawn",
    chains: Callable[[Streams], Chains] | None = None,
) -> Columns:
    """Requests as columns: the first `requests`, or those that arrive before `seconds`, whichever ends first.

    `chains` makes hash ids, for prompts that share prefixes. Costs well below a microsecond and, but for hash ids,
    16 bytes a request. Raises WorkloadError where neither bound is given, or one that is no bound.
    """
    streams = Streams(seed)
    input_stream, output_stream = streams.stream("inputs"), streams.stream("outputs")
    times, input_tokens, output_tokens = array("d"), array("i"), array("i")
    for block in arrival_blocks(arrivals, streams, requests=requests, seconds=seconds):
        times.frombytes(block.tobytes())
        for lengths, stream, column in (
            (inputs, input_stream, input_tokens),
            (outputs, output_stream, output_tokens),
        ):
            column.frombytes(lengths.tokens(stream.uniforms(len(block)), block).astype(np.int32).tobytes())
    hash_ids = None
    if chains is not None:
        make = chains(streams)
        hash_ids = [make(tokens) for tokens in input_tokens]
    return Columns(
        name=name, arrival_seconds=times, input_tokens=input_tokens, output_tokens=output_tokens, hash_ids=hash_ids
    )


def arrival_blocks(
    arrivals: Arrivals, streams: Streams, *, requests: int | None, seconds: float | None
) -> Iterator[Floats]:
    """Blocks of arrival times within the bounds. Raises WorkloadError where neither is given, or one is no bound."""
    if requests is None and seconds is None:
        raise WorkloadError("neither requests nor seconds bound the load, one is needed")
    if requests is not None and requests < 1:
        raise WorkloadError(f"{requests} requests were asked for, at least 1 is needed")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise WorkloadError(f"a load of {seconds} seconds was asked for, a number above 0 is needed")
    blocks = arrivals.blocks(streams) if seconds is None else arrivals.blocks(streams, until_seconds=seconds)
    return _bounded(blocks, requests, seconds)


def _bounded(blocks: Iterator[Floats], requests: int | None, seconds: float | None) -> Iterator[Floats]:
    left = requests
    for block in blocks:
        here = block if seconds is None else block[: np.searchsorted(block, seconds)]
        if left is not None:
            here = here[:left]
            left -= len(here)
        yield here
        if len(here) < len(block) or left == 0:
            return
