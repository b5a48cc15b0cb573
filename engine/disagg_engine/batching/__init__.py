"""The batching loop, and how to drive it.

`BatchingLoop` does no I/O and reads no clock. A driver — the worker on the real clock, the simulator on a heap — tells
it what happened and when (engine seconds, any origin), and asks it what to do:

>>> loop.submit(request, now=t)             # doctest: +SKIP
>>> while (due := loop.next_seconds()) is not None:
...     # wait until engine time `due`, or for an input (then ask next_seconds again); being late is harmless
...     for done in loop.complete(now=due):
...         for work in done.works: ...     # KV of tokens work.start_tokens … + new_tokens now exists: write contents
...         for token in done.emissions: ...  # sample output token token.index from the KV held; then, if need be,
...                                         # loop.add_block_keys(id, keys) and loop.finish(id, now=due) (stop, eos)
...     plan = loop.plan(now=due)           # plan.iteration ends at plan.iteration.end_seconds
...     for transfer in plan.transfers: ... # start pulling (decode role)

Rules for every role
- After each batch of inputs call `start_transfers(now=…)`; it and `plan` tell each transfer exactly once.
- `next_seconds()` is the time to call `complete` and `plan` next; pass that time as `now`, even when the wall clock is
  already past it: the engine's clock then never lags. None means idle: wait for an input.
- An emission with `last` has reached max_tokens: the loop ends the request by itself at the next `plan` or
  `start_transfers` (until then `block_ids` still works). To end earlier, call `finish` between `complete` and `plan`;
  `cancel` and `fail` may be called at any time.
- A request that can never fit is refused by `submit` (RequestTooLargeError).
- A preempted request (`plan.preempted`) lost its blocks and is computed again later; its emitted tokens stay emitted.
  Blocks that it finds cached count as computed: its first work starts at `start_tokens` > 0.

Role by role
- worker (colocated): submit with the defaults. The prompt's last work emits output token 1, each decode one more.
- prefill: submit with max_tokens=1 and keep_kv=True. After its emission the request counts as finished, but its KV
  stays pinned (`holds`, `block_ids` keep working, nothing evicts it: case KV7) until `release(id, now=…)`, called when
  it was pulled or its lease ran out. A full pool makes new prompts wait; it never evicts pinned blocks.
- decode: submit with remote_kv=True. When the pool has room for it a `Transfer` is told: pull tokens
  cached_tokens … prompt_tokens, write their contents into `block_ids`, let the link's time pass, then call
  `kv_arrived(id, now=…, first_token=…)`. FirstToken.LOGITS returns the first Emission at once (no extra cost),
  FirstToken.STEP makes the first decode step emit it, FirstToken.PREFILL says that the prefill leg has emitted it.
  If the pull fails: `kv_failed` (the prompt is computed here, ahead of the queue) or `fail`. `cancel` while pulling
  takes the room back at once; drop bytes that come later.
  A request without remote_kv is prefilled here like on a colocated worker.

Event skipping (a simulator's driver)
- `BatchingLoop(…, event_skipping=True)` plans windows of decode iterations: `Iteration.steps` of them, `end_seconds`
  the end of the last. The driver stays the same. An input at a time within the window cuts it to the step in flight
  then, so ask `next_seconds` after each input, and report inputs in the order of their times.
- `Completed` says what was done: `iteration.steps`, all `tokens`, `works` of prompts alone, and of the emissions
  those of first and last tokens alone. With `record_gaps=True`, `gaps` are the times between tokens.
- `ledger.used_tokens` and `admitted` are within a window those of its start.
- Give all `block_keys` with the request, the output's included, instead of calling `add_block_keys`.

A prefill instance with `FirstToken.PREFILL`, and `Admission.RESERVE`, is how the reference rows count.
"""

from typing import TYPE_CHECKING, Any

from disagg_contract.choices import Admission, BatchPolicy, QueueOrder
from disagg_contract.labels import Role
from disagg_engine.batching.config import BatchingConfig
from disagg_engine.batching.speculation import Speculation
from disagg_engine.batching.types import (
    Admitted,
    Completed,
    Counts,
    Emission,
    EndReason,
    FirstToken,
    Gap,
    Iteration,
    Plan,
    Request,
    Transfer,
    Work,
)

if TYPE_CHECKING:
    from disagg_engine.batching.loop import BatchingLoop

__all__ = [
    "Admission",
    "Admitted",
    "BatchPolicy",
    "BatchingConfig",
    "BatchingLoop",
    "Completed",
    "Counts",
    "Emission",
    "EndReason",
    "FirstToken",
    "Gap",
    "Iteration",
    "Plan",
    "QueueOrder",
    "Request",
    "Role",
    "Speculation",
    "Transfer",
    "Work",
]


def __getattr__(name: str) -> Any:
    """`BatchingLoop`, imported when somebody drives one: settings and values are had sooner without it."""
    if name != "BatchingLoop":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from disagg_engine.batching.loop import BatchingLoop

    globals()[name] = BatchingLoop
    return BatchingLoop
