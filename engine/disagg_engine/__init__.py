"""The simulated engine: hardware and model catalogues, time models, KV ledgers and the batching loop.

Everything here is pure: no I/O, no clock, no randomness. Time comes in as an argument, so the workers in the pods and
the simulator drive the very same objects. A whole instance is put together like this:

>>> from disagg_engine.batching import BatchingConfig, BatchingLoop
>>> from disagg_engine.catalogue import default
>>> from disagg_engine.instance import Instance
>>> from disagg_engine.kv import BlockLedger
>>> from disagg_engine.timemodel import Roofline
>>> catalogue = default()
>>> instance = Instance(model=catalogue.model("opt-13b"), gpu=catalogue.gpu("a100-80gb"))
>>> loop = BatchingLoop(
...     config=BatchingConfig(pipeline=instance.pipeline),
...     time_model=Roofline(instance),
...     ledger=BlockLedger(capacity_tokens=instance.kv_capacity_tokens()),
... )
>>> loop.next_seconds() is None  # idle
True

`disagg_engine.batching` says how to drive the loop.
"""
