"""The fast lane: the rules of the batching loop over flat arrays, for the deployments that most runs are about.

`BatchingLoop` and the cluster lane that drives it are what counts; they work for every policy and ledger, and the pods
run them. This package follows the same rules for the common case and skips what cannot change anything there. `applies`
says where that is; hypothesis tests hold it to the stepper, to 1e-9 s in every column. Times come from the time model's
own answers (`decode_lines`, `counted_seconds`), of which the lane keeps tables.

What is skipped, and why nothing is lost:

======================================  ================================================================================
equal decode iterations                 with the same sequences a step takes a + b·context, the context grows by their
                                        number a step, so k steps are an arithmetic series. They run on to the first end
                                        of a sequence, the bend of the time model, or the step in flight when an input
                                        comes that can change the batch; that step is the root of a quadratic.
inputs that change nothing              who comes behind a blocked head of the queue cannot be admitted (first come,
                                        first served), a request to be pulled joins with its KV and not before.
each sequence's progress                decode advances all alike: who joins after step s of the instance with d tokens
                                        to go ends with step s + d. Contexts are needed only as a sum.
the heap of events                      an instance is a generator that holds its state in local variables and is run up
                                        to the time of an input when one comes; what it did before concerns nobody else.
                                        Ends of transfers are known when they start.
a request's life between two events     columns are written by whoever computes a time; outcomes, token counts and
                                        sums follow from the columns at the end, in numpy.
======================================  ================================================================================

The protocol of the generators: `send(t)` makes an instance run everything that ends by t and start nothing at t, since
more may come at that very time; what the driver has put into its inbox before has arrived at t. It yields when it does
something next by itself; until then nobody needs to ask, and its load is what the router would see. Where requests wait
for decode memory (`Server.held`) the driver takes that time into its own order of events, because links are shared and
prefill memory waits for the transfers. `prefill` is simpler: it is sent the times at which it may plan.

    scope           what the lane takes on            `applies`, `reason_not`
    run             a run, and what numpy fills in    `simulate_fast`
    server          one instance, its tables          `Server`, `Pieces`, `Prompts`
    dispatch        drives colocated and decode-only  `dispatch`
    disaggregated   drives prefill and the pair       `serve`
    prefill_first, chunked, prefill, decode, staged_decode    the generators
    pulls, routes   links and prefill memory; the least loaded
"""

from disagg_simulator.fast.run import simulate_fast
from disagg_simulator.fast.scope import applies, reason_not

__all__ = ["applies", "reason_not", "simulate_fast"]
