"""The router: one OpenAI-compatible address in front of pools of prefill, decode and colocated workers.

``core`` decides (pure: no I/O, no clock, no global randomness); ``shell`` speaks HTTP, watches for workers and counts.
"""
