"""HTTP headers that router and workers exchange beside OpenAI's and vLLM's bodies.

A worker that answers in one piece says when its tokens were made, because nobody outside can see it: the two timing
headers, in engine seconds, decimal. They are optional (a real engine sends none); where they are missing a request
that is not streamed has no TTFT and no TPOT.
"""

from typing import Final

REQUEST_ID: Final = "x-request-id"
"""Passed on from the client, or drawn by the router; both legs of a request carry the same one."""
TTFT_SECONDS: Final = "x-disagg-ttft-seconds"
"""From arrival of the leg at the worker to its first token."""
TPOT_SECONDS: Final = "x-disagg-tpot-seconds"
"""Time per output token after the first; absent for an answer of one token."""
